//! How much of a path is shared, and over how many devices it goes.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tessera_core::Result;

use super::problem::{SharingProblem, SharingTask};

/// The indices of a task's path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathIndices {
    /// The task.
    pub task: String,
    /// Blocks of its path.
    pub blocks: usize,
    /// Those that it shares.
    pub shared: usize,
    /// Devices that its path goes over.
    pub devices: usize,
    /// Path sharing index: shared blocks in percent of its blocks. The thesis prints the own ones
    /// over the processes (4.11), and uses it like this.
    pub path_sharing_percent: f64,
    /// Path distribution index: devices in percent of its blocks (4.4).
    pub path_distribution_percent: f64,
}

/// The indices of every task.
pub fn path_indices(problem: &SharingProblem) -> Result<Vec<PathIndices>> {
    problem.check_consistency()?;
    let blocks = problem.blocks.iter();
    let devices = blocks.map(|block| (block.name.as_str(), block.device.as_deref())).collect();
    Ok(problem.tasks.iter().map(|task| of_task(&devices, task)).collect())
}

/// The path sharing index of all tasks together: the mean over tasks. None where there are no
/// tasks.
pub fn mean_path_sharing_percent(problem: &SharingProblem) -> Result<Option<f64>> {
    let indices = path_indices(problem)?;
    let count: f64 = problem.tasks.iter().map(|task| task.count).sum();
    let pairs = problem.tasks.iter().zip(&indices);
    let sum: f64 = pairs.map(|(task, index)| task.count * index.path_sharing_percent).sum();
    Ok((count > 0.0).then(|| sum / count))
}

fn of_task(devices: &HashMap<&str, Option<&str>>, task: &SharingTask) -> PathIndices {
    let passed = task.path.iter().map(|step| devices.get(step.block.as_str()).copied().flatten());
    let passed = passed.collect::<BTreeSet<_>>().len();
    let blocks = task.path.len();
    let shared = task.path.iter().filter(|step| !step.own).count();
    let percent = |part: usize| 100.0 * part as f64 / blocks as f64;
    PathIndices {
        task: task.name.clone(),
        blocks,
        shared,
        devices: passed,
        path_sharing_percent: percent(shared),
        path_distribution_percent: percent(passed),
    }
}
