//! One client, batch by batch: a pipeline of blocks beside the whole model (figures 4.3, 4.4 and 4.7 of the BlockFlow thesis).

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::Copies;
use tessera_node::{GpuUse, Summary};

use super::Setup;
use super::pipeline::Pipeline;
use crate::output;

/// Runs before the measured ones, of each batch.
const WARM_UP: usize = 5;

/// All batches.
#[derive(Serialize)]
pub(super) struct Latency {
    pub(super) batches: Vec<Batch>,
}

/// Requests of so many rows.
#[derive(Serialize)]
pub(super) struct Batch {
    pub(super) rows: usize,
    pub(super) whole: Whole,
    pub(super) pipelines: Vec<Timed>,
}

/// The whole model in one session.
#[derive(Serialize)]
pub(super) struct Whole {
    pub(super) time: Summary,
}

/// A pipeline that was asked.
#[derive(Serialize)]
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) time: Summary,
    /// Median over the whole model's, of neighbouring runs.
    pub(super) ratio: f64,
    /// Beyond the whole model, of neighbouring runs, in microseconds.
    pub(super) overhead_us: f64,
    /// That, shared out among the hops between blocks.
    pub(super) overhead_per_hop_us: f64,
    pub(super) blocks: Vec<BlockTime>,
    /// Whether all answers were the whole model's, bit for bit.
    pub(super) equal: bool,
}

/// What a block took, in microseconds per request.
#[derive(Serialize)]
pub(super) struct BlockTime {
    /// From when it was sent until a thread of the block took it.
    pub(super) waited_us: f64,
    /// The engine: on a GPU, telling it what to do.
    pub(super) told_us: f64,
    /// What else the block's thread did.
    pub(super) overhead_us: f64,
    /// The GPU itself.
    pub(super) gpu_us: f64,
    /// Copies of the block's process per request.
    pub(super) to_device: f64,
    pub(super) to_host: f64,
    pub(super) on_device: f64,
}

/// A pipeline and how it is called.
pub(super) struct Arm {
    pub(super) name: &'static str,
    pub(super) pipeline: Pipeline,
    /// Hops between its blocks.
    pub(super) hops: usize,
}

pub(super) fn measure(setup: &Setup, arms: &[Arm], runs: usize) -> Result<Latency> {
    let bar = output::progress((setup.batches.len() * (runs + WARM_UP)) as u64, "latency");
    let mut batches = Vec::new();
    for &rows in &setup.batches {
        let given = setup.input(rows)?;
        let mut whole = setup.whole()?;
        let mut run_whole = || -> Result<(Duration, Tensor)> {
            let start = Instant::now();
            let outputs = whole.run(std::slice::from_ref(&given))?;
            let took = start.elapsed();
            let output = outputs.into_values().next();
            Ok((took, output.ok_or_else(|| Error::engine("the whole model gave nothing"))?))
        };
        let inputs: Vec<Tensor> =
            arms.iter().map(|arm| arm.pipeline.input(&given)).collect::<Result<_>>()?;
        let mut whole_times = Vec::new();
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); arms.len()];
        let mut equal = vec![true; arms.len()];
        let mut before = Vec::new();
        for run in 0..runs + WARM_UP {
            if run == WARM_UP {
                for arm in arms {
                    arm.pipeline.records();
                }
                before = arms.iter().map(|arm| arm.pipeline.gpu_use()).collect::<Result<_>>()?;
            }
            let (took, expected) = run_whole()?;
            // In turns, and who goes first changes too.
            for turn in 0..arms.len() {
                let who = (turn + run) % arms.len();
                let (took, answer) = arms[who].pipeline.ask(&inputs[who])?;
                let found = answer.outputs.first().map(|(_, tensor)| tensor);
                equal[who] &= found.and_then(Tensor::bytes) == expected.bytes();
                if run >= WARM_UP {
                    times[who].push(took);
                }
            }
            if run >= WARM_UP {
                whole_times.push(took);
            }
            bar.inc(1);
        }
        let mut pipelines = Vec::new();
        for (who, arm) in arms.iter().enumerate() {
            let after = arm.pipeline.gpu_use()?;
            let blocks = blocks(arm, &before[who], &after);
            pipelines.push(timed(arm, &whole_times, &times[who], blocks, equal[who])?);
        }
        let time = Summary::of(&whole_times).ok_or_else(|| Error::usage("no runs"))?;
        batches.push(Batch { rows, whole: Whole { time }, pipelines });
    }
    bar.finish_and_clear();
    Ok(Latency { batches })
}

