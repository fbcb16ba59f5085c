//! What a plan costs: the streams of loading, forwarding and running, simulated.
//!
//! Every GPU that loads has one load stream, which copies its layers in the order in which they
//! run. A GPU that helps has a migration stream besides, which forwards a layer to the target once
//! it is there. The target's execution stream runs the layers in order, and waits for the weights
//! of each that is loaded. GPUs that load below one PCIe switch share its bandwidth: while k of
//! them load, each goes at a k-th of the rate.
//!
//! A layer that is read from the host takes the bus from those that are loaded to the target behind
//! it, as far as the problem says (`direct_contention`). In the paper's own model it takes nothing.
//! What is behind it and was loaded before it runs counts as held up, too.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::problem::{ResidencyProblem, exceeds_memory};
use super::topology::ServerTopology;

/// Where the weights of a layer are while it runs for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Residency {
    /// In the memory of the GPU that runs the model.
    Loaded {
        /// The GPU by which they come, by number: the target itself, or one that forwards them.
        through: usize,
    },
    /// On the host, from where the GPU reads them.
    Direct,
}

/// Where the weights of each layer are, and how they come there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidencyPlan {
    /// Per layer; a layer without weights counts as loaded through the target.
    pub layers: Vec<Residency>,
    /// Whether a layer runs as soon as it is there, instead of once all are.
    pub pipelined: bool,
}

impl ResidencyPlan {
    /// A plan that loads all layers through the target.
    pub(super) fn loading_all(problem: &ResidencyProblem, pipelined: bool) -> Self {
        let through = problem.target_index();
        Self { layers: vec![Residency::Loaded { through }; problem.layers.len()], pipelined }
    }

    /// How many layers are left on the host.
    pub fn direct_layers(&self) -> usize {
        self.layers.iter().filter(|&&layer| layer == Residency::Direct).count()
    }

    /// How many GPUs load: the target, and those that help it.
    pub fn loading_gpus(&self, problem: &ResidencyProblem) -> usize {
        let target = problem.target_index();
        let helps = |gpu: &usize| self.layers.contains(&Residency::Loaded { through: *gpu });
        1 + (0..problem.gpus.len()).filter(|&gpu| gpu != target).filter(helps).count()
    }

    /// Refuses a plan that is not for this problem, or that the target's memory does not hold.
    pub fn check_against(&self, problem: &ResidencyProblem) -> Result<()> {
        let (given, expected) = (self.layers.len(), problem.layers.len());
        if given != expected {
            return Err(Error::invalid(format!(
                "plan.layers: {given} layers, expected {expected} as in the problem"
            )));
        }
        let server = ServerTopology::from_problem(problem);
        let mut bytes = 0.0;
        for (number, (layer, residency)) in problem.layers.iter().zip(&self.layers).enumerate() {
            let wrong = |what: String| {
                Err(Error::invalid(format!("plan.layers[{number}]: \"{}\" {what}", layer.name)))
            };
            match *residency {
                Residency::Direct if layer.bytes <= 0.0 => {
                    return wrong("has no weights to read from the host".to_owned());
                }
                Residency::Direct if layer.direct_time().is_none() => {
                    return wrong("can't be read from the host".to_owned());
                }
                Residency::Direct => {}
                Residency::Loaded { through } => {
                    bytes += layer.bytes;
                    let Some(gpu) = problem.gpus.get(through) else {
                        return wrong(format!("comes through GPU {through}, which is not there"));
                    };
                    if through != server.target && server.links[through].is_none() {
                        let target = &problem.gpus[server.target].name;
                        return wrong(format!(
                            "comes through GPU \"{}\", which has no NVLink to \"{target}\"",
                            gpu.name
                        ));
                    }
                }
            }
        }
        match problem.target_memory() {
            Some(memory) if exceeds_memory(bytes, memory) => Err(Error::invalid(format!(
                "plan.layers: {bytes} bytes are loaded, and GPU \"{}\" has {memory}",
                problem.gpus[server.target].name
            ))),
            _ => Ok(()),
        }
    }
}

