//! One client, batch by batch: a pipeline of blocks beside the whole model (figures 4.3, 4.4 and 4.7 of the BlockFlow thesis).

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::Copies;
use tessera_node::{GpuUse, Summary};

use super::Setup;
use super::pipeline::Pipeline;
use crate::commands::verify::Whole as InOneSession;
use crate::output;

/// Requests that follow each other, before it is the next one's turn; and how many before them don't count: a client that
/// asks again and again finds blocks awake.
const BURST: usize = 10;
const UNCOUNTED: usize = 3;

/// How long it may take on a GPU until runs are recorded: they are not counted before.
const UNTIL_RECORDED: Duration = Duration::from_secs(20);
/// Rounds in a row that must have been played by then, all of their runs.
const PLAYED_ROUNDS: usize = 3;

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
    /// The same with runs that are recorded.
    pub(super) recorded: Option<Recorded>,
    pub(super) pipelines: Vec<Timed>,
    /// Overhead of whole tensors through ZeroMQ over that of TensorMQ; `None` where TensorMQ has none.
    pub(super) zmq_overhead_over_tensormq: Option<f64>,
}

/// The whole model in one session.
#[derive(Serialize)]
pub(super) struct Whole {
    pub(super) time: Summary,
}

/// The whole model in one session whose runs are recorded.
#[derive(Serialize)]
pub(super) struct Recorded {
    pub(super) time: Summary,
    /// Median over the plain one's, of neighbouring rounds.
    pub(super) ratio: f64,
    /// How many of its runs were played.
    pub(super) played: f64,
    /// Whether all answers were the plain one's, bit for bit.
    pub(super) equal: bool,
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
    /// Median over that of the whole model in one session whose runs are recorded.
    pub(super) over_recorded: Option<f64>,
    /// Beyond the whole model, of neighbouring rounds, in microseconds.
    pub(super) overhead_us: f64,
    /// That, shared out among the blocks, as the thesis has it.
    pub(super) overhead_per_block_us: f64,
    /// For blocks in processes, beyond the same blocks in one process; for those, beyond the whole model; shared out among
    /// the hops between blocks.
    pub(super) overhead_per_hop_us: f64,
    /// For blocks in processes, beyond the whole model as one block in a process, which is served in the same way; shared
    /// out among the hops.
    pub(super) hop_beyond_served_us: Option<f64>,
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
    /// How many of its runs were played from a recording.
    pub(super) played: f64,
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
        let mut recorded = setup.whole_recorded()?;
        let run_whole = |whole: &mut InOneSession| -> Result<(Duration, Tensor)> {
            let start = Instant::now();
            let outputs = whole.run(std::slice::from_ref(&given))?;
            let took = start.elapsed();
            let output = outputs.into_values().next();
            Ok((took, output.ok_or_else(|| Error::engine("the whole model gave nothing"))?))
        };
        let inputs: Vec<Tensor> =
            arms.iter().map(|arm| arm.pipeline.input(&given)).collect::<Result<_>>()?;
        // The arms, the whole model, and the same recorded.
        let all = arms.len() + 1 + usize::from(recorded.is_some());
        let mut times: Vec<Rounds> = vec![Vec::new(); arms.len() + 2];
        let mut equal = vec![true; arms.len() + 2];
        let (mut before, mut played_before) = (Vec::new(), 0);
        let (_, expected) = run_whole(&mut whole)?;
        // What comes first is for warming up.
        let (begun, rounds) = (Instant::now(), runs.div_ceil(BURST));
        let (mut round, mut recordings) = (0, Recordings::default());
        while round <= rounds {
            if round == 1 {
                for arm in arms {
                    arm.pipeline.records();
                }
                before = arms.iter().map(|arm| arm.pipeline.gpu_use()).collect::<Result<_>>()?;
                played_before = recorded.as_ref().map_or(0, InOneSession::played);
            }
            // In turns, and who goes first changes too.
            for turn in 0..all {
                let who = (turn + round) % all;
                let mut took = Vec::with_capacity(BURST);
                for number in 0..BURST + UNCOUNTED {
                    let time = match arms.get(who) {
                        Some(arm) => {
                            let (time, answer) = arm.pipeline.ask(&inputs[who])?;
                            let found = answer.outputs.first().map(|(_, tensor)| tensor);
                            equal[who] &= found.and_then(Tensor::bytes) == expected.bytes();
                            time
                        }
                        None if who == arms.len() => run_whole(&mut whole)?.0,
                        None => match &mut recorded {
                            Some(recorded) => {
                                let (time, found) = run_whole(recorded)?;
                                equal[who] &= found.bytes() == expected.bytes();
                                time
                            }
                            None => continue,
                        },
                    };
                    if number >= UNCOUNTED {
                        took.push(time);
                    }
                }
                if round > 0 {
                    times[who].push(took);
                }
            }
            let is_warm = match &recorded {
                Some(whole) if round == 0 && begun.elapsed() < UNTIL_RECORDED => {
                    recordings.are_made(whole, arms)?
                }
                _ => true,
            };
            if is_warm {
                round += 1;
                bar.inc(BURST as u64);
            }
        }
        let recorded_times = times.pop().unwrap_or_default();
        let whole_times = times.pop().unwrap_or_default();
        let mut pipelines = Vec::new();
        for (who, arm) in arms.iter().enumerate() {
            let after = arm.pipeline.gpu_use()?;
            let mut blocks = blocks(arm, &before[who], &after);
            if arm.name == super::THREADS {
                let own = (whole_times.len() + recorded_times.len()) * (BURST + UNCOUNTED);
                in_one_process(&mut blocks, own, times[who].len() * (BURST + UNCOUNTED));
            }
            let threads = arms.iter().position(|arm| arm.name == super::THREADS);
            let beside = threads.filter(|&threads| threads != who).map(|threads| &times[threads]);
            let beside = beside.unwrap_or(&whole_times);
            let served = arms.iter().position(|arm| arm.name == super::SERVED);
            let served = served.map(|served| &times[served]);
            let recorded = recorded.is_some().then_some(&recorded_times);
            let others = Others { whole: &whole_times, beside, served, recorded };
            pipelines.push(timed(arm, &others, &times[who], blocks, equal[who])?);
        }
        let time = Summary::of(&whole_times.concat()).ok_or_else(|| Error::usage("no runs"))?;
        let recorded = recorded.and_then(|recorded| {
            let runs = recorded_times.len() * (BURST + UNCOUNTED);
            Some(Recorded {
                time: Summary::of(&recorded_times.concat())?,
                ratio: over(&recorded_times, &whole_times),
                played: (recorded.played() - played_before) as f64 / runs.max(1) as f64,
                equal: equal.last().copied().unwrap_or(false),
            })
        });
        let zmq_overhead_over_tensormq = zmq_over_tensormq(&pipelines);
        let whole = Whole { time };
        batches.push(Batch { rows, whole, recorded, pipelines, zmq_overhead_over_tensormq });
    }
    bar.finish_and_clear();
    Ok(Latency { batches })
}

