//! A pool as its owner sees it: buffers are borrowed from it, and waited for where none is free.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tessera_core::{Buffer, Error, ErrorKind, PoolId, Result};

use super::slot::BufferSlot;
use super::{ALARM_OFFSET, OpenPool};
use crate::alarm::{arm_alarm, disarm_alarm};
use crate::async_notifier::AsyncNotifier;
use crate::keep_alive::KeepAlive;
use crate::wait::Wait;

/// A pool of buffers that this process owns.
///
/// It lives for as long as this or any of its buffers does, and keeps the endpoint that looks after
/// it.
#[derive(Clone)]
pub struct Pool(Arc<OpenPool>, #[allow(dead_code, reason = "held, not used")] Option<KeepAlive>);

impl Pool {
    /// A pool that was made; with what looks after it, unless that has the pool itself.
    pub(crate) fn new(pool: Arc<OpenPool>, endpoint: Option<KeepAlive>) -> Self {
        Self(pool, endpoint)
    }

    /// Which pool it is.
    pub fn id(&self) -> PoolId {
        self.0.id
    }

    /// Borrows a buffer of at least `len` bytes, to write and send; its content is what it was.
    ///
    /// Fails with `Full` or `TimedOut` where none comes back in time, and with `Usage` where none
    /// is large enough.
    pub fn borrow_buffer(&self, len: usize, wait: Wait) -> Result<Buffer> {
        if let Some(slot) = self.0.claim_slot(len) {
            return Ok(Box::new(slot));
        }
        self.check_buffer_size(len)?;
        if let Some(reclaimer) = self.0.reclaimer.upgrade() {
            reclaimer.reclaim_buffers();
        }
        if let Some(slot) = self.0.claim_slot(len) {
            return Ok(Box::new(slot));
        }
        if wait == Wait::No {
            self.0.request_buffers_back();
            return Err(self.exhausted_error(Error::full, len));
        }
        self.0.waiters.fetch_add(1, Ordering::AcqRel);
        let slot = self.wait_for_slot(len, wait);
        if self.0.waiters.fetch_sub(1, Ordering::AcqRel) > 1 {
            // A notification wakes one thread; there may be something for the next.
            self.0.notifier.notify();
        }
        match slot {
            Some(slot) => Ok(Box::new(slot)),
            None => Err(self.exhausted_error(Error::timed_out, len)),
        }
    }

    fn wait_for_slot(&self, len: usize, wait: Wait) -> Option<BufferSlot> {
        let alarm = self.0.control.atomic_u32(ALARM_OFFSET);
        loop {
            arm_alarm(alarm);
            self.0.request_buffers_back();
            if let Some(slot) = self.0.claim_slot(len) {
                disarm_alarm(alarm);
                return Some(slot);
            }
            if !self.0.notifier.sleep_until_notified(wait.poll_slice()) && wait.is_over() {
                return self.0.claim_slot(len);
            }
        }
    }

    /// The same without a thread that waits.
    pub async fn borrow_buffer_async(&self, len: usize, wait: Wait) -> Result<Buffer> {
        match self.borrow_buffer(len, Wait::No) {
            Err(error) if error.kind() == ErrorKind::Full && wait != Wait::No => {}
            done => return done,
        }
        let async_notifier = AsyncNotifier::new(&self.0.notifier)?;
        let alarm = self.0.control.atomic_u32(ALARM_OFFSET);
        self.0.waiters.fetch_add(1, Ordering::AcqRel);
        let waiting = WaiterGuard(&self.0);
        loop {
            arm_alarm(alarm);
            self.0.request_buffers_back();
            if let Some(slot) = self.0.claim_slot(len) {
                disarm_alarm(alarm);
                drop(waiting);
                return Ok(Box::new(slot));
            }
            if !async_notifier.sleep_until_notified(&self.0.notifier, wait.poll_slice()).await?
                && wait.is_over()
            {
                drop(waiting);
                let slot = self.0.claim_slot(len);
                return slot
                    .map(|slot| Box::new(slot) as Buffer)
                    .ok_or_else(|| self.exhausted_error(Error::timed_out, len));
            }
        }
    }

    fn check_buffer_size(&self, len: usize) -> Result<()> {
        let largest = self.0.slots.iter().map(|slot| slot.1).max().unwrap_or(0);
        if len > largest {
            return Err(Error::usage(format!(
                "a pool whose largest buffer has {largest} bytes has none of {len}"
            )));
        }
        Ok(())
    }

    fn exhausted_error(&self, kind: impl Fn(String) -> Error, len: usize) -> Error {
        let (used, all) = self.0.usage_counts();
        kind(format!("no buffer of {len} bytes is free: {used} of {all} are in use"))
    }

    /// Asks everyone to let go of buffers that they hold for what is long done.
    pub fn request_buffers_back(&self) {
        self.0.request_buffers_back();
    }

    /// How many buffers somebody holds.
    pub fn buffers_in_use(&self) -> usize {
        self.0.usage_counts().0
    }

    /// How many buffers there are.
    pub fn buffer_count(&self) -> usize {
        self.0.usage_counts().1
    }

    /// How often one was borrowed.
    pub fn borrow_count(&self) -> u64 {
        self.0.borrow_count.load(Ordering::Relaxed)
    }
}

/// Counts as waiting until dropped, also where the future that waits is.
struct WaiterGuard<'a>(&'a OpenPool);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, Ordering::AcqRel) > 1 {
            self.0.notifier.notify();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, all) = self.0.usage_counts();
        write!(f, "Pool({used} of {all} in use)")
    }
}
