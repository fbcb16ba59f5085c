//! How long a search may go on. Planners have no clock; this is theirs.

use std::time::{Duration, Instant};

use crate::interrupt;

/// Is reached once its time is up.
pub(crate) struct TimeLimit {
    end: Option<Instant>,
}

impl TimeLimit {
    /// From now on.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { end: Instant::now().checked_add(limit) }
    }

    /// Whether the time is up, or the user interrupted: programs that were asked have to end, too.
    pub(crate) fn reached(&self) -> bool {
        interrupt::interrupted() || self.end.is_some_and(|end| Instant::now() >= end)
    }
}
