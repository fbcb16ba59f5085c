//! The clock that leases are measured by.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A time of the clock that goes on while this process is stopped, and while the machine sleeps:
/// the time since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseTime(Duration);

impl LeaseTime {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    /// So much later.
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// How long it is until then; nothing once it has passed.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }
}
