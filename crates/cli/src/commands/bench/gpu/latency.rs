//! One client, batch by batch: a pipeline of blocks beside the whole model (figures 4.3, 4.4 and 4.7 of the BlockFlow thesis).

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::Copies;
use tessera_node::{GpuUse, Summary};

use super::Setup;
use super::pipeline::Pipeline;
use crate::output;

/// Requests that follow each other, before it is the next one's turn; and how many before them don't count: a client that
/// asks again and again finds blocks awake.
const BURST: usize = 10;
const UNCOUNTED: usize = 3;

/// Times by round.
type Rounds = Vec<Vec<Duration>>;

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
    /// Overhead of whole tensors through ZeroMQ over that of TensorMQ; `None` where TensorMQ has none.
    pub(super) zmq_overhead_over_tensormq: Option<f64>,
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
    /// Median over the whole model's, of neighbouring rounds.
    pub(super) ratio: f64,
    /// Median over that of the whole model as one block in a process, which is served in the same way.
    pub(super) over_served: Option<f64>,
    /// Beyond the whole model, of neighbouring rounds, in microseconds.
    pub(super) overhead_us: f64,
    /// That, shared out among the blocks, as the thesis has it.
    pub(super) overhead_per_block_us: f64,
    /// For blocks in processes, beyond the same blocks in one process; for those, beyond the whole model; shared out among
    /// the hops between blocks.
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
    let bar = output::progress((setup.batches.len() * (runs + BURST)) as u64, "latency");
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
        let mut whole_times: Rounds = Vec::new();
        let mut times: Vec<Rounds> = vec![Vec::new(); arms.len()];
        let mut equal = vec![true; arms.len()];
        let mut before = Vec::new();
        let (_, expected) = run_whole()?;
        // The first round is for warming up.
        for round in 0..=runs.div_ceil(BURST) {
            if round == 1 {
                for arm in arms {
                    arm.pipeline.records();
                }
                before = arms.iter().map(|arm| arm.pipeline.gpu_use()).collect::<Result<_>>()?;
            }
            // In turns, and who goes first changes too.
            for turn in 0..=arms.len() {
                let who = (turn + round) % (arms.len() + 1);
                let mut took = Vec::with_capacity(BURST);
                for number in 0..BURST + UNCOUNTED {
                    let time = match arms.get(who) {
                        Some(arm) => {
                            let (time, answer) = arm.pipeline.ask(&inputs[who])?;
                            let found = answer.outputs.first().map(|(_, tensor)| tensor);
                            equal[who] &= found.and_then(Tensor::bytes) == expected.bytes();
                            time
                        }
                        None => run_whole()?.0,
                    };
                    if number >= UNCOUNTED {
                        took.push(time);
                    }
                }
                if round > 0 {
                    times.get_mut(who).unwrap_or(&mut whole_times).push(took);
                }
            }
            bar.inc(BURST as u64);
        }
        let mut pipelines = Vec::new();
        for (who, arm) in arms.iter().enumerate() {
            let after = arm.pipeline.gpu_use()?;
            let mut blocks = blocks(arm, &before[who], &after);
            if arm.name == super::THREADS {
                let own = whole_times.len() * (BURST + UNCOUNTED);
                in_one_process(&mut blocks, own, times[who].len() * (BURST + UNCOUNTED));
            }
            let threads = arms.iter().position(|arm| arm.name == super::THREADS);
            let beside = threads.filter(|&threads| threads != who).map(|threads| &times[threads]);
            let beside = beside.unwrap_or(&whole_times);
            let served = arms.iter().position(|arm| arm.name == super::SERVED);
            let served = served.map(|served| &times[served]);
            let others = Others { whole: &whole_times, beside, served };
            pipelines.push(timed(arm, &others, &times[who], blocks, equal[who])?);
        }
        let time = Summary::of(&whole_times.concat()).ok_or_else(|| Error::usage("no runs"))?;
        let zmq_overhead_over_tensormq = zmq_over_tensormq(&pipelines);
        batches.push(Batch { rows, whole: Whole { time }, pipelines, zmq_overhead_over_tensormq });
    }
    bar.finish_and_clear();
    Ok(Latency { batches })
}

