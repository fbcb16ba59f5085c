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
    /// After all that was put into the stream so far.
    pub fn record(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = check("an event", result::event::create(flags))?;
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