/// Whether what is measured is recorded by now.
#[derive(Default)]
struct Recordings {
    before: Option<[u64; 2]>,
    rounds: usize,
}

impl Recordings {
    /// To be asked after each round: whether all runs of some rounds were played.
    fn are_made(&mut self, whole: &InOneSession, arms: &[Arm]) -> Result<bool> {
        let [mut runs, mut played] = [0, whole.played()];
        for arm in arms {
            for block in arm.pipeline.gpu_use()? {
                runs += block.runs;
                played += block.played;
            }
        }
        if let Some([runs_before, played_before]) = self.before.replace([runs, played]) {
            let own = (BURST + UNCOUNTED) as u64;
            let all = runs - runs_before + own;
            // The GPU may not be done with the last of each.
            let is_played = played - played_before + arms.len() as u64 >= all;
            self.rounds = if is_played { self.rounds + 1 } else { 0 };
        }
        Ok(self.rounds >= PLAYED_ROUNDS)
    }
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
    recorded: Option<&'a Rounds>,
}

/// The middle of a round, in seconds.
fn seconds(round: &[Duration]) -> f64 {
    middle(round.iter().map(Duration::as_secs_f64))
}

/// The median of one over the other, of neighbouring rounds.
fn over(own: &Rounds, other: &Rounds) -> f64 {
    middle(other.iter().zip(own).map(|(other, own)| seconds(own) / seconds(other)))
}

