//! Makes pools whose buffers a GPU writes: on the host, or on itself.

use std::sync::{Arc, Weak};

use tessera_core::{Error, PoolId, Result};
use tessera_cuda::{Gpu, RegisteredMemory};

use super::payload::DevicePayload;
use super::{MAX_PINNED_BYTES, PoolDevice, register_flags};
use crate::pool::{BufferReclaimer, Buffers, OpenPool};
use crate::segment::{Segment, SegmentWriters};

impl OpenPool {
    /// A pool of ours on the host that a GPU writes, whose work may be launched later; it copies to
    /// and from the buffers while the host does other things.
    pub(crate) fn create_pinned(
        gpu: &Arc<Gpu>,
        id: PoolId,
        buffers: &[Buffers],
        reclaimer: Weak<dyn BufferReclaimer>,
    ) -> Result<Arc<Self>> {
        Self::create_with_device(id, buffers, reclaimer, |control, len| {
            let payload = Segment::create(len, SegmentWriters::Creator)?;
            let flags = Some(register_flags(gpu, control)?);
            let pin = || {
                // SAFETY: the segment is mapped in whole pages, and a pool lets go of this before
                // it. Where it can't be, the GPU copies all the same.
                unsafe { RegisteredMemory::register_mapped(gpu, payload.address(), payload.len()) }
                    .ok()
            };
            let pinned = if len <= MAX_PINNED_BYTES { pin() } else { None };
            let device =
                PoolDevice { flags, pinned, is_flagged: true, ..PoolDevice::without_device() };
            Ok((payload, device))
        })
    }

    /// A pool of ours with buffers on a GPU.
    pub(crate) fn create_on_gpu(
        gpu: &Arc<Gpu>,
        id: PoolId,
        buffers: &[Buffers],
        reclaimer: Weak<dyn BufferReclaimer>,
    ) -> Result<Arc<Self>> {
        Self::create_with_device(id, buffers, reclaimer, |control, len| {
            let flags = register_flags(gpu, control)?;
            let (device, handles) = DevicePayload::create(gpu, len, flags)?;
            let payload = Segment::create(DevicePayload::HANDLE_BYTES, SegmentWriters::Creator)?;
            payload.write_bytes(0, &handles).ok_or_else(|| Error::usage("no room for handles"))?;
            let device = PoolDevice {
                payload: Some(device),
                is_flagged: true,
                ..PoolDevice::without_device()
            };
            Ok((payload, device))
        })
    }

    /// A pool of ours on the host that the CPU writes after its buffers were handed over.
    #[cfg(test)]
    pub(crate) fn create_written_later(
        id: PoolId,
        buffers: &[Buffers],
        reclaimer: Weak<dyn BufferReclaimer>,
    ) -> Result<Arc<Self>> {
        Self::create_with_device(id, buffers, reclaimer, |_, len| {
            let payload = Segment::create(len, SegmentWriters::Creator)?;
            Ok((payload, PoolDevice { is_flagged: true, ..PoolDevice::without_device() }))
        })
    }
}
