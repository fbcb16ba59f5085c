//! What is told once a second of everything that is served.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was done in a second, and how everything is at its end. Percentiles are of the last 5 to 10
/// seconds in which somebody listened; they are missing where nothing was answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveReport {
    /// Milliseconds since 1970.
    pub at: u64,
    /// What rates are of.
    pub seconds: f64,
    /// Of all tasks.
    #[serde(flatten)]
    pub rates: LiveRates,
    /// Of all answers.
    #[serde(flatten)]
    pub times: LiveTimes,
    /// Requests that wait at the dispatcher.
    pub waiting: usize,
    /// The tasks there are.
    pub tasks: Vec<LiveTask>,
    /// The units there are.
    pub units: Vec<LiveUnit>,
    /// What weights take, by the device that has them.
    pub memory: Vec<LiveMemory>,
}

/// Requests a second, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LiveRates {
    /// With an answer.
    pub answered_per_second: f64,
    /// Of these, with that of an exit that was not certain enough.
    pub degraded_per_second: f64,
    /// With an error.
    pub failed_per_second: f64,
    /// Refused, as they could not be finished in time.
    pub refused_per_second: f64,
    /// Whose clients went away.
    pub cancelled_per_second: f64,
}

/// How long answers took, from end to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LiveTimes {
    /// Half of them took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// Nine of ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_ms: Option<f64>,
    /// 99 of a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveTask {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it answers.
    pub ready: bool,
    /// Requests of it that wait or are on their way.
    pub in_flight: usize,
    /// How its requests ended.
    #[serde(flatten)]
    pub rates: LiveRates,
    /// How long its answers took.
    #[serde(flatten)]
    pub times: LiveTimes,
    /// Rows a second that left, by exit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exits: BTreeMap<String, f64>,
    /// Rows a second that did not leave, where the task has exits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stayed_per_second: Option<f64>,
}

/// A unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveUnit {
    /// Its name.
    pub name: String,
    /// The tasks that use it; several share it.
    pub tasks: Vec<String>,
    /// What it runs on.
    pub device: String,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// How many instances there are, and how many of them take requests.
    pub instances: usize,
    /// See above.
    pub up: usize,
    /// How often they were started again.
    pub restarts: u64,
    /// Requests that are on their way to them or through them.
    pub in_flight: usize,
    /// Requests a second that passed it.
    pub requests_per_second: f64,
    /// Runs a second; those of several requests are one.
    pub runs_per_second: f64,
    /// Instances that were computing, on average.
    pub busy: f64,
    /// How long requests waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_p50_ms: Option<f64>,
    /// See above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_p99_ms: Option<f64>,
    /// How long runs took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computing_p50_ms: Option<f64>,
    /// See above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computing_p99_ms: Option<f64>,
    /// How many instances have their weights where, where these come and go.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weight_places: BTreeMap<String, usize>,
}

/// What weights take of the memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveMemory {
    /// Which.
    pub device: String,
    /// Bytes of the weights of its units, each once.
    pub weight_bytes: u64,
    /// The same if every task had units of its own.
    pub apart_bytes: u64,
    /// What sharing saves of that.
    pub saved_bytes: u64,
    /// Bytes that weights may take, where that is bounded, and those that they take now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// See above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}
