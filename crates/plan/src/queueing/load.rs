//! What arrives at each block, how busy it is, and what that means for each task.

use serde::{Deserialize, Serialize};
use tessera_core::Result;

use super::problem::QueueingProblem;

/// How busy blocks are, and how long requests take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueingLoad {
    /// The blocks.
    pub blocks: Vec<BlockLoad>,
    /// The tasks.
    pub tasks: Vec<TaskLoad>,
    /// The block that is busiest; none where nothing arrives.
    pub bottleneck: Option<String>,
    /// What all rates could be multiplied with before the bottleneck is busy all the time; none
    /// where nothing arrives. Below it the system is stable.
    pub highest_scale: Option<f64>,
    /// Whether no queue grows without end.
    pub is_stable: bool,
}

/// How busy a block is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockLoad {
    /// The block.
    pub block: String,
    /// What arrives there from all tasks.
    pub arrivals_per_second: f64,
    /// How long a replica is busy with a request.
    pub busy_us: f64,
    /// How many there are.
    pub replicas: u32,
    /// How busy each is; stable below 1.
    pub utilisation: f64,
    /// How long a request waits, in the mean, and with batches how much longer it runs than alone;
    /// none where the queue grows without end.
    pub wait_us: Option<f64>,
}

/// What a task gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskLoad {
    /// The task.
    pub task: String,
    /// Requests to it.
    pub rate_per_second: f64,
    /// The rate that it must stay below, where all others stay as they are.
    pub highest_rate_per_second: f64,
    /// Time of a request that waits nowhere, in the mean over those that leave early and those that
    /// don't.
    pub unloaded_us: f64,
    /// Time of a request, in the mean; none where a queue on its path grows without end.
    pub latency_us: Option<f64>,
    /// What it may be.
    pub target_us: Option<f64>,
}

/// How busy the blocks are with the replicas that there are.
pub fn compute_load(problem: &QueueingProblem) -> Result<QueueingLoad> {
    problem.check_consistency()?;
    let replicas: Vec<u32> = problem.blocks.iter().map(|block| block.replicas).collect();
    Ok(load_with(problem, &replicas))
}

/// Arrivals at each block per second.
fn block_arrivals(problem: &QueueingProblem) -> Vec<f64> {
    let mut arrivals = vec![0.0; problem.blocks.len()];
    for steps in task_steps(problem) {
        for step in steps {
            arrivals[step.block] += step.per_second;
        }
    }
    arrivals
}

/// The replicas of each block that are busy in the mean.
pub(super) fn block_loads(problem: &QueueingProblem) -> Vec<f64> {
    let pairs = block_arrivals(problem).into_iter().zip(&problem.blocks);
    pairs.map(|(arrivals, block)| arrivals * block.busy_us() / 1e6).collect()
}

/// A block on the path of a task.
pub(super) struct QueueingStep {
    pub(super) block: usize,
    /// Share of the task's requests that get there.
    pub(super) reach: f64,
    per_second: f64,
}

/// The path of each task.
pub(super) fn task_steps(problem: &QueueingProblem) -> Vec<Vec<QueueingStep>> {
    let numbers = problem.block_numbers();
    let tasks = problem.tasks.iter().map(|task| {
        let path = task.path.iter().zip(task.reach_by_step());
        let steps = path.filter_map(|(name, reach)| {
            let block = *numbers.get(name.as_str())?;
            Some(QueueingStep { block, reach, per_second: reach * task.rate_per_second })
        });
        steps.collect()
    });
    tasks.collect()
}

pub(super) fn load_with(problem: &QueueingProblem, replicas: &[u32]) -> QueueingLoad {
    let (arrivals, loads, steps) =
        (block_arrivals(problem), block_loads(problem), task_steps(problem));
    let blocks: Vec<BlockLoad> = problem
        .blocks
        .iter()
        .enumerate()
        .map(|(number, block)| BlockLoad {
            block: block.name.clone(),
            arrivals_per_second: arrivals[number],
            busy_us: block.busy_us(),
            replicas: replicas[number],
            utilisation: loads[number] / f64::from(replicas[number]),
            wait_us: block.wait_us(loads[number], replicas[number]),
        })
        .collect();
    let busiest = blocks.iter().fold(None, |busiest: Option<&BlockLoad>, block| match busiest {
        Some(known) if known.utilisation >= block.utilisation => Some(known),
        _ => Some(block),
    });
    let busiest = busiest.filter(|block| block.utilisation > 0.0);
    let tasks = problem.tasks.iter().zip(&steps).map(|(task, steps)| {
        let mean = |of: &dyn Fn(&QueueingStep) -> Option<f64>| {
            steps.iter().map(|step| Some(step.reach * of(step)?)).sum::<Option<f64>>()
        };
        let served = mean(&|step| Some(problem.blocks[step.block].alone_us())).unwrap_or(0.0);
        let unloaded_us = task.transfer_us + served;
        // Where nobody gets to a block, it does not matter how long they would wait.
        let reached = |step: &QueueingStep| {
            if step.reach > 0.0 { blocks[step.block].wait_us } else { Some(0.0) }
        };
        let waited = mean(&reached);
        let highest = steps.iter().filter(|step| step.reach > 0.0).map(|step| {
            let block = &blocks[step.block];
            let others = block.arrivals_per_second - step.per_second;
            (f64::from(block.replicas) * 1e6 / block.busy_us - others).max(0.0) / step.reach
        });
        TaskLoad {
            task: task.name.clone(),
            rate_per_second: task.rate_per_second,
            highest_rate_per_second: highest.fold(f64::INFINITY, f64::min),
            unloaded_us,
            latency_us: waited.map(|waited| unloaded_us + waited),
            target_us: task.latency_us,
        }
    });
    QueueingLoad {
        tasks: tasks.collect(),
        bottleneck: busiest.map(|block| block.block.clone()),
        highest_scale: busiest.map(|block| 1.0 / block.utilisation),
        is_stable: busiest.is_none_or(|block| block.utilisation < 1.0),
        blocks,
    }
}
