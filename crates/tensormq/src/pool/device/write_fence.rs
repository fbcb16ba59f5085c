//! When a buffer is written that a GPU writes.
//!
//! It may be handed over before. So each slot has a flag in the memory that all holders share: the
//! owner's GPU writes the buffer's generation there when it has written the buffer, and whoever has
//! it waits for that, on the host or on its GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_core::{Error, Fence, MemoryLocation, PoolSlot, Result, Tensor};

use crate::pool::slot_layout::SLOT_WORDS_OFFSET;
use crate::pool::{OpenPool, generation_of};

impl OpenPool {
    /// Where the flag of a slot is in the memory that all share: beside its word.
    pub(crate) fn flag_offset(slot: usize) -> usize {
        SLOT_WORDS_OFFSET + 64 * slot + 8
    }

    /// Whether a buffer that a GPU writes is written, this time.
    pub(crate) fn is_written(&self, slot: usize, generation: u32) -> bool {
        self.control.atomic_u32(Self::flag_offset(slot)).load(Ordering::Acquire) == generation
    }

    /// Whether a GPU of ours writes its buffers, so that others wait for their flags.
    pub(crate) fn is_flagged_by_us(&self) -> bool {
        self.device.is_flagged && !self.is_imported()
    }

    /// Has the GPU say so when all that was launched on it so far is done; the owner's alone.
    pub(crate) fn enqueue_flag_write(&self, slot: usize, generation: u32) -> Result<()> {
        if slot >= self.slots.len() || self.is_imported() {
            return Ok(());
        }
        match (&self.device.payload, &self.device.flags) {
            (Some(device), _) => device.write_flag(Self::flag_offset(slot), generation),
            (None, Some(flags)) => flags.stream_write_value(Self::flag_offset(slot), generation),
            (None, None) => {
                self.set_flag(slot, generation);
                Ok(())
            }
        }
    }

    /// Says that a buffer is written: there is nothing to wait for, or not any longer.
    pub(crate) fn set_flag(&self, slot: usize, generation: u32) {
        if self.device.is_flagged && slot < self.slots.len() {
            self.control.atomic_u32(Self::flag_offset(slot)).store(generation, Ordering::Release);
        }
    }

    /// Whether its owner is gone.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.device.is_orphan.load(Ordering::Acquire)
    }

    /// Its owner is gone.
    pub(crate) fn mark_orphaned(&self) {
        self.device.is_orphan.store(true, Ordering::Release);
    }

    /// Has nobody wait any longer for what a GPU was to write.
    pub(crate) fn release_all_waiters(&self) {
        for slot in 0..self.slots.len() {
            let generation = generation_of(self.slot_word(slot).load(Ordering::Acquire));
            self.set_flag(slot, generation);
        }
    }
}

/// That a buffer of another process is written.
pub(crate) struct WriteFence {
    pool: Arc<OpenPool>,
    slot: usize,
    generation: u32,
}

impl WriteFence {
    /// Of a buffer that came from another process; `None` where there is nothing to wait for.
    pub(crate) fn for_slot(pool: &Arc<OpenPool>, slot: PoolSlot) -> Option<Self> {
        let (index, generation) = (slot.slot as usize, slot.generation);
        let waits =
            pool.device.is_flagged && pool.is_imported() && !pool.is_written(index, generation);
        waits.then(|| Self { pool: Arc::clone(pool), slot: index, generation })
    }
}

/// How long to look again and again before looking now and then.
const SPIN_TIME: Duration = Duration::from_micros(200);
const POLL_INTERVAL: Duration = Duration::from_micros(20);

impl Fence for WriteFence {
    /// Also where it never will be: waiting for it tells so.
    fn is_done(&self) -> bool {
        self.pool.is_written(self.slot, self.generation) || self.pool.is_orphaned()
    }

    fn wait_on_host(&self) -> Result<()> {
        let start = std::time::Instant::now();
        while !self.pool.is_written(self.slot, self.generation) {
            if self.pool.is_orphaned() {
                return Err(Error::lost("whoever was to write a tensor is gone"));
            }
            if start.elapsed() < SPIN_TIME {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn wait_in_stream(&self) -> Result<()> {
        match &self.pool.device.payload {
            Some(device) => device.wait_for_flag(OpenPool::flag_offset(self.slot), self.generation),
            None => self.wait_on_host(),
        }
    }
}

/// A tensor that is about to be handed over, as its receiver may have it: what a GPU writes is
/// waited for by the receiver or by its GPU, where it is in a buffer with a flag; else here.
pub(crate) fn prepare_for_receiver(
    tensor: &Tensor,
    buffer: Option<(PoolSlot, &OpenPool)>,
    is_early_send: bool,
) -> Result<Tensor> {
    match (tensor.location(), buffer) {
        (MemoryLocation::Host, Some((_, pool))) if is_early_send && pool.is_flagged_by_us() => {
            Ok(tensor.clone())
        }
        (MemoryLocation::Host, buffer) => {
            let readable = tensor.clone().wait_fence_on_host()?;
            if let Some((slot, pool)) = buffer
                && pool.is_flagged_by_us()
            {
                pool.set_flag(slot.slot as usize, slot.generation);
            }
            Ok(readable)
        }
        (_, Some((slot, pool))) => {
            if !is_early_send {
                pool.enqueue_flag_write(slot.slot as usize, slot.generation)?;
            }
            Ok(tensor.clone())
        }
        (_, None) => Err(Error::unsupported("a tensor on a GPU that is in no pool can't be sent")),
    }
}