fn timed(
    arm: &Arm,
    whole: &[Duration],
    times: &[Duration],
    blocks: Vec<BlockTime>,
    equal: bool,
) -> Result<Timed> {
    let pairs =
        || whole.iter().zip(times).map(|(whole, own)| (whole.as_secs_f64(), own.as_secs_f64()));
    let ratio = middle(pairs().map(|(whole, own)| own / whole));
    let overhead_us = middle(pairs().map(|(whole, own)| (own - whole) * 1e6));
    Ok(Timed {
        name: arm.name.to_owned(),
        time: Summary::of(times).ok_or_else(|| Error::usage("no runs"))?,
        ratio,
        overhead_us,
        overhead_per_hop_us: overhead_us / arm.hops.max(1) as f64,
        blocks,
        equal,
    })
}

/// The middle of some values.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    tessera_node::median(&values).unwrap_or(f64::NAN)
}

/// What blocks did between two readings.
fn blocks(arm: &Arm, before: &[GpuUse], after: &[GpuUse]) -> Vec<BlockTime> {
    let records = arm.pipeline.records();
    let count = records.len().max(1) as f64;
    let places = after.iter().zip(before).enumerate();
    places
        .map(|(place, (after, before))| {
            let of = |what: fn(&tessera_plan::Record) -> u64| {
                let found = records.iter().filter_map(|all| all.get(place));
                middle(found.map(|record| what(record) as f64 / 1e3))
            };
            let runs = (after.runs - before.runs).max(1) as f64;
            let copied = |what: fn(&Copies) -> u64| {
                (what(&after.copies) - what(&before.copies)) as f64 / count
            };
            BlockTime {
                waited_us: of(|record| record.waited),
                told_us: (after.told_nanoseconds - before.told_nanoseconds) as f64 / 1e3 / runs,
                overhead_us: of(|record| record.overhead),
                gpu_us: (after.nanoseconds - before.nanoseconds) as f64 / 1e3 / runs,
                to_device: copied(|copies| copies.to_device),
                to_host: copied(|copies| copies.to_host),
                on_device: copied(|copies| copies.on_device),
            }
        })
        .collect()
}

pub(super) fn print(latency: &Latency) -> Result<()> {
    let mut table = output::Table::new(&[
        ">rows",
        "how",
        ">median",
        ">p99",
        ">over the whole",
        ">beyond it, µs",
        ">per hop, µs",
        "equal",
    ]);
    for batch in &latency.batches {
        let whole = &batch.whole.time;
        let shown = [whole.median_ms, whole.p99_ms].map(output::milliseconds);
        let dash = || "–".to_owned();
        table.row(
            [batch.rows.to_string(), "whole model".to_owned()].into_iter().chain(shown).chain([
                dash(),
                dash(),
                dash(),
                dash(),
            ]),
        );
        for pipeline in &batch.pipelines {
            let Timed { name, time, ratio, overhead_us, overhead_per_hop_us, equal, .. } = pipeline;
            let shown = [time.median_ms, time.p99_ms].map(output::milliseconds);
            table.row([batch.rows.to_string(), name.clone()].into_iter().chain(shown).chain([
                format!("{ratio:.3}"),
                format!("{overhead_us:.0}"),
                format!("{overhead_per_hop_us:.0}"),
                if *equal { "yes" } else { "no" }.to_owned(),
            ]));
        }
    }
    table.print()?;
    output::print("")?;
    let mut table = output::Table::new(&[
        ">rows",
        "how",
        ">block",
        ">waited, µs",
        ">told, µs",
        ">overhead, µs",
        ">GPU, µs",
        ">to GPU",
        ">to host",
        ">on GPU",
    ]);
    for batch in &latency.batches {
        for pipeline in &batch.pipelines {
            for (number, block) in pipeline.blocks.iter().enumerate() {
                let times = [block.waited_us, block.told_us, block.overhead_us, block.gpu_us];
                let copies = [block.to_device, block.to_host, block.on_device];
                table.row(
                    [batch.rows.to_string(), pipeline.name.clone(), number.to_string()]
                        .into_iter()
                        .chain(times.map(|time| format!("{time:.0}")))
                        .chain(copies.map(|count| format!("{count:.1}"))),
                );
            }
        }
    }
    table.print()
}
