//! One client, batch by batch: a pipeline of blocks beside the whole model (figures 4.3, 4.4 and
//! 4.7 of the BlockFlow thesis).

use std::time::{Duration, Instant};
use tessera_report::{Table, format_milliseconds, output};

use super::GpuBenchSetup;
use super::pipeline::BenchPipeline;
use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::CopyCounts;
use tessera_node::{DeviceUse, LatencySummary, WholeModel};

/// Requests that follow each other, before it is the next one's turn; and how many before them
/// don't count: a client that asks again and again finds units awake.
const BURST: usize = 10;
const UNCOUNTED: usize = 3;

/// How long it may take on a GPU until runs are captured as CUDA graphs: they are not counted
/// before.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(20);
/// Rounds in a row that must have been replayed by then, all of their runs.
const REPLAYED_ROUNDS: usize = 3;

/// Times by round.
type Rounds = Vec<Vec<Duration>>;

/// All batches.
#[derive(Serialize)]
pub(crate) struct GpuLatencyReport {
    pub(crate) batches: Vec<LatencyBatch>,
}

/// Requests of so many rows.
#[derive(Serialize)]
pub(crate) struct LatencyBatch {
    pub(crate) rows: usize,
    pub(crate) whole: WholeModelTime,
    /// The same with runs that are captured as CUDA graphs.
    pub(crate) cuda_graph: Option<CudaGraphTime>,
    pub(crate) pipelines: Vec<PipelineTime>,
    /// Overhead of whole tensors through ZeroMQ over that of TensorMQ; `None` where TensorMQ has
    /// none.
    pub(crate) zmq_overhead_over_tensormq: Option<f64>,
}

/// The whole model in one session.
#[derive(Serialize)]
pub(crate) struct WholeModelTime {
    pub(crate) time: LatencySummary,
}

/// The whole model in one session whose runs are captured as CUDA graphs.
#[derive(Serialize)]
pub(crate) struct CudaGraphTime {
    pub(crate) time: LatencySummary,
    /// Median over the plain one's, of neighbouring rounds.
    pub(crate) ratio: f64,
    /// How many of its runs were replayed.
    pub(crate) replayed: f64,
    /// Whether all answers were the plain one's, bit for bit.
    pub(crate) equal: bool,
}

/// A pipeline that was asked.
#[derive(Serialize)]
pub(crate) struct PipelineTime {
    pub(crate) name: String,
    pub(crate) time: LatencySummary,
    /// Median over the whole model's, of neighbouring rounds.
    pub(crate) ratio: f64,
    /// Median over that of the whole model as one block in a process, which is served in the same
    /// way.
    pub(crate) over_served: Option<f64>,
    /// Median over that of the whole model in one session whose runs are captured as CUDA graphs.
    pub(crate) over_cuda_graph: Option<f64>,
    /// Beyond the whole model, of neighbouring rounds, in microseconds.
    pub(crate) overhead_us: f64,
    /// That, shared out among the blocks, as the thesis has it.
    pub(crate) overhead_per_block_us: f64,
    /// For units in processes, beyond the same units in one process; for those, beyond the whole
    /// model; shared out among the hops between units.
    pub(crate) overhead_per_hop_us: f64,
    /// For units in processes, beyond the whole model as one block in a process, which is served in
    /// the same way; shared out among the hops.
    pub(crate) hop_beyond_served_us: Option<f64>,
    pub(crate) blocks: Vec<BlockTime>,
    /// Whether all answers were the whole model's, bit for bit.
    pub(crate) equal: bool,
}

/// What a block took, in microseconds per request.
#[derive(Serialize)]
pub(crate) struct BlockTime {
    /// From when it was sent until a thread of its unit took it.
    pub(crate) waited_us: f64,
    /// The engine: on a GPU, launching its work.
    pub(crate) launch_us: f64,
    /// What else its unit's thread did.
    pub(crate) overhead_us: f64,
    /// The GPU itself.
    pub(crate) gpu_us: f64,
    /// How many of its runs were replayed from a CUDA graph.
    pub(crate) replayed: f64,
    /// Copies of its unit's process per request.
    pub(crate) to_device: f64,
    pub(crate) to_host: f64,
    pub(crate) on_device: f64,
}

/// A pipeline and how it is called.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    pub(crate) pipeline: BenchPipeline,
    /// Hops between its units.
    pub(crate) hops: usize,
}

