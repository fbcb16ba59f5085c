//! When a buffer is written that a GPU writes.
//!
//! It may be handed over before. So each slot has a flag in the memory that all holders share: the owner's GPU writes the
//! buffer's generation there when it has written the buffer, and whoever has it waits for that, on the host or on its GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_core::{Error, Event, PoolSlot, Result};
use tessera_cuda::{Gpu, Registered};

use super::{OpenPool, WORDS, generation_of};
use crate::segment::Segment;

/// Lets a GPU use the memory that all holders of a pool share.
pub(super) fn flags(gpu: &Arc<Gpu>, control: &Segment) -> Result<Registered> {
    // SAFETY: the segment is mapped in whole pages, and a pool lets go of its flags before it.
    unsafe { Registered::over(gpu, control.address(), control.len()) }
}

impl OpenPool {
    /// Where the flag of a slot is in the memory that all share: beside its word.
    pub(crate) fn flag(slot: usize) -> usize {
        WORDS + 64 * slot + 8
    }

    /// Whether a buffer that a GPU writes is written, this time.
    pub(crate) fn is_written(&self, slot: usize, generation: u32) -> bool {
        self.control.u32(Self::flag(slot)).load(Ordering::Acquire) == generation
    }

    /// Whether a GPU of ours writes its buffers, so that others wait for their flags.
    pub(crate) fn is_flagged_by_us(&self) -> bool {
        self.is_flagged && !self.is_anothers()
    }

    /// Has the GPU say so when all that it was told so far is done; the owner's alone.
    pub(crate) fn write_flag(&self, slot: usize, generation: u32) -> Result<()> {
        if slot >= self.slots.len() || self.is_anothers() {
            return Ok(());
        }
        match (&self.device, &self.flags) {
            (Some(device), _) => device.write_flag(Self::flag(slot), generation),
            (None, Some(flags)) => flags.write(Self::flag(slot), generation),
            (None, None) => {
                self.set_flag(slot, generation);
                Ok(())
            }
        }
    }

    /// Says that a buffer is written: there is nothing to wait for, or not any longer.
    pub(crate) fn set_flag(&self, slot: usize, generation: u32) {
        if self.is_flagged && slot < self.slots.len() {
            self.control.u32(Self::flag(slot)).store(generation, Ordering::Release);
        }
    }

    /// Whether its owner is gone.
    pub(crate) fn is_orphan(&self) -> bool {
        self.is_orphan.load(Ordering::Acquire)
    }

    /// Its owner is gone.
    pub(crate) fn orphan(&self) {
        self.is_orphan.store(true, Ordering::Release);
    }

    /// Has nobody wait any longer for what a GPU was to write.
    pub(crate) fn free_waiters(&self) {
        for slot in 0..self.slots.len() {
            let generation = generation_of(self.word(slot).load(Ordering::Acquire));
            self.set_flag(slot, generation);
        }
    }
}

/// That a buffer of another process is written.
pub(crate) struct Written {
    pool: Arc<OpenPool>,
    slot: usize,
    generation: u32,
}

impl Written {
    /// Of a buffer that came from another process; `None` where there is nothing to wait for.
    pub(crate) fn of(pool: &Arc<OpenPool>, slot: PoolSlot) -> Option<Self> {
        let (index, generation) = (slot.slot as usize, slot.generation);
        let waits = pool.is_flagged && pool.is_anothers() && !pool.is_written(index, generation);
        waits.then(|| Self { pool: Arc::clone(pool), slot: index, generation })
    }
}

/// How long to look again and again before looking now and then.
const SPIN: Duration = Duration::from_micros(200);
const NOW_AND_THEN: Duration = Duration::from_micros(20);

impl Event for Written {
    /// Also where it never will be: waiting for it tells so.
    fn is_done(&self) -> bool {
        self.pool.is_written(self.slot, self.generation) || self.pool.is_orphan()
    }

    fn wait(&self) -> Result<()> {
        let start = std::time::Instant::now();
        while !self.pool.is_written(self.slot, self.generation) {
            if self.pool.is_orphan() {
                return Err(Error::lost("whoever was to write a tensor is gone"));
            }
            match start.elapsed() < SPIN {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(NOW_AND_THEN),
            }
        }
        Ok(())
    }

    fn hold_stream(&self) -> Result<()> {
        match self.pool.device() {
            Some(device) => device.wait_for_flag(OpenPool::flag(self.slot), self.generation),
            None => self.wait(),
        }
    }
}
