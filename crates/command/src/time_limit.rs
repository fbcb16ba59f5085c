//! How long a search may go on. Planners have no clock; this is theirs.

use std::time::{Duration, Instant};

use tessera_core::Result;
use tessera_plan::SearchLimit;

use crate::interrupt;

/// Is reached once its time is up.
pub struct TimeLimit {
    end: Option<Instant>,
}

impl TimeLimit {
    /// From now on.
    pub fn new(limit: Duration) -> Self {
        Self { end: Instant::now().checked_add(limit) }
    }

    /// Whether the time is up, or the user interrupted: programs that were asked have to end, too.
    pub fn is_reached(&self) -> bool {
        interrupt::is_interrupted() || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Plans within a time limit, and says how many milliseconds that took.
pub fn plan_timed<T>(
    time_limit: Duration,
    plan: impl FnOnce(&SearchLimit<'_>) -> Result<T>,
) -> Result<(T, f64)> {
    let limit = TimeLimit::new(time_limit);
    let reached = || limit.is_reached();
    let start = Instant::now();
    let planned = plan(&SearchLimit::new(&reached))?;
    Ok((planned, start.elapsed().as_secs_f64() * 1e3))
}
