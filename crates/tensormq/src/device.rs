//! Buffers of a pool that are on a GPU: other processes open them once, and a message carries a slot as ever.
//!
//! A GPU may still write a buffer when it is handed over: each slot has an event, which its owner records when it
//! sends, and for which the receiver's stream waits. No host waits. And it may still read a buffer when the host has let
//! go of it: what a receiver holds is let go of when its stream is past all that reads it, by a thread of its own.

use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use tessera_core::{Error, Event, Location, Result};
use tessera_cuda::{CudaEvent, Gpu, HANDLE, SharedEvent, SharedMemory};

use crate::pool::OpenPool;

/// The buffers of a pool, on a GPU.
pub(crate) struct DevicePayload {
    gpu: Arc<Gpu>,
    memory: SharedMemory,
    events: Vec<SharedEvent>,
    is_ours: bool,
}

impl DevicePayload {
    /// Memory for so many bytes in so many slots, and what others need to open it.
    pub(crate) fn create(gpu: &Arc<Gpu>, len: usize, slots: usize) -> Result<(Self, Vec<u8>)> {
        let (memory, handle) = SharedMemory::create(gpu, len)?;
        let mut handles = handle.to_vec();
        let mut events = Vec::with_capacity(slots);
        for _ in 0..slots {
            let (event, handle) = SharedEvent::create(gpu)?;
            handles.extend(handle);
            events.push(event);
        }
        Ok((Self { gpu: Arc::clone(gpu), memory, events, is_ours: true }, handles))
    }

    /// Opens what another process made.
    pub(crate) fn open(number: u32, handles: &[u8], slots: usize) -> Result<Self> {
        let gpu = Gpu::open(number)?;
        let (handles, _) = handles.as_chunks::<HANDLE>();
        let wrong = || Error::invalid("a pool on a GPU without its handles");
        let (memory, events) = handles.split_first().ok_or_else(wrong)?;
        let memory = SharedMemory::open(&gpu, memory)?;
        let events = events.get(..slots).ok_or_else(wrong)?;
        let events = events.iter().map(|handle| SharedEvent::open(&gpu, handle));
        let events = events.collect::<Result<_>>()?;
        Ok(Self { gpu, memory, events, is_ours: false })
    }

    /// Bytes of what others need to open it.
    pub(crate) fn handles_len(slots: usize) -> usize {
        ((slots + 1) * HANDLE).next_multiple_of(4096)
    }

    pub(crate) fn location(&self) -> Location {
        Location::Cuda(self.gpu.number())
    }

    pub(crate) fn number(&self) -> u32 {
        self.gpu.number()
    }

    pub(crate) fn address(&self, offset: usize) -> NonNull<u8> {
        NonNull::new((self.memory.address() + offset) as *mut u8).unwrap_or(NonNull::dangling())
    }

    /// Notes that the slot is written when all work so far is done; the owner's alone.
    pub(crate) fn written(&self, slot: usize) -> Result<()> {
        match self.events.get(slot).filter(|_| self.is_ours) {
            Some(event) => event.record(),
            None => Ok(()),
        }
    }

    /// Has this process' stream wait until the slot is written.
    pub(crate) fn await_written(&self, slot: usize) -> Result<()> {
        match self.events.get(slot).filter(|_| !self.is_ours) {
            Some(event) => event.hold_stream(),
            None => Ok(()),
        }
    }

    /// Releases a slot once this process' stream is past all that may read it.
    pub(crate) fn release_later(&self, pool: &Arc<OpenPool>, slot: usize) {
        // Its owner writes it again in the stream that wrote it before.
        let end = match self.is_ours {
            true => None,
            false => CudaEvent::record(&self.gpu).ok(),
        };
        match end {
            Some(end) => later().send((end, Arc::clone(pool), slot)).unwrap_or_else(|unsent| {
                let (_, pool, slot) = unsent.0;
                pool.release(slot);
            }),
            None => pool.release(slot),
        }
    }
}

/// A slot to release, and what must have happened before.
type Release = (CudaEvent, Arc<OpenPool>, usize);

/// Where slots are waited for: in the order in which they were let go of, which is that of the stream.
fn later() -> &'static Sender<Release> {
    static LATER: OnceLock<Sender<Release>> = OnceLock::new();
    LATER.get_or_init(|| {
        let (sender, receiver) = channel::<Release>();
        std::thread::spawn(move || {
            for (end, pool, slot) in receiver {
                // A GPU that failed reads nothing any more.
                end.wait().ok();
                pool.release(slot);
            }
        });
        sender
    })
}
