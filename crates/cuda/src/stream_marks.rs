//! Points of a run in a stream, and how far apart they are.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};
use tessera_core::Result;

use crate::Gpu;
use crate::driver::check_cuda;
use crate::event::{return_event, take_event};
use crate::event_pool::CudaEventKind;

/// Points in a stream, in the order in which they were put there.
pub struct StreamMarks {
    gpu: Arc<Gpu>,
    events: Vec<sys::CUevent>,
}

// SAFETY: events may be recorded, waited for and asked from any thread.
unsafe impl Send for StreamMarks {}

impl StreamMarks {
    /// None so far.
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: Arc::clone(gpu), events: Vec::new() }
    }

    /// Marks the point after all that was put into a stream so far.
    ///
    /// # Safety
    /// The stream is one of this GPU's context.
    pub unsafe fn mark_stream(&mut self, stream: *mut c_void) -> Result<()> {
        self.gpu.make_current()?;
        let event = take_event(&self.gpu, CudaEventKind::Timed)?;
        self.events.push(event);
        // SAFETY: both are valid, as the caller says.
        check_cuda("an event", unsafe { result::event::record(event, stream.cast()) })
    }

    /// How long after the first each was passed; `None` while not all were.
    pub fn elapsed_times(&self) -> Option<Vec<Duration>> {
        let (first, last) = (*self.events.first()?, *self.events.last()?);
        // SAFETY: the event is valid; asking needs no context.
        unsafe { result::event::query(last) }.ok()?;
        let since_first = |event: &sys::CUevent| {
            // SAFETY: both are valid, and were recorded.
            let milliseconds = unsafe { result::event::elapsed(first, *event) }.ok()?;
            Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
        };
        self.events.iter().map(since_first).collect()
    }
}

impl Drop for StreamMarks {
    fn drop(&mut self) {
        for event in self.events.drain(..) {
            return_event(&self.gpu, CudaEventKind::Timed, event);
        }
    }
}
