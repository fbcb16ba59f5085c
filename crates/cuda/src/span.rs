//! How long the GPU itself took for something.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};
use tessera_core::{Event, Result};

use crate::Gpu;
use crate::driver::check;
use crate::event::{self, Kind};

/// Work in the stream, from one point of it to another.
pub struct Span {
    gpu: Arc<Gpu>,
    begin: sys::CUevent,
    end: sys::CUevent,
}

// SAFETY: events may be waited for and asked from any thread; they are not changed after `end`.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// A span that has begun.
pub struct OpenSpan(Span);

impl Span {
    /// Begins after all that was put into the stream so far.
    pub fn begin(gpu: &Arc<Gpu>) -> Result<OpenSpan> {
        gpu.enter()?;
        let begin = event::take(gpu, Kind::Timed)?;
        let end = event::take(gpu, Kind::Timed);
        let end = end.inspect_err(|_| event::give_back(gpu, Kind::Timed, begin))?;
        let span = Self { gpu: Arc::clone(gpu), begin, end };
        // SAFETY: both were made by this process and are valid.
        check("an event", unsafe { result::event::record(begin, gpu.raw_stream()) })?;
        Ok(OpenSpan(span))
    }

    /// How long it took; `None` while it is not over.
    pub fn duration(&self) -> Option<Duration> {
        // SAFETY: both are valid, and were recorded.
        let milliseconds = unsafe { result::event::elapsed(self.begin, self.end) }.ok()?;
        Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
    }
}

impl OpenSpan {
    /// Ends after all that was put into the stream so far.
    pub fn end(self) -> Result<Span> {
        let Self(span) = self;
        span.gpu.enter()?;
        // SAFETY: both were made by this process and are valid.
        check("an event", unsafe { result::event::record(span.end, span.gpu.raw_stream()) })?;
        Ok(span)
    }
}

impl Event for Span {
    fn is_done(&self) -> bool {
        // SAFETY: the event is valid; asking needs no context.
        unsafe { result::event::query(self.end) }.is_ok()
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the event is valid.
        check("waiting for an event", unsafe { result::event::synchronize(self.end) })
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        event::give_back(&self.gpu, Kind::Timed, self.begin);
        event::give_back(&self.gpu, Kind::Timed, self.end);
    }
}
