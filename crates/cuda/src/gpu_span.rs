//! How long the GPU itself took for something.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};
use tessera_core::{Fence, Result};

use crate::Gpu;
use crate::driver::check_cuda;
use crate::event;
use crate::event_pool::CudaEventKind;

/// Work in the stream, from one point of it to another.
pub struct GpuSpan {
    gpu: Arc<Gpu>,
    begin: sys::CUevent,
    end: sys::CUevent,
}

// SAFETY: events may be waited for and asked from any thread; they are not changed after
// `end_in_stream`.
unsafe impl Send for GpuSpan {}
// SAFETY: as above.
unsafe impl Sync for GpuSpan {}

/// A span that has begun.
pub struct OpenGpuSpan(GpuSpan);

impl GpuSpan {
    /// Begins after all that was put into the stream so far.
    pub fn begin_in_stream(gpu: &Arc<Gpu>) -> Result<OpenGpuSpan> {
        gpu.make_current()?;
        let begin = event::take_event(gpu, CudaEventKind::Timed)?;
        let end = event::take_event(gpu, CudaEventKind::Timed);
        let end = end.inspect_err(|_| event::return_event(gpu, CudaEventKind::Timed, begin))?;
        let span = Self { gpu: Arc::clone(gpu), begin, end };
        // SAFETY: both were made by this process and are valid.
        check_cuda("an event", unsafe { result::event::record(begin, gpu.raw_stream()) })?;
        Ok(OpenGpuSpan(span))
    }

    /// How long it took; `None` while it is not over.
    pub fn elapsed_time(&self) -> Option<Duration> {
        // SAFETY: both are valid, and were recorded.
        let milliseconds = unsafe { result::event::elapsed(self.begin, self.end) }.ok()?;
        Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
    }
}

impl OpenGpuSpan {
    /// Ends after all that was put into the stream so far.
    pub fn end_in_stream(self) -> Result<GpuSpan> {
        let Self(span) = self;
        span.gpu.make_current()?;
        // SAFETY: both were made by this process and are valid.
        check_cuda("an event", unsafe { result::event::record(span.end, span.gpu.raw_stream()) })?;
        Ok(span)
    }
}

impl Fence for GpuSpan {
    fn is_done(&self) -> bool {
        // SAFETY: the event is valid; asking needs no context.
        unsafe { result::event::query(self.end) }.is_ok()
    }

    fn wait_on_host(&self) -> Result<()> {
        // SAFETY: the event is valid.
        check_cuda("waiting for an event", unsafe { result::event::synchronize(self.end) })
    }
}

impl Drop for GpuSpan {
    fn drop(&mut self) {
        event::return_event(&self.gpu, CudaEventKind::Timed, self.begin);
        event::return_event(&self.gpu, CudaEventKind::Timed, self.end);
    }
}