/// Overhead of whole tensors through ZeroMQ over that of TensorMQ.
fn zmq_over_tensormq(pipelines: &[Timed]) -> Option<f64> {
    let overhead = |name| pipelines.iter().find(|arm| arm.name == name).map(|arm| arm.overhead_us);
    let tensormq = overhead(super::PROCESSES).filter(|&overhead| overhead > 0.0)?;
    Some(overhead(super::ZMQ)? / tensormq)
}

/// What a pipeline is compared with.
struct Others<'a> {
    whole: &'a Rounds,
    beside: &'a Rounds,
    served: Option<&'a Rounds>,
}

fn timed(
    arm: &Arm,
    others: &Others<'_>,
    times: &Rounds,
    blocks: Vec<BlockTime>,
    equal: bool,
) -> Result<Timed> {
    let seconds = |round: &Vec<Duration>| middle(round.iter().map(Duration::as_secs_f64));
    let beyond = |other: &Rounds| {
        let pairs = other.iter().zip(times);
        middle(pairs.map(|(other, own)| (seconds(own) - seconds(other)) * 1e6))
    };
    let over = |other: &Rounds| {
        middle(other.iter().zip(times).map(|(other, own)| seconds(own) / seconds(other)))
    };
    let overhead_us = beyond(others.whole);
    Ok(Timed {
        name: arm.name.to_owned(),
        time: Summary::of(&times.concat()).ok_or_else(|| Error::usage("no runs"))?,
        ratio: over(others.whole),
        over_served: others.served.map(over),
        overhead_us,
        overhead_per_block_us: overhead_us / (arm.hops + 1) as f64,
        overhead_per_hop_us: match arm.hops {
            0 => 0.0,
            hops => beyond(others.beside) / hops as f64,
        },
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

/// Copies of blocks in one process, which counts them for all: without those of the whole model, which ran there too.
/// One each way belongs to the ends; the rest is shown in between.
fn in_one_process(blocks: &mut [BlockTime], whole_runs: usize, runs: usize) {
    let whole = whole_runs as f64 / runs.max(1) as f64;
    let Some(all) = blocks.first() else { return };
    let [to_device, to_host] = [all.to_device, all.to_host].map(|count| (count - whole).max(0.0));
    let on_device = all.on_device;
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.iter_mut().enumerate() {
        block.to_device = match number {
            0 => to_device.min(1.0),
            1 => to_device - to_device.min(1.0),
            _ => 0.0,
        };
        block.to_host = match number {
            _ if number == last => to_host.min(1.0),
            0 => to_host - to_host.min(1.0),
            _ => 0.0,
        };
        block.on_device = if number == 0 { on_device } else { 0.0 };
    }
}

/// The times, and what blocks did.
pub(super) fn tables(latency: &Latency) -> [output::Table; 2] {
    let mut table = output::Table::new(&[
        ">rows",
        "how",
        ">median",
        ">p99",
        ">over the whole",
        ">over it served",
        ">beyond it, µs",
        ">per block, µs",
        ">per hop, µs",
        ">beyond it, over TensorMQ's",
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
                dash(),
                dash(),
                dash(),
            ]),
        );
        for pipeline in &batch.pipelines {
            let Timed { name, time, ratio, overhead_us, equal, .. } = pipeline;
            let shown = [time.median_ms, time.p99_ms].map(output::milliseconds);
            table.row([batch.rows.to_string(), name.clone()].into_iter().chain(shown).chain([
                format!("{ratio:.3}"),
                super::shown(pipeline.over_served, |ratio| format!("{ratio:.3}")),
                format!("{overhead_us:.0}"),
                format!("{:.0}", pipeline.overhead_per_block_us),
                format!("{:.0}", pipeline.overhead_per_hop_us),
                match batch.zmq_overhead_over_tensormq {
                    _ if *name != super::ZMQ => dash(),
                    Some(times) => format!("{times:.2}"),
                    None => "no overhead".to_owned(),
                },
                if *equal { "yes" } else { "no" }.to_owned(),
            ]));
        }
    }
    let times = table;
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
    [times, table]
}