/// From when to when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSpan {
    /// Its start.
    pub start_us: f64,
    /// Its end.
    pub end_us: f64,
}

/// A layer, as it was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutedLayer {
    /// Its copy from the host; none where the weights stay there, and without weights.
    pub load: Option<TimeSpan>,
    /// Its way over NVLink; none where it comes directly.
    pub forward: Option<TimeSpan>,
    /// Start of its run.
    pub start_us: f64,
    /// End of its run.
    pub end_us: f64,
    /// How long the GPU waited for its weights.
    pub stall_us: f64,
}

/// A model's first run under a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResidencyRun {
    /// Time to the result.
    pub total_us: f64,
    /// How much of it the GPU waited for weights.
    pub stall_us: f64,
    /// Weights in the target's memory at the end.
    pub gpu_bytes: f64,
    /// Per GPU, the most bytes that were there on their way to the target.
    pub temporary_bytes: Vec<f64>,
    /// The layers.
    pub layers: Vec<ExecutedLayer>,
}

/// Simulates a plan. The problem has passed its check; a plan that breaks a limit is refused.
pub fn simulate_residency(
    problem: &ResidencyProblem,
    plan: &ResidencyPlan,
) -> Result<ResidencyRun> {
    plan.check_against(problem)?;
    let server = ServerTopology::from_problem(problem);
    let loads = load_spans(problem, &server, plan);
    let forwards = forward_spans(problem, &server, plan, &loads);
    let temporary_bytes = (0..problem.gpus.len())
        .map(|gpu| peak_temporary_bytes(problem, plan, gpu, &loads, &forwards))
        .collect::<Vec<_>>();
    for (gpu, &bytes) in problem.gpus.iter().zip(&temporary_bytes) {
        match gpu.memory_bytes {
            Some(memory) if bytes > 0.0 && exceeds_memory(bytes, memory) => {
                return Err(Error::invalid(format!(
                    "plan.layers: {bytes} bytes pass through GPU \"{}\" at the same time, and it has \
                     {memory}",
                    gpu.name
                )));
            }
            _ => {}
        }
    }
    let arrival = |layer: usize| {
        let last: Option<TimeSpan> = forwards[layer].or(loads[layer]);
        last.map_or(0.0, |span| span.end_us)
    };
    let all_there = (0..plan.layers.len()).map(arrival).fold(0.0, f64::max);
    let (mut clock, mut stall_us, mut gpu_bytes) = (0.0_f64, 0.0, 0.0);
    let mut layers = Vec::with_capacity(plan.layers.len());
    for (number, (layer, residency)) in problem.layers.iter().zip(&plan.layers).enumerate() {
        let time = match residency {
            Residency::Direct => layer.direct_time().unwrap_or(layer.in_memory_us),
            Residency::Loaded { .. } => {
                gpu_bytes += layer.bytes;
                layer.in_memory_us
            }
        };
        let ready = if plan.pipelined { arrival(number) } else { all_there };
        let start_us = clock.max(ready);
        layers.push(ExecutedLayer {
            load: loads[number],
            forward: forwards[number],
            start_us,
            end_us: start_us + time,
            stall_us: start_us - clock,
        });
        stall_us += start_us - clock;
        clock = start_us + time;
    }
    Ok(ResidencyRun { total_us: clock, stall_us, gpu_bytes, temporary_bytes, layers })
}

/// When each layer is copied from the host.
fn load_spans(
    problem: &ResidencyProblem,
    server: &ServerTopology,
    plan: &ResidencyPlan,
) -> Vec<Option<TimeSpan>> {
    let mut spans = vec![None; plan.layers.len()];
    let mut queues: Vec<Vec<QueuedLoad>> = vec![Vec::new(); problem.gpus.len()];
    let mut held_up_us = 0.0;
    for (layer, (known, residency)) in problem.layers.iter().zip(&plan.layers).enumerate() {
        match *residency {
            Residency::Direct => held_up_us += problem.hold_up_us(known),
            Residency::Loaded { through } if known.bytes > 0.0 => {
                let is_held = through == server.target;
                let wait_us = if is_held { std::mem::take(&mut held_up_us) } else { 0.0 };
                queues[through].push(QueuedLoad { layer, time_us: wait_us + known.load_us });
            }
            Residency::Loaded { .. } => {}
        }
    }
    for switch in 0..problem.gpus.len() {
        let below = |&gpu: &usize| server.switches[gpu] == switch;
        let queues: Vec<&[QueuedLoad]> =
            (0..problem.gpus.len()).filter(below).map(|gpu| queues[gpu].as_slice()).collect();
        share_switch(&queues, &mut spans);
    }
    spans
}

