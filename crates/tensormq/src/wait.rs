//! Time: deadlines that every process of a host reads alike, and how to wait.

use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// A point in time of this host's monotonic clock, which all its processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline {
    nanoseconds: u64,
}

impl Deadline {
    /// Now.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
        Self { nanoseconds: seconds.saturating_mul(1_000_000_000).saturating_add(rest) }
    }

    /// In `duration` from now.
    pub fn after(duration: Duration) -> Self {
        let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanoseconds: Self::now().nanoseconds.saturating_add(duration) }
    }

    /// From nanoseconds of the host's monotonic clock.
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { nanoseconds }
    }

    /// Nanoseconds of the host's monotonic clock.
    pub fn nanoseconds(self) -> u64 {
        self.nanoseconds
    }

    /// How long until then; zero where it has passed.
    pub fn remaining(self) -> Duration {
        Duration::from_nanos(self.nanoseconds.saturating_sub(Self::now().nanoseconds))
    }

    /// So much later.
    #[must_use]
    pub fn later_by(self, duration: Duration) -> Self {
        let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanoseconds: self.nanoseconds.saturating_add(duration) }
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }
}

/// What to do when there is nothing to receive, no room to send, or no buffer free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Say so at once.
    No,
    /// Wait until then.
    Until(Deadline),
    /// Wait for as long as it takes.
    Forever,
}

impl Wait {
    /// Waits for `duration`.
    pub fn at_most(duration: Duration) -> Self {
        Self::Until(Deadline::after(duration))
    }

    /// The time that a system call may sleep; `None` for ever.
    pub(crate) fn poll_timeout(self) -> Option<Timespec> {
        let duration = match self {
            Self::No => Duration::ZERO,
            Self::Until(deadline) => deadline.remaining(),
            Self::Forever => return None,
        };
        Some(Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        })
    }

    /// A part of the time, after which to look again: for what nobody notifies us of.
    ///
    /// A sender's own channel notifies it. Memory for copies, which all senders of a process share,
    /// does not.
    pub(crate) fn poll_slice(self) -> Self {
        let soon = Deadline::after(Duration::from_millis(10));
        match self {
            Self::No => Self::No,
            Self::Until(deadline) => Self::Until(deadline.min(soon)),
            Self::Forever => Self::Until(soon),
        }
    }

    /// Whether there is no more time to wait.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::No => true,
            Self::Until(deadline) => deadline.has_passed(),
            Self::Forever => false,
        }
    }
}
