//! The host's monotonic clock, which hops and requests are timed with, as a time of day.

use std::time::{SystemTime, UNIX_EPOCH};

use tessera_tensormq::Deadline;

/// How far the time of day is ahead of the monotonic clock. Measured once, so that spans of one
/// request stay in order should the time of day be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnixClock {
    unix_offset: u64,
}

impl UnixClock {
    pub(crate) fn new() -> Self {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let today = u64::try_from(today.as_nanos()).unwrap_or(u64::MAX);
        Self { unix_offset: today.saturating_sub(Deadline::now().nanoseconds()) }
    }

    /// Nanoseconds since 1970 of a time of the monotonic clock.
    pub(crate) fn unix_nanoseconds(self, at: u64) -> u64 {
        at.saturating_add(self.unix_offset)
    }

    /// Milliseconds since 1970 of a time of the monotonic clock.
    pub(crate) fn unix_milliseconds(self, at: u64) -> u64 {
        self.unix_nanoseconds(at) / 1_000_000
    }
}