pub(crate) fn measure_latency(
    setup: &GpuBenchSetup,
    arms: &[Arm],
    runs: usize,
) -> Result<GpuLatencyReport> {
    let bar = output::progress_bar((setup.batches.len() * (runs + BURST)) as u64, "latency");
    let mut batches = Vec::new();
    for &rows in &setup.batches {
        let given = setup.random_input(rows)?;
        let mut whole = setup.load_whole_model()?;
        let mut cuda_graph = setup.load_whole_cuda_graph()?;
        let run_whole = |whole: &mut WholeModel| -> Result<(Duration, Tensor)> {
            let start = Instant::now();
            let outputs = whole.infer_outputs(std::slice::from_ref(&given))?;
            let took = start.elapsed();
            let output = outputs.into_values().next();
            Ok((took, output.ok_or_else(|| Error::engine("the whole model gave nothing"))?))
        };
        let inputs: Vec<Tensor> =
            arms.iter().map(|arm| arm.pipeline.copy_input(&given)).collect::<Result<_>>()?;
        // The arms, the whole model, and the same as a CUDA graph.
        let all = arms.len() + 1 + usize::from(cuda_graph.is_some());
        let mut times: Vec<Rounds> = vec![Vec::new(); arms.len() + 2];
        let mut equal = vec![true; arms.len() + 2];
        let (mut before, mut replayed_before) = (Vec::new(), 0);
        let (_, expected) = run_whole(&mut whole)?;
        // What comes first is for warming up.
        let (begun, rounds) = (Instant::now(), runs.div_ceil(BURST));
        let (mut round, mut warm_up) = (0, CudaGraphWarmUp::default());
        while round <= rounds {
            if round == 1 {
                for arm in arms {
                    arm.pipeline.take_hop_timings();
                }
                before = arms.iter().map(|arm| arm.pipeline.gpu_usage()).collect::<Result<_>>()?;
                replayed_before = cuda_graph.as_ref().map_or(0, WholeModel::replayed_runs);
            }
            // In turns, and who goes first changes too.
            for turn in 0..all {
                let who = (turn + round) % all;
                let mut took = Vec::with_capacity(BURST);
                for number in 0..BURST + UNCOUNTED {
                    let time = match arms.get(who) {
                        Some(arm) => {
                            let (time, answer) = arm.pipeline.infer_once(&inputs[who])?;
                            let found = answer.outputs.first().map(|(_, tensor)| tensor);
                            equal[who] &= found.and_then(Tensor::bytes) == expected.bytes();
                            time
                        }
                        None if who == arms.len() => run_whole(&mut whole)?.0,
                        None => match &mut cuda_graph {
                            Some(cuda_graph) => {
                                let (time, found) = run_whole(cuda_graph)?;
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
            let is_warm = match &cuda_graph {
                Some(whole) if round == 0 && begun.elapsed() < CAPTURE_TIMEOUT => {
                    warm_up.is_replaying(whole, arms)?
                }
                _ => true,
            };
            if is_warm {
                round += 1;
                bar.inc(BURST as u64);
            }
        }
        let cuda_graph_times = times.pop().unwrap_or_default();
        let whole_times = times.pop().unwrap_or_default();
        let mut pipelines = Vec::new();
        for (who, arm) in arms.iter().enumerate() {
            let after = arm.pipeline.gpu_usage()?;
            let mut blocks = block_times(arm, &before[who], &after);
            if arm.name == super::THREADS {
                let own = (whole_times.len() + cuda_graph_times.len()) * (BURST + UNCOUNTED);
                in_one_process(&mut blocks, own, times[who].len() * (BURST + UNCOUNTED));
            }
            let threads = arms.iter().position(|arm| arm.name == super::THREADS);
            let beside = threads.filter(|&threads| threads != who).map(|threads| &times[threads]);
            let beside = beside.unwrap_or(&whole_times);
            let served = arms.iter().position(|arm| arm.name == super::SERVED);
            let served = served.map(|served| &times[served]);
            let cuda_graph = cuda_graph.is_some().then_some(&cuda_graph_times);
            let others = ComparedTimes { whole: &whole_times, beside, served, cuda_graph };
            pipelines.push(pipeline_time(arm, &others, &times[who], blocks, equal[who])?);
        }
        let time = LatencySummary::from_times(&whole_times.concat())
            .ok_or_else(|| Error::usage("no runs"))?;
        let cuda_graph = cuda_graph.and_then(|cuda_graph| {
            let runs = cuda_graph_times.len() * (BURST + UNCOUNTED);
            Some(CudaGraphTime {
                time: LatencySummary::from_times(&cuda_graph_times.concat())?,
                ratio: median_ratio(&cuda_graph_times, &whole_times),
                replayed: (cuda_graph.replayed_runs() - replayed_before) as f64
                    / runs.max(1) as f64,
                equal: equal.last().copied().unwrap_or(false),
            })
        });
        let zmq_overhead_over_tensormq = zmq_over_tensormq(&pipelines);
        let whole = WholeModelTime { time };
        batches.push(LatencyBatch {
            rows,
            whole,
            cuda_graph,
            pipelines,
            zmq_overhead_over_tensormq,
        });
    }
    bar.finish_and_clear();
    Ok(GpuLatencyReport { batches })
}

/// Whether what is measured is captured by now.
#[derive(Default)]
struct CudaGraphWarmUp {
    before: Option<[u64; 2]>,
    rounds: usize,
}

impl CudaGraphWarmUp {
    /// To be asked after each round: whether all runs of some rounds were replayed.
    fn is_replaying(&mut self, whole: &WholeModel, arms: &[Arm]) -> Result<bool> {
        let [mut runs, mut replayed] = [0, whole.replayed_runs()];
        for arm in arms {
            for unit in arm.pipeline.gpu_usage()? {
                runs += unit.runs;
                replayed += unit.replayed_runs;
            }
        }
        if let Some([runs_before, replayed_before]) = self.before.replace([runs, replayed]) {
            let own = (BURST + UNCOUNTED) as u64;
            let all = runs - runs_before + own;
            // The GPU may not be done with the last of each.
            let is_replayed = replayed - replayed_before + arms.len() as u64 >= all;
            self.rounds = if is_replayed { self.rounds + 1 } else { 0 };
        }
        Ok(self.rounds >= REPLAYED_ROUNDS)
    }
}

/// Overhead of whole tensors through ZeroMQ over that of TensorMQ.
fn zmq_over_tensormq(pipelines: &[PipelineTime]) -> Option<f64> {
    let overhead = |name| pipelines.iter().find(|arm| arm.name == name).map(|arm| arm.overhead_us);
    let tensormq = overhead(super::PROCESSES).filter(|&overhead| overhead > 0.0)?;
    Some(overhead(super::ZMQ)? / tensormq)
}

/// What a pipeline is compared with.
struct ComparedTimes<'a> {
    whole: &'a Rounds,
    beside: &'a Rounds,
    served: Option<&'a Rounds>,
    cuda_graph: Option<&'a Rounds>,
}

/// The middle of a round, in seconds.
fn median_seconds(round: &[Duration]) -> f64 {
    median_of_values(round.iter().map(Duration::as_secs_f64))
}

/// The median of one over the other, of neighbouring rounds.
fn median_ratio(own: &Rounds, other: &Rounds) -> f64 {
    median_of_values(
        other.iter().zip(own).map(|(other, own)| median_seconds(own) / median_seconds(other)),
    )
}

fn pipeline_time(
    arm: &Arm,
    others: &ComparedTimes<'_>,
    times: &Rounds,
    blocks: Vec<BlockTime>,
    equal: bool,
) -> Result<PipelineTime> {
    let beyond = |other: &Rounds| {
        let pairs = other.iter().zip(times);
        median_of_values(
            pairs.map(|(other, own)| (median_seconds(own) - median_seconds(other)) * 1e6),
        )
    };
    let overhead_us = beyond(others.whole);
    Ok(PipelineTime {
        name: arm.name.to_owned(),
        time: LatencySummary::from_times(&times.concat()).ok_or_else(|| Error::usage("no runs"))?,
        ratio: median_ratio(times, others.whole),
        over_served: others.served.map(|served| median_ratio(times, served)),
        over_cuda_graph: others.cuda_graph.map(|cuda_graph| median_ratio(times, cuda_graph)),
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
pub(crate) fn median_of_values(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    tessera_node::median_of_sorted(&values).unwrap_or(f64::NAN)
}

/// What units did between two readings.
fn block_times(arm: &Arm, before: &[DeviceUse], after: &[DeviceUse]) -> Vec<BlockTime> {
    let hop_timings = arm.pipeline.take_hop_timings();
    let count = hop_timings.len().max(1) as f64;
    let places = after.iter().zip(before).enumerate();
    places
        .map(|(place, (after, before))| {
            let of = |what: fn(&tessera_deploy::HopTiming) -> u64| {
                let found = hop_timings.iter().filter_map(|all| all.get(place));
                median_of_values(found.map(|timing| what(timing) as f64 / 1e3))
            };
            let runs = (after.runs - before.runs).max(1) as f64;
            let copied = |what: fn(&CopyCounts) -> u64| {
                (what(&after.copies) - what(&before.copies)) as f64 / count
            };
            BlockTime {
                waited_us: of(|timing| timing.waited),
                launch_us: (after.launch_nanoseconds - before.launch_nanoseconds) as f64
                    / 1e3
                    / runs,
                overhead_us: of(|timing| timing.overhead),
                replayed: (after.replayed_runs - before.replayed_runs) as f64 / runs,
                gpu_us: (after.nanoseconds - before.nanoseconds) as f64 / 1e3 / runs,
                to_device: copied(|copies| copies.to_device),
                to_host: copied(|copies| copies.to_host),
                on_device: copied(|copies| copies.on_device),
            }
        })
        .collect()
}

/// Copies of units in one process, which counts them for all: without those of the whole model,
/// which ran there too. One each way belongs to the ends; the rest is shown in between.
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

/// The times, and what units did.
pub(crate) fn latency_tables(latency: &GpuLatencyReport) -> [Table; 2] {
    let mut table = Table::new(&[
        ">rows",
        "how",
        ">median",
        ">p99",
        ">over the whole",
        ">over it served",
        ">over its CUDA graph",
        ">beyond it, µs",
        ">per block, µs",
        ">per hop, µs",
        ">per hop, over it served",
        ">beyond it, over TensorMQ's",
        "equal",
    ]);
    for batch in &latency.batches {
        let whole = &batch.whole.time;
        let shown = [whole.median_ms, whole.p99_ms].map(format_milliseconds);
        let dash = || "–".to_owned();
        let dashes = |count| std::iter::repeat_with(dash).take(count);
        let first = [batch.rows.to_string(), super::WHOLE_MODEL.to_owned()];
        table.add_row(first.into_iter().chain(shown).chain(dashes(9)));
        if let Some(CudaGraphTime { time, ratio, equal, .. }) = &batch.cuda_graph {
            let shown = [time.median_ms, time.p99_ms].map(format_milliseconds);
            let first = [batch.rows.to_string(), super::WHOLE_CUDA_GRAPH.to_owned()];
            let row = first.into_iter().chain(shown).chain([format!("{ratio:.3}")]);
            let equal = if *equal { "yes" } else { "no" }.to_owned();
            table.add_row(row.chain(dashes(7)).chain([equal]));
        }
        for pipeline in &batch.pipelines {
            let PipelineTime { name, time, ratio, overhead_us, equal, .. } = pipeline;
            let shown = [time.median_ms, time.p99_ms].map(format_milliseconds);
            table.add_row([batch.rows.to_string(), name.clone()].into_iter().chain(shown).chain([
                format!("{ratio:.3}"),
                super::or_dash(pipeline.over_served, |ratio| format!("{ratio:.3}")),
                super::or_dash(pipeline.over_cuda_graph, |ratio| format!("{ratio:.3}")),
                format!("{overhead_us:.0}"),
                format!("{:.0}", pipeline.overhead_per_block_us),
                format!("{:.0}", pipeline.overhead_per_hop_us),
                super::or_dash(pipeline.hop_beyond_served_us, |hop| format!("{hop:.0}")),
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
    let mut table = Table::new(&[
        ">rows",
        "how",
        ">block",
        ">waited, µs",
        ">launch, µs",
        ">overhead, µs",
        ">GPU, µs",
        ">replayed",
        ">to GPU",
        ">to host",
        ">on GPU",
    ]);
    for batch in &latency.batches {
        for pipeline in &batch.pipelines {
            for (number, block) in pipeline.blocks.iter().enumerate() {
                let times = [block.waited_us, block.launch_us, block.overhead_us, block.gpu_us];
                let copies = [block.to_device, block.to_host, block.on_device];
                table.add_row(
                    [batch.rows.to_string(), pipeline.name.clone(), number.to_string()]
                        .into_iter()
                        .chain(times.map(|time| format!("{time:.0}")))
                        .chain([format!("{:.2}", block.replayed)])
                        .chain(copies.map(|count| format!("{count:.1}"))),
                );
            }
        }
    }
    [times, table]
}
