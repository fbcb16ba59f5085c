//! How the units of a node are, as it reports them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_deploy::UnitId;

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
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Rows that are put together, where any are.
    pub max_batch_rows: Option<u64>,
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
}
