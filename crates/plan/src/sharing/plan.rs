//! A plan: the units of each task, and what they cost.

use serde::{Deserialize, Serialize};

use super::problem::SharingStep;
use super::strategies::SharingStrategy;

/// A deployment, and what it costs. In a file, the strategy and the units of each task are enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharingPlan {
    /// What kind it is.
    pub strategy: SharingStrategy,
    /// The units; those that only differ in the weights of own blocks are one entry.
    #[serde(default)]
    pub units: Vec<SharingUnit>,
    /// How each task goes through them; tasks of which there are none are left out.
    pub tasks: Vec<TaskPlan>,
    /// The memory.
    #[serde(default)]
    pub memory: SharingMemory,
    /// The memory, and what the hops are worth.
    #[serde(default)]
    pub cost_bytes: f64,
    /// What no deployment of its kind can cost less than; as the cost where that is proved.
    #[serde(default)]
    pub bound_bytes: f64,
    /// Whether nothing of its kind costs less. False where a search was stopped.
    #[serde(default)]
    pub proved: bool,
}

/// Blocks that run as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharingUnit {
    /// Its blocks.
    pub blocks: Vec<String>,
    /// Who uses it.
    pub tasks: Vec<String>,
    /// Whether each of its tasks has one of its own.
    pub own: bool,
    /// How many there are.
    pub instances: f64,
    /// Weights of each.
    pub weight_bytes: f64,
    /// What each needs besides.
    pub overhead_bytes: f64,
}

/// How a task goes through units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// The task.
    pub task: String,
    /// Its steps, in units.
    pub units: Vec<Vec<SharingStep>>,
    /// Hops of a request.
    #[serde(default)]
    pub hops: usize,
    /// Time of a request that waits nowhere, where the times of all blocks are known.
    #[serde(default)]
    pub time_us: Option<f64>,
}

/// What memory is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharingMemory {
    /// Processes.
    pub processes: f64,
    /// Of the processes.
    pub context_bytes: f64,
    /// Weights.
    pub weight_bytes: f64,
    /// What blocks need besides while they run.
    pub overhead_bytes: f64,
    /// All of it.
    pub total_bytes: f64,
}

impl SharingMemory {
    /// What this saves against `other`, in percent; none where that takes nothing.
    pub fn saving_percent(&self, other: &Self) -> Option<f64> {
        (other.total_bytes > 0.0)
            .then(|| 100.0 * (other.total_bytes - self.total_bytes) / other.total_bytes)
    }
}
