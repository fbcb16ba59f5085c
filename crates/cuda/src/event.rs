//! Events: points in a stream that others can wait for.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Fence, Result};

use crate::Gpu;
use crate::driver::check_cuda;
use crate::event_pool::CudaEventKind;

/// An event that nobody uses. The caller has made the GPU current.
pub(crate) fn take_event(gpu: &Gpu, kind: CudaEventKind) -> Result<sys::CUevent> {
    if let Some(event) = gpu.free_events.take(kind) {
        return Ok(event);
    }
    use sys::CUevent_flags as Flags;
    let quiet = Flags::CU_EVENT_DISABLE_TIMING as u32;
    let flags = match kind {
        CudaEventKind::Timed => Flags::CU_EVENT_DEFAULT as u32,
        CudaEventKind::SpinWait => quiet,
        CudaEventKind::BlockingWait => quiet | Flags::CU_EVENT_BLOCKING_SYNC as u32,
    };
    let mut event = std::ptr::null_mut();
    // SAFETY: the context is current; the event is written.
    check_cuda("an event", unsafe { sys::cuEventCreate(&raw mut event, flags).result() })?;
    Ok(event)
}

/// Keeps an event for the next who needs one. Nobody else has it; whoever waits in a stream waits
/// for what it was.
pub(crate) fn return_event(gpu: &Gpu, kind: CudaEventKind, event: sys::CUevent) {
    if !gpu.free_events.try_keep(kind, event) && gpu.make_current().is_ok() {
        // SAFETY: made by `take_event`, and destroyed once. What goes wrong here can't be mended.
        unsafe { result::event::destroy(event) }.ok();
    }
}

/// A point in the stream of a GPU: it has happened when all work before it is done.
pub struct CudaEvent {
    gpu: Arc<Gpu>,
    kind: CudaEventKind,
    event: sys::CUevent,
}

// SAFETY: an event may be waited for and asked from any thread; it is not changed after it was
// recorded.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// After all that was put into the stream so far. Whoever waits for it stays awake.
    pub fn record_for_spin_wait(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::record_of_kind(gpu, CudaEventKind::SpinWait)
    }

    /// The same for those who are in no hurry: whoever waits for it sleeps meanwhile.
    pub fn record_for_blocking_wait(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::record_of_kind(gpu, CudaEventKind::BlockingWait)
    }

    /// After all that was put into the copy stream so far. Whoever waits for it stays awake.
    pub(crate) fn record_in_copy_stream(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::record_in_stream(gpu, CudaEventKind::SpinWait, gpu.copy_stream()?)
    }

    fn record_of_kind(gpu: &Arc<Gpu>, kind: CudaEventKind) -> Result<Self> {
        Self::record_in_stream(gpu, kind, gpu.raw_stream())
    }

    fn record_in_stream(
        gpu: &Arc<Gpu>,
        kind: CudaEventKind,
        stream: sys::CUstream,
    ) -> Result<Self> {
        gpu.make_current()?;
        let made = Self { gpu: Arc::clone(gpu), kind, event: take_event(gpu, kind)? };
        // SAFETY: both were made by this process and are valid.
        check_cuda("an event", unsafe { result::event::record(made.event, stream) })?;
        Ok(made)
    }

    /// Has the stream of another GPU wait for it; the host doesn't.
    pub(crate) fn wait_in_stream_of(&self, other: &Gpu) -> Result<()> {
        self.wait_in_stream(other.raw_stream())
    }

    /// Has the copy stream of its GPU wait for it; the host doesn't.
    pub(crate) fn wait_in_copy_stream(&self) -> Result<()> {
        self.wait_in_stream(self.gpu.copy_stream()?)
    }

    fn wait_in_stream(&self, stream: sys::CUstream) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are valid.
        check_cuda("waiting for an event", unsafe {
            result::stream::wait_event(stream, self.event, flags)
        })
    }
}

impl Fence for CudaEvent {
    fn is_done(&self) -> bool {
        // SAFETY: the event is valid; asking needs no context.
        unsafe { result::event::query(self.event) }.is_ok()
    }

    fn wait_on_host(&self) -> Result<()> {
        // SAFETY: the event is valid.
        check_cuda("waiting for an event", unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        return_event(&self.gpu, self.kind, self.event);
    }
}
