//! How the units of a node are, as it reports them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_deploy::{EntropyCounts, UnitId};

/// How a unit of a node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitReport {
    /// The unit.
    pub unit: UnitId,
    /// How it is.
    pub state: UnitState,
    /// Its instances.
    pub instances: Vec<InstanceDetail>,
    /// How many requests may be on their way to or through one instance.
    pub window: usize,
    /// How long a run of one row takes on one core; zero where that is not known.
    pub run_time: Duration,
    /// How long requests took to run there lately, where there were any.
    #[serde(default)]
    pub recent_time: Option<Duration>,
    /// How uncertain the requests were that it ran, where it is the head of an exit.
    #[serde(default, skip_serializing_if = "EntropyCounts::is_empty")]
    pub entropies: EntropyCounts,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Rows that are put together, where any are.
    pub max_batch_rows: Option<u64>,
}

/// How long a unit takes at a node that it could run at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitProfile {
    /// The unit, as it is named where it is at no node.
    pub unit: UnitId,
    /// How long a run of one row takes, or why that can't be known.
    pub time: Result<Duration, String>,
    /// Whether its weights are there.
    pub at_hand: bool,
}

/// What a gateway has done for a task, since it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTraffic {
    /// The task.
    pub task: String,
    /// Requests that were answered.
    pub answered: u64,
    /// How often each exit was taken, by name.
    pub exits: BTreeMap<String, u64>,
    /// Requests that wait or are on their way.
    pub in_flight: u64,
    /// How long they are on their way between hosts, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<TaskWay>,
}

/// How long requests of a task are on their way between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskWay {
    /// The units of their route.
    pub units: Vec<UnitId>,
    /// How long it was lately at least, all hops together.
    pub least: Duration,
}

/// How a unit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnitState {
    /// What it needs is fetched, or it is being loaded.
    Starting,
    /// It takes requests.
    Up,
    /// It can't be started, and why.
    Failed(String),
}

/// An instance of a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceDetail {
    /// Its name, which no other instance of the cluster ever has.
    pub name: String,
    /// starting, up, restarting, failed or stopped.
    pub state: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// Where it is reached, where it takes requests.
    pub address: Option<Value>,
    /// Its process, where it has one of its own.
    pub process: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// Requests that it ran.
    pub requests: u64,
    /// Where its weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightReport>,
}

/// Where the weights of an instance are, and how often they came and went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightReport {
    /// disk, waiting, loading, memory, leaving or gpu.
    pub place: String,
    /// How often they were loaded, where they come and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads: Option<u64>,
    /// How often they had to leave, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evictions: Option<u64>,
    /// How long a load took so far, in the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<f64>,
}
