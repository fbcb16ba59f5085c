//! What bounds runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What bounds runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Bytes that runs may take for themselves at a time; of a process, where instances are such.
    pub memory: Option<u64>,
    /// How long a run may take, whoever waits for it; `None`: as follows from the runs before it.
    pub time: Option<Duration>,
}
