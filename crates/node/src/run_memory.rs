//! Memory for runs: what one of them may take for itself, and all at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tessera_tensormq::{Deadline, Wait};

/// Runs that take less than this are not counted: there can't be so many of them at a time.
const SMALLEST_COUNTED: u64 = 16 << 20;

/// How long ago the last run must be that was counted.
const CALM_TIME: Duration = Duration::from_secs(5);

/// What runs may take at the same time.
pub struct RunMemory {
    limit: u64,
    used: Mutex<u64>,
    freed: Condvar,
    /// When a run that is counted last began, in milliseconds since this was made.
    last_counted: AtomicU64,
    made: Instant,
}

impl Default for RunMemory {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl RunMemory {
    /// Memory for runs that take so many bytes at most, all together.
    pub fn new(limit: u64) -> Self {
        let (used, freed) = (Mutex::new(0), Condvar::new());
        Self { limit, used, freed, last_counted: AtomicU64::new(0), made: Instant::now() }
    }

    /// Whether no run took much for some seconds: what the engine keeps for the next such run can
    /// go then.
    pub(crate) fn is_calm(&self) -> bool {
        let last = Duration::from_millis(self.last_counted.load(Ordering::Relaxed));
        *lock(&self.used) == 0 && self.made.elapsed().saturating_sub(last) >= CALM_TIME
    }

    /// Has room for a run that takes `bytes`, or waits for it.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64, wait: Wait) -> Result<RunReservation> {
        if bytes > self.limit {
            return Err(Error::invalid(format!(
                "a run on inputs of these shapes takes {} MB, more than the {} MB that runs may take \
                 (--max-run-memory)",
                bytes / 1_000_000,
                self.limit / 1_000_000
            )));
        }
        if bytes < SMALLEST_COUNTED {
            return Ok(RunReservation { memory: None, bytes });
        }
        let now = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_counted.store(now, Ordering::Relaxed);
        let mut used = lock(&self.used);
        while used.saturating_add(bytes) > self.limit {
            let left = match wait {
                Wait::No => return Err(no_room()),
                Wait::Until(deadline) if deadline.has_passed() => return Err(no_room()),
                Wait::Until(deadline) => Deadline::remaining(deadline),
                Wait::Forever => Duration::from_secs(1),
            };
            let waited = self.freed.wait_timeout(used, left);
            used = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        *used = used.saturating_add(bytes);
        Ok(RunReservation { memory: Some(Arc::clone(self)), bytes })
    }
}

fn no_room() -> Error {
    Error::timed_out("other runs take the memory that there is (--max-run-memory)")
}

/// Room for a run, given back when dropped.
#[derive(Debug)]
pub(crate) struct RunReservation {
    memory: Option<Arc<RunMemory>>,
    bytes: u64,
}

impl std::fmt::Debug for RunMemory {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("RunMemory").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Drop for RunReservation {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            let mut used = lock(&memory.used);
            *used = used.saturating_sub(self.bytes);
            drop(used);
            memory.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_refused_and_what_is_too_much_at_once_waits() {
        let memory = Arc::new(RunMemory::new(100 << 20));
        let error = memory.reserve(101 << 20, Wait::No).unwrap_err();
        assert!(error.to_string().contains("takes 105 MB, more than the 104 MB"), "{error}");
        let first = memory.reserve(60 << 20, Wait::No).unwrap();
        assert!(memory.reserve(60 << 20, Wait::No).is_err());
        assert!(memory.reserve(1 << 20, Wait::No).is_ok(), "small ones are not counted");
        let waiting = {
            let memory = Arc::clone(&memory);
            std::thread::spawn(move || {
                memory.reserve(60 << 20, Wait::at_most(Duration::from_secs(20))).is_ok()
            })
        };
        drop(first);
        assert!(waiting.join().unwrap());
        assert_eq!(*lock(&memory.used), 0);
    }
}
