//! Events: points in a stream that others can wait for.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Event, Result};

use crate::Gpu;
use crate::driver::check;

/// A point in the stream of a GPU: it has happened when all work before it is done.
pub struct CudaEvent {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: an event may be waited for and asked from any thread; it is not changed after it was recorded.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// After all that was put into the stream so far. Whoever waits for it stays awake.
    pub fn record(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::of_kind(gpu, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// The same for those who are in no hurry: whoever waits for it sleeps meanwhile.
    pub fn record_for_later(gpu: &Arc<Gpu>) -> Result<Self> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        gpu.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the context is current; the event is written.
        check("an event", unsafe { sys::cuEventCreate(&raw mut event, flags).result() })?;
        Self::recorded(gpu, event)
    }

    fn of_kind(gpu: &Arc<Gpu>, flags: sys::CUevent_flags) -> Result<Self> {
        gpu.enter()?;
        Self::recorded(gpu, check("an event", result::event::create(flags))?)
    }

    /// Has the stream of another GPU wait for it; the host doesn't.
    pub(crate) fn hold(&self, other: &Gpu) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are valid.
        check("waiting for an event", unsafe {
            result::stream::wait_event(other.raw_stream(), self.event, flags)
        })
    }

    fn recorded(gpu: &Arc<Gpu>, event: sys::CUevent) -> Result<Self> {
        let made = Self { gpu: Arc::clone(gpu), event };
        // SAFETY: both were made by this process and are valid.
        check("an event", unsafe { result::event::record(event, gpu.raw_stream()) })?;
        Ok(made)
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
        if self.gpu.enter().is_ok() {
            // SAFETY: made above, and destroyed once. What goes wrong here can't be mended.
            unsafe { result::event::destroy(self.event) }.ok();
        }
    }
}
