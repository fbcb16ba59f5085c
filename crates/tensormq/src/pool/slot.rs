//! A buffer of a pool, as those see it who have it.

use std::ptr::NonNull;
use std::sync::Arc;

use tessera_core::{Location, PoolSlot, Region};

use super::OpenPool;
use crate::device::DevicePayload;

/// A reference to a buffer; the process' hold ends with its last one.
pub(crate) struct Slot {
    pub(super) pool: Arc<OpenPool>,
    pub(super) index: usize,
    pub(super) len: usize,
    pub(super) generation: u32,
    /// Borrowed and not yet frozen: nobody else has a reference.
    pub(super) writable: bool,
}

impl Region for Slot {
    fn location(&self) -> Location {
        self.pool.device.as_ref().map_or(Location::Host, DevicePayload::location)
    }

    fn address(&self) -> NonNull<u8> {
        if let Some(device) = &self.pool.device {
            return device.address(self.pool.slots[self.index].0);
        }
        // SAFETY: slots lie within the payload.
        unsafe { self.pool.payload.address().add(self.pool.slots[self.index].0) }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        if self.pool.device.is_some() {
            return None;
        }
        // SAFETY: the owner writes through `bytes_mut` of the one `Slot` that a borrow gave out,
        // which can't be there beside a shared reference to it, nor to another of this generation:
        // those come from messages, which are made of frozen tensors. What a GPU is still to write comes
        // with an event, and is read after it. The bit that we hold keeps the slot from being borrowed
        // again.
        unsafe { self.pool.payload.slice(self.pool.slots[self.index].0, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.writable || self.pool.device.is_some() {
            return None;
        }
        // SAFETY: as above: a slot is writable between borrow and freeze, when it has one reference,
        // which is borrowed exclusively here.
        unsafe { self.pool.payload.slice_mut(self.pool.slots[self.index].0, self.len) }
    }

    fn pooled(&self) -> Option<PoolSlot> {
        Some(PoolSlot {
            pool: self.pool.id,
            slot: u32::try_from(self.index).ok()?,
            generation: self.generation,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        match &self.pool.device {
            Some(device) => device.release_later(&self.pool, self.index),
            None => self.pool.release(self.index),
        }
    }
}
