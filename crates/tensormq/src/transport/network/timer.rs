//! A timer that the reactor watches.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tessera_core::{Error, Result, lock};

use crate::wait::Deadline;

pub(super) struct Timer {
    fd: OwnedFd,
    /// When it goes off, where it is set.
    due: Mutex<Option<Deadline>>,
}

impl Timer {
    pub(super) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| Error::from_io("a timer", &error.into()))?;
        Ok(Self { fd, due: Mutex::new(None) })
    }

    /// Goes off in `duration`, or before where it is set so already.
    pub(super) fn schedule_within(&self, duration: Duration) {
        let duration = duration.max(Duration::from_micros(1));
        let mut due = lock(&self.due);
        let then = Deadline::after(duration);
        if due.is_some_and(|due| due <= then) {
            return;
        }
        *due = Some(then);
        let value = Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // The descriptor and the time are valid: it can't fail.
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once).ok();
    }

    /// Where it went off, how late we look: for so long this process was not scheduled, or busy.
    /// Then it is set no more.
    pub(super) fn take_lateness(&self) -> Option<Duration> {
        rustix::io::read(&self.fd, &mut [0; 8]).ok()?;
        let due = lock(&self.due).take()?;
        let now = Deadline::now().nanoseconds();
        Some(Duration::from_nanos(now.saturating_sub(due.nanoseconds())))
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
