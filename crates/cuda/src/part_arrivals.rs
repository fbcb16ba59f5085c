//! Memory that comes to a GPU in parts, which work in streams waits for part by part.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::Result;

use crate::Gpu;
use crate::driver::check_cuda;
use crate::event::{return_event, take_event};
use crate::event_pool::CudaEventKind;

/// When each part of something comes through the copy stream. The events are there for life:
/// CUDA graphs wait for what they were recorded for last.
pub struct PartArrivals {
    gpu: Arc<Gpu>,
    events: Vec<sys::CUevent>,
}

// SAFETY: events may be recorded, waited for and asked from any thread.
unsafe impl Send for PartArrivals {}
// SAFETY: as above.
unsafe impl Sync for PartArrivals {}

impl PartArrivals {
    /// So many parts, none of which anybody has to wait for so far.
    pub fn new(gpu: &Arc<Gpu>, parts: usize) -> Result<Self> {
        gpu.make_current()?;
        let mut made = Self { gpu: Arc::clone(gpu), events: Vec::with_capacity(parts) };
        for _ in 0..parts {
            made.events.push(take_event(gpu, CudaEventKind::SpinWait)?);
        }
        Ok(made)
    }

    /// A part is there once all is done that was put into the copy stream so far.
    pub fn note_part_queued(&self, part: usize) -> Result<()> {
        let Some(event) = self.events.get(part) else { return Ok(()) };
        let stream = self.gpu.copy_stream()?;
        // SAFETY: both were made by this process and are valid.
        check_cuda("an event", unsafe { result::event::record(*event, stream) })
    }

    /// Has work that is put into a stream from now on wait for a part, as it is on its way now; in
    /// a stream whose work is captured, as it is on its way whenever that is replayed.
    ///
    /// # Safety
    /// The stream is one of this GPU's context.
    pub unsafe fn wait_in_stream(&self, part: usize, stream: *mut c_void) -> Result<()> {
        let Some(event) = self.events.get(part) else { return Ok(()) };
        let stream: sys::CUstream = stream.cast();
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is valid, as the caller says; its status is written.
        check_cuda("a stream", unsafe {
            sys::cuStreamIsCapturing(stream, &raw mut status).result()
        })?;
        use sys::CUevent_wait_flags as Flags;
        let how = match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => {
                Flags::CU_EVENT_WAIT_DEFAULT
            }
            _ => Flags::CU_EVENT_WAIT_EXTERNAL,
        };
        // SAFETY: both are valid.
        check_cuda("waiting for an event", unsafe {
            result::stream::wait_event(stream, *event, how)
        })
    }

    /// Whether a part is there.
    pub fn is_there(&self, part: usize) -> bool {
        // SAFETY: the event is valid; asking needs no context.
        self.events.get(part).is_none_or(|event| unsafe { result::event::query(*event) }.is_ok())
    }

    /// Waits until a part is there.
    pub fn wait_on_host(&self, part: usize) -> Result<()> {
        let Some(event) = self.events.get(part) else { return Ok(()) };
        // SAFETY: the event is valid.
        check_cuda("waiting for an event", unsafe { result::event::synchronize(*event) })
    }
}

impl Drop for PartArrivals {
    fn drop(&mut self) {
        for event in self.events.drain(..) {
            return_event(&self.gpu, CudaEventKind::SpinWait, event);
        }
    }
}
