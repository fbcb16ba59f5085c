//! Events: points in a stream that others can wait for.

use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use tessera_core::{Event, Result};

use crate::Gpu;
use crate::driver::check;

/// What an event is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has a time.
    Timed,
    /// Whoever waits for it stays awake.
    Plain,
    /// Whoever waits for it sleeps.
    Patient,
}

/// Events that are free to be used again, as numbers: making one takes longer than all else that is done with it.
#[derive(Default)]
pub(crate) struct FreeEvents(Mutex<Vec<(Kind, usize)>>);

/// Events that are kept.
const MOST_KEPT: usize = 64;

/// An event that nobody uses. The caller has entered the GPU.
pub(crate) fn take(gpu: &Gpu, kind: Kind) -> Result<sys::CUevent> {
    let mut free = gpu.events.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(index) = free.iter().rposition(|(known, _)| *known == kind) {
        return Ok(std::ptr::with_exposed_provenance_mut(free.swap_remove(index).1));
    }
    drop(free);
    use sys::CUevent_flags as Flags;
    let quiet = Flags::CU_EVENT_DISABLE_TIMING as u32;
    let flags = match kind {
        Kind::Timed => Flags::CU_EVENT_DEFAULT as u32,
        Kind::Plain => quiet,
        Kind::Patient => quiet | Flags::CU_EVENT_BLOCKING_SYNC as u32,
    };
    let mut event = std::ptr::null_mut();
    // SAFETY: the context is current; the event is written.
    check("an event", unsafe { sys::cuEventCreate(&raw mut event, flags).result() })?;
    Ok(event)
}

/// Keeps an event for the next who needs one. Nobody else has it; whoever waits in a stream waits for what it was.
pub(crate) fn give_back(gpu: &Gpu, kind: Kind, event: sys::CUevent) {
    let mut free = gpu.events.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if free.len() < MOST_KEPT {
        free.push((kind, event.expose_provenance()));
        return;
    }
    drop(free);
    if gpu.enter().is_ok() {
        // SAFETY: made by `take`, and destroyed once. What goes wrong here can't be mended.
        unsafe { result::event::destroy(event) }.ok();
    }
}

/// A point in the stream of a GPU: it has happened when all work before it is done.
pub struct CudaEvent {
    gpu: Arc<Gpu>,
    kind: Kind,
    event: sys::CUevent,
}

// SAFETY: an event may be waited for and asked from any thread; it is not changed after it was recorded.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// After all that was put into the stream so far. Whoever waits for it stays awake.
    pub fn record(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::of_kind(gpu, Kind::Plain)
    }

    /// The same for those who are in no hurry: whoever waits for it sleeps meanwhile.
    pub fn record_for_later(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::of_kind(gpu, Kind::Patient)
    }

    fn of_kind(gpu: &Arc<Gpu>, kind: Kind) -> Result<Self> {
        gpu.enter()?;
        let made = Self { gpu: Arc::clone(gpu), kind, event: take(gpu, kind)? };
        // SAFETY: both were made by this process and are valid.
        check("an event", unsafe { result::event::record(made.event, gpu.raw_stream()) })?;
        Ok(made)
    }

    /// Has the stream of another GPU wait for it; the host doesn't.
    pub(crate) fn hold(&self, other: &Gpu) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are valid.
        check("waiting for an event", unsafe {
            result::stream::wait_event(other.raw_stream(), self.event, flags)
        })
    }
}

impl Event for CudaEvent {
    fn is_done(&self) -> bool {
        // SAFETY: the event is valid; asking needs no context.
        unsafe { result::event::query(self.event) }.is_ok()
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the event is valid.
        check("waiting for an event", unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        give_back(&self.gpu, self.kind, self.event);
    }
}
