//! Buffers of a pool that are on a GPU: other processes open them once, and a message carries a
//! slot as ever.
//!
//! A GPU may still write a buffer when it is handed over, or the work that writes it may not even
//! have been launched: the receiver's GPU waits for its flag ([`super::WriteFence`]), and no
//! host does. And a GPU may still read a buffer when the host has let go of it: what a receiver
//! holds is let go of when its stream is past all that reads it, by a thread of its own.

use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use tessera_core::{Error, Fence, MemoryLocation, Result};
use tessera_cuda::{CudaEvent, Gpu, IPC_HANDLE_BYTES, IpcMemory, RegisteredMemory};

use crate::pool::OpenPool;

/// The buffers of a pool, on a GPU.
pub(crate) struct DevicePayload {
    gpu: Arc<Gpu>,
    memory: IpcMemory,
    /// The memory that all holders of the pool share.
    flags: RegisteredMemory,
    is_ours: bool,
}

impl DevicePayload {
    /// Memory for so many bytes, and what others need to open it. `flags` is over the pool's shared
    /// memory.
    pub(crate) fn create(
        gpu: &Arc<Gpu>,
        len: usize,
        flags: RegisteredMemory,
    ) -> Result<(Self, Vec<u8>)> {
        let (memory, handle) = IpcMemory::create_with_handle(gpu, len)?;
        Ok((Self { gpu: Arc::clone(gpu), memory, flags, is_ours: true }, handle.to_vec()))
    }

    /// Opens what another process made.
    pub(crate) fn open(gpu: Arc<Gpu>, handle: &[u8], flags: RegisteredMemory) -> Result<Self> {
        let handle = handle.first_chunk::<IPC_HANDLE_BYTES>();
        let handle = handle.ok_or_else(|| Error::invalid("a pool on a GPU without its handle"))?;
        let memory = IpcMemory::open_handle(&gpu, handle)?;
        Ok(Self { gpu, memory, flags, is_ours: false })
    }

    /// Bytes of what others need to open it: a page.
    pub(crate) const HANDLE_BYTES: usize = 4096;

    pub(crate) fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(self.gpu.number())
    }

    pub(crate) fn gpu_number(&self) -> u32 {
        self.gpu.number()
    }

    pub(crate) fn address(&self, offset: usize) -> NonNull<u8> {
        NonNull::new((self.memory.address() + offset) as *mut u8).unwrap_or(NonNull::dangling())
    }

    /// Has the stream write a flag when all work so far is done.
    pub(crate) fn write_flag(&self, offset: usize, generation: u32) -> Result<()> {
        self.flags.stream_write_value(offset, generation)
    }

    /// Has the stream wait for a flag.
    pub(crate) fn wait_for_flag(&self, offset: usize, generation: u32) -> Result<()> {
        self.flags.stream_wait_value(offset, generation)
    }

    /// Releases a slot once this process' stream is past all that may read it.
    pub(crate) fn release_later(&self, pool: &Arc<OpenPool>, slot: usize) {
        // Its owner writes it again in the stream that wrote it before.
        let end =
            if self.is_ours { None } else { CudaEvent::record_for_blocking_wait(&self.gpu).ok() };
        match end {
            Some(end) => {
                release_queue().send((end, Arc::clone(pool), slot)).unwrap_or_else(|unsent| {
                    let (_, pool, slot) = unsent.0;
                    pool.release_slot(slot);
                });
            }
            None => pool.release_slot(slot),
        }
    }
}

/// A slot to release, and what must have happened before.
type PendingRelease = (CudaEvent, Arc<OpenPool>, usize);

/// Where slots are waited for: in the order in which they were let go of, which is that of the
/// stream.
fn release_queue() -> &'static Sender<PendingRelease> {
    static RELEASE_QUEUE: OnceLock<Sender<PendingRelease>> = OnceLock::new();
    RELEASE_QUEUE.get_or_init(|| {
        let (sender, receiver) = channel::<PendingRelease>();
        std::thread::spawn(move || {
            for (end, pool, slot) in receiver {
                // A GPU that failed reads nothing any more.
                end.wait_on_host().ok();
                pool.release_slot(slot);
            }
        });
        sender
    })
}
