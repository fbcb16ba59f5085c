//! What a worker is doing, as its node learns it.

use serde::{Deserialize, Serialize};
use tessera_deploy::EntropyCounts;

use crate::executor::DeviceUse;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// For how long the longest run has been going on, in milliseconds; 0 while nothing runs.
    pub busy_ms: u64,
    /// For how long a run has gone on beyond its time, in milliseconds; 0 where none has.
    #[serde(default)]
    pub overdue_ms: u64,
    /// Requests that were run.
    pub done: u64,
    /// How long those took together, each with what it ran together with, in microseconds.
    #[serde(default)]
    pub run_us: u64,
    /// What it did on a device with memory of its own, and what it has there.
    #[serde(default)]
    pub device: DeviceUse,
    /// How uncertain the requests were that it ran, where it is the head of an exit.
    #[serde(default, skip_serializing_if = "EntropyCounts::is_empty")]
    pub entropies: EntropyCounts,
}
