//! Requests in one batch: whether a task wants that.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Requests that are at the same unit go into one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batching {
    /// Most rows of a batch.
    pub max_rows: usize,
    /// How long a request waits for others, as far as its deadline allows.
    pub max_wait: Duration,
}

/// Whether requests are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchingChoice {
    /// Where calibration shows that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always.
    On(Batching),
}
