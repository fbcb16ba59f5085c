//! A task that is to be served: what fusion, units and routes are made from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::Device;
use tessera_graph::BlockGraph;

use crate::accuracy_goal::AccuracyGoal;
use crate::batching::BatchingChoice;
use crate::isolation::Isolation;
use crate::residency_choice::ResidencyChoice;

/// Most rows of one request where a task says nothing.
const DEFAULT_MAX_ROWS: usize = 128;

/// How a task is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSettings {
    /// How long a request may take where the client says nothing.
    pub deadline: Duration,
    /// Whether an exit that was not certain enough may answer where the rest fails or takes too
    /// long.
    pub degrade: bool,
    /// How much of the cores it gets beside others that want them.
    pub weight: u64,
    /// What keeps its units apart.
    pub isolation: Isolation,
    /// How many instances of each of its units there are.
    pub replicas: usize,
    /// What its units run on.
    pub device: Device,
    /// Blocks that run on something else, by their number in its path.
    pub device_overrides: BTreeMap<usize, Device>,
    /// The nodes that its blocks run at, by their number in its path; empty where there is one host.
    pub nodes: Vec<Arc<str>>,
    /// The node that its requests come from, where it says so and there are several.
    pub input_node: Option<Arc<str>>,
    /// The accuracy that it must have, where thresholds are chosen for it.
    pub accuracy_goal: Option<AccuracyGoal>,
    /// Whether requests are put together.
    pub batching: BatchingChoice,
    /// Most rows of one request.
    pub max_rows: usize,
    /// Where the weights of its units are to be while nobody uses them.
    pub residency: ResidencyChoice,
}

impl TaskSettings {
    /// What a block of its path runs on.
    pub fn device_of(&self, block: usize) -> Device {
        self.device_overrides.get(&block).copied().unwrap_or(self.device)
    }

    /// The node that a block of its path runs at; `None` where there is one host.
    pub fn node_of(&self, block: usize) -> Option<&Arc<str>> {
        self.nodes.get(block)
    }
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            degrade: false,
            weight: 1,
            isolation: Isolation::Thread,
            replicas: 1,
            device: Device::Cpu,
            device_overrides: BTreeMap::new(),
            nodes: Vec::new(),
            input_node: None,
            accuracy_goal: None,
            batching: BatchingChoice::Auto,
            max_rows: DEFAULT_MAX_ROWS,
            residency: ResidencyChoice::Auto,
        }
    }
}

/// A task that is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedTask {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its path through blocks.
    pub graph: BlockGraph,
    /// How it is to be served.
    pub settings: TaskSettings,
}
