//! A buffer of a pool, as those see it who have it.

use std::ptr::NonNull;
use std::sync::Arc;

use tessera_core::{MemoryLocation, PoolSlot, Region};

use super::OpenPool;
use super::device::PoolDevice;

/// A reference to a buffer; the process' hold ends with its last one.
pub(crate) struct BufferSlot {
    pub(super) pool: Arc<OpenPool>,
    pub(super) index: usize,
    pub(super) len: usize,
    pub(super) generation: u32,
    /// Borrowed and not yet frozen: nobody else has a reference.
    pub(super) writable: bool,
}

impl Region for BufferSlot {
    fn location(&self) -> MemoryLocation {
        self.pool.device.location()
    }

    fn address(&self) -> NonNull<u8> {
        let offset = self.pool.slots[self.index].0;
        if let Some(address) = self.pool.device.address_at(offset) {
            return address;
        }
        // SAFETY: slots lie within the payload.
        unsafe { self.pool.payload.address().add(offset) }
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        if !self.pool.device.is_on_host() {
            return None;
        }
        // SAFETY: the owner writes through `bytes_mut` of the one `BufferSlot` that a borrow gave
        // out, which can't be there beside a shared reference to it, nor to another of this
        // generation: those come from messages, which are made of frozen tensors. What is still to
        // be written comes with a fence, and is read after it. The bit that we hold keeps the slot
        // from being borrowed again.
        unsafe { self.pool.payload.payload_slice(self.pool.slots[self.index].0, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.writable || !self.pool.device.is_on_host() {
            return None;
        }
        // SAFETY: as above: a slot is writable between borrow and freeze, when it has one
        // reference, which is borrowed exclusively here.
        unsafe { self.pool.payload.payload_slice_mut(self.pool.slots[self.index].0, self.len) }
    }

    fn pool_slot(&self) -> Option<PoolSlot> {
        Some(PoolSlot {
            pool: self.pool.id,
            slot: u32::try_from(self.index).ok()?,
            generation: self.generation,
        })
    }
}

impl Drop for BufferSlot {
    fn drop(&mut self) {
        PoolDevice::release_slot(&self.pool, self.index);
    }
}