/// A layer to be copied, and how long that takes, with what holds it up.
#[derive(Clone, Copy)]
struct QueuedLoad {
    layer: usize,
    time_us: f64,
}

/// A load stream that is under way: what is left of it, and of the layer that it copies.
struct LoadStream<'a> {
    queue: &'a [QueuedLoad],
    since_us: f64,
    left_us: f64,
}

/// Copies queues of layers over one switch, which all that still load share evenly.
fn share_switch(queues: &[&[QueuedLoad]], spans: &mut [Option<TimeSpan>]) {
    let begin = |queue: &&'_ [QueuedLoad]| Some(queue.first()?.time_us);
    let mut streams: Vec<LoadStream<'_>> = queues
        .iter()
        .filter_map(|queue| Some(LoadStream { queue, since_us: 0.0, left_us: begin(queue)? }))
        .collect();
    let mut now = 0.0;
    while !streams.is_empty() {
        let sharing = streams.len() as f64;
        let step = streams.iter().map(|stream| stream.left_us).fold(f64::INFINITY, f64::min);
        now += step * sharing;
        streams.retain_mut(|stream| {
            let [load, rest @ ..] = stream.queue else { return false };
            stream.left_us -= step;
            // Those that end together end together, whatever rounding left of them.
            if stream.left_us > 1e-12 * load.time_us {
                return true;
            }
            spans[load.layer] = Some(TimeSpan { start_us: stream.since_us, end_us: now });
            stream.queue = rest;
            stream.since_us = now;
            stream.left_us = rest.first().map_or(0.0, |next| next.time_us);
            !rest.is_empty()
        });
    }
}

/// When each layer that another GPU loads goes over its link.
fn forward_spans(
    problem: &ResidencyProblem,
    server: &ServerTopology,
    plan: &ResidencyPlan,
    loads: &[Option<TimeSpan>],
) -> Vec<Option<TimeSpan>> {
    let mut clocks = vec![0.0_f64; problem.gpus.len()];
    let forward = |(number, residency): (usize, &Residency)| {
        let Residency::Loaded { through } = *residency else { return None };
        if through == server.target {
            return None;
        }
        let start_us = clocks[through].max(loads[number]?.end_us);
        let end_us = start_us + problem.layers[number].bytes * server.links[through]?;
        clocks[through] = end_us;
        Some(TimeSpan { start_us, end_us })
    };
    plan.layers.iter().enumerate().map(forward).collect()
}

/// The most bytes that are on a GPU at a time on their way to the target.
fn peak_temporary_bytes(
    problem: &ResidencyProblem,
    plan: &ResidencyPlan,
    gpu: usize,
    loads: &[Option<TimeSpan>],
    forwards: &[Option<TimeSpan>],
) -> f64 {
    let mut gone = 0;
    let (mut held, mut most) = (0.0, 0.0_f64);
    let through = |layer: &usize| plan.layers[*layer] == Residency::Loaded { through: gpu };
    let passing: Vec<usize> =
        (0..plan.layers.len()).filter(through).filter(|&layer| forwards[layer].is_some()).collect();
    // Both streams keep the order, so that who comes first goes first.
    for (position, &layer) in passing.iter().enumerate() {
        let start = loads[layer].map_or(0.0, |span| span.start_us);
        let left = |layer: usize| forwards[layer].is_some_and(|span| span.end_us <= start);
        while gone < position && left(passing[gone]) {
            held -= problem.layers[passing[gone]].bytes;
            gone += 1;
        }
        held += problem.layers[layer].bytes;
        most = most.max(held);
    }
    most
}
