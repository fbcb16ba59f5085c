//! What GPUs have to do with a pool: buffers that are on one, and buffers on the host that one
//! writes or copies from.
//!
//! A pool that no GPU has to do with has [`PoolDevice::without_device`], and the rest of
//! [`crate::pool`] is about that one.

mod create;
mod hooks;
mod payload;
mod write_fence;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tessera_core::{MemoryLocation, Result};
use tessera_cuda::{Gpu, RegisteredMemory};

use super::{OpenPool, PoolDescription};
use crate::segment::Segment;
pub(crate) use hooks::DeviceHooks;
pub use hooks::ReleaseFenceWaiters;
use payload::DevicePayload;
pub(crate) use write_fence::{WriteFence, prepare_for_receiver};

/// Largest pool that is kept in memory for a GPU to copy from.
const MAX_PINNED_BYTES: usize = 256 << 20;

/// What there is of a pool on devices. To be dropped before the pool's memory, which it is over.
pub(super) struct PoolDevice {
    /// The buffers, where they are on a GPU.
    payload: Option<DevicePayload>,
    /// What has a GPU of ours say that it has written a buffer on the host.
    flags: Option<RegisteredMemory>,
    /// What lets a GPU of ours copy from its buffers, or to them, while the host does other things.
    #[allow(dead_code, reason = "held, not used")]
    pinned: Option<RegisteredMemory>,
    /// Whether a GPU writes the buffers: each has a flag that says when it has.
    is_flagged: bool,
    /// Whether its owner, another process, is gone.
    is_orphan: AtomicBool,
}

impl PoolDevice {
    /// Nothing: buffers on the host, which the CPU writes before they are handed over.
    pub(super) fn without_device() -> Self {
        Self {
            payload: None,
            flags: None,
            pinned: None,
            is_flagged: false,
            is_orphan: AtomicBool::new(false),
        }
    }

    /// Opens the buffers of another process' pool, which have `len` bytes where they are on the
    /// host.
    pub(super) fn open_payload(
        description: &PoolDescription,
        payload: OwnedFd,
        len: usize,
        control: &Segment,
        devices: &DeviceHooks,
    ) -> Result<(Segment, Self)> {
        let mut opened = Self { is_flagged: description.is_flagged, ..Self::without_device() };
        let Some(number) = description.device_code.checked_sub(1) else {
            let payload = Segment::open(payload, len, false)?;
            if let Some(gpu) = devices.copy_target().filter(|_| len <= MAX_PINNED_BYTES) {
                opened.pinned = pin_for_gpu_reads(&gpu, &payload);
            }
            return Ok((payload, opened));
        };
        let payload = Segment::open(payload, DevicePayload::HANDLE_BYTES, false)?;
        let handle = payload.read_bytes(0, DevicePayload::HANDLE_BYTES).unwrap_or_default();
        let gpu = Gpu::open(number)?;
        let flags = register_flags(&gpu, control)?;
        opened.payload = Some(DevicePayload::open(gpu, &handle, flags)?);
        Ok((payload, opened))
    }

    /// As [`PoolDescription::device_code`] has it.
    pub(super) fn wire_code(&self) -> u32 {
        self.payload.as_ref().map_or(0, |payload| payload.gpu_number() + 1)
    }

    /// Whether buffers may be handed over before they are written.
    pub(super) fn is_flagged(&self) -> bool {
        self.is_flagged
    }

    /// Where the buffers are.
    pub(super) fn location(&self) -> MemoryLocation {
        self.payload.as_ref().map_or(MemoryLocation::Host, DevicePayload::location)
    }

    /// Whether the CPU reads the buffers.
    pub(super) fn is_on_host(&self) -> bool {
        self.payload.is_none()
    }

    /// Where something so many bytes into the buffers is, where they are not on the host.
    pub(super) fn address_at(&self, offset: usize) -> Option<NonNull<u8>> {
        self.payload.as_ref().map(|payload| payload.address(offset))
    }

    /// Releases a slot once no device reads it any more.
    pub(super) fn release_slot(pool: &Arc<OpenPool>, slot: usize) {
        match &pool.device.payload {
            Some(payload) => payload.release_later(pool, slot),
            None => pool.release_slot(slot),
        }
    }
}

/// Lets a GPU use the memory that all holders of a pool share.
fn register_flags(gpu: &Arc<Gpu>, control: &Segment) -> Result<RegisteredMemory> {
    // SAFETY: the segment is mapped in whole pages, and a pool lets go of its flags before it.
    unsafe { RegisteredMemory::register_mapped(gpu, control.address(), control.len()) }
}

/// Has a GPU copy from the buffers of a pool without the host; where that can't be it copies all
/// the same.
fn pin_for_gpu_reads(gpu: &Arc<Gpu>, payload: &Segment) -> Option<RegisteredMemory> {
    // SAFETY: the segment is mapped in whole pages, and a pool lets go of this before it.
    unsafe { RegisteredMemory::register_read_only(gpu, payload.address(), payload.len()) }.ok()
}