fn timed(
    arm: &Arm,
    others: &Others<'_>,
    times: &Rounds,
    blocks: Vec<BlockTime>,
    equal: bool,
) -> Result<Timed> {
    let beyond = |other: &Rounds| {
        let pairs = other.iter().zip(times);
        middle(pairs.map(|(other, own)| (seconds(own) - seconds(other)) * 1e6))
    };
    let overhead_us = beyond(others.whole);
    Ok(Timed {
        name: arm.name.to_owned(),
        time: Summary::of(&times.concat()).ok_or_else(|| Error::usage("no runs"))?,
        ratio: over(times, others.whole),
        over_served: others.served.map(|served| over(times, served)),
        over_recorded: others.recorded.map(|recorded| over(times, recorded)),
        overhead_us,
        overhead_per_block_us: overhead_us / (arm.hops + 1) as f64,
        overhead_per_hop_us: match arm.hops {
            0 => 0.0,
            hops => beyond(others.beside) / hops as f64,
        },
        hop_beyond_served_us: match arm.name {
            super::THREADS | super::SERVED => None,
            _ => others.served.map(|served| beyond(served) / arm.hops.max(1) as f64),
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
                played: (after.played - before.played) as f64 / runs,
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
        ">over it recorded",
        ">beyond it, µs",
        ">per block, µs",
        ">per hop, µs",
        ">per hop, over it served",
        ">beyond it, over TensorMQ's",
        "equal",
    ]);
    for batch in &latency.batches {
        let whole = &batch.whole.time;
        let shown = [whole.median_ms, whole.p99_ms].map(output::milliseconds);
        let dash = || "–".to_owned();
        let dashes = |count| std::iter::repeat_with(dash).take(count);
        let first = [batch.rows.to_string(), super::WHOLE.to_owned()];
        table.row(first.into_iter().chain(shown).chain(dashes(9)));
        if let Some(Recorded { time, ratio, equal, .. }) = &batch.recorded {
            let shown = [time.median_ms, time.p99_ms].map(output::milliseconds);
            let first = [batch.rows.to_string(), super::RECORDED.to_owned()];
            let row = first.into_iter().chain(shown).chain([format!("{ratio:.3}")]);
            let equal = if *equal { "yes" } else { "no" }.to_owned();
            table.row(row.chain(dashes(7)).chain([equal]));
        }
        for pipeline in &batch.pipelines {
            let Timed { name, time, ratio, overhead_us, equal, .. } = pipeline;
            let shown = [time.median_ms, time.p99_ms].map(output::milliseconds);
            table.row([batch.rows.to_string(), name.clone()].into_iter().chain(shown).chain([
                format!("{ratio:.3}"),
                super::shown(pipeline.over_served, |ratio| format!("{ratio:.3}")),
                super::shown(pipeline.over_recorded, |ratio| format!("{ratio:.3}")),
                format!("{overhead_us:.0}"),
                format!("{:.0}", pipeline.overhead_per_block_us),
                format!("{:.0}", pipeline.overhead_per_hop_us),
                super::shown(pipeline.hop_beyond_served_us, |hop| format!("{hop:.0}")),
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
        ">played",
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
                        .chain([format!("{:.2}", block.played)])
                        .chain(copies.map(|count| format!("{count:.1}"))),
                );
            }
        }
    }
    [times, table]
}
