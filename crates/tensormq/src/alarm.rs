//! Alarms, so that nobody sleeps on.
//!
//! An alarm is a word that a sleeper sets before it looks once more and sleeps, and that the other
//! side looks at after it has changed something. Both sides have a full fence between their store
//! and their load, so that at least one of them sees the other's: either the sleeper finds what it
//! waits for, or the other side finds it asleep and wakes it. A busy receiver costs no system call.
//!
//! `tests/handover.rs` compiles this file against loom and goes through the interleavings.

use crate::sync::{AtomicU32, Ordering, fence};

/// Says that its setter is about to sleep. To be followed by one more look.
pub(crate) fn arm_alarm(alarm: &AtomicU32) {
    alarm.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Says that its setter is awake again.
pub(crate) fn disarm_alarm(alarm: &AtomicU32) {
    alarm.store(0, Ordering::Relaxed);
}

/// To be called after a change: whether somebody sleeps and must be woken. Only one caller is told.
#[must_use]
pub(crate) fn claim_wakeup(alarm: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    alarm.load(Ordering::Relaxed) != 0
        && alarm.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
