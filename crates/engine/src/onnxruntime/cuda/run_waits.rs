//! How the runs of a session wait for weights that are on their way.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ort::session::builder::SessionBuilder;
use tessera_core::{Result, lock};
use tessera_cuda::StreamMarks;

use crate::device_weights::DeviceWeights;
use crate::onnxruntime::wait_operators::{AwaitParts, WaitOperators};
use crate::weight_image::WeightImage;

/// A stream, as libraries have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamPointer(pub(super) *mut c_void);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for StreamPointer {}
// SAFETY: as above.
unsafe impl Sync for StreamPointer {}

/// How the runs of a session wait for weights.
pub(super) struct RunWaits {
    run: Arc<AwaitedRun>,
    /// What waits where a weight is used first; `None` where all is waited for before the run.
    operators: Option<WaitOperators>,
}

/// The run that is under way in a session.
struct AwaitedRun {
    weights: Arc<DeviceWeights>,
    stream: StreamPointer,
    /// Which parts it has waited for.
    waited: Box<[AtomicBool]>,
    /// Where in the stream it began and needed which parts, where that is measured.
    measured: Mutex<Option<(StreamMarks, Vec<usize>)>>,
}

impl RunWaits {
    /// Waits before a run begins.
    pub(super) fn before(weights: &Arc<DeviceWeights>, stream: StreamPointer) -> Self {
        Self { run: Arc::new(AwaitedRun::new(weights, stream)), operators: None }
    }

    /// Waits in operators of the session.
    pub(super) fn inside(weights: &Arc<DeviceWeights>, stream: StreamPointer) -> ort::Result<Self> {
        let run = Arc::new(AwaitedRun::new(weights, stream));
        let waiter: Arc<dyn AwaitParts> = Arc::<AwaitedRun>::clone(&run);
        Ok(Self { operators: Some(WaitOperators::new(&waiter)?), run })
    }

    /// Lets a session that is about to be made have the operators.
    pub(super) fn add_to_session(&self, builder: &mut SessionBuilder) -> ort::Result<()> {
        self.operators.as_ref().map_or(Ok(()), |operators| operators.add_to_session(builder))
    }

    /// Has a run that is launched now wait.
    pub(super) fn begin_run(&self) -> Result<()> {
        let run = &*self.run;
        let Some(image) = run.weights.image() else { return Ok(()) };
        run.waited.iter().for_each(|waited| waited.store(false, Ordering::Relaxed));
        image.queue_rest()?;
        // What is small comes first. Parts come one after the other: the last one is all of them.
        let last = image.parts().count().saturating_sub(1);
        let part = if self.operators.is_some() { 0 } else { last };
        run.wait_for_part(image, part, run.stream.0)?;
        let is_main = run.stream.0 == image.range().gpu().stream_pointer();
        if is_main && image.is_there() && run.weights.profile().begin_run() {
            let mut marks = StreamMarks::new(image.range().gpu());
            // SAFETY: the session's stream is the GPU's.
            unsafe { marks.mark_stream(run.stream.0) }?;
            *lock(&run.measured) = Some((marks, Vec::new()));
        }
        Ok(())
    }

    /// The run is launched.
    pub(super) fn end_run(&self) {
        let measured = lock(&self.run.measured).take();
        let Some((mut marks, parts)) = measured else { return };
        // SAFETY: the session's stream is the GPU's.
        if unsafe { marks.mark_stream(self.run.stream.0) }.is_ok() {
            self.run.weights.profile().note_marks(marks, parts);
        }
    }
}

impl AwaitedRun {
    fn new(weights: &Arc<DeviceWeights>, stream: StreamPointer) -> Self {
        let parts = weights.image().map_or(0, |image| image.parts().count());
        let waited = (0..parts).map(|_| AtomicBool::new(false)).collect();
        Self { weights: Arc::clone(weights), stream, waited, measured: Mutex::default() }
    }

    fn wait_for_part(&self, image: &WeightImage, part: usize, stream: *mut c_void) -> Result<()> {
        let waited = self.waited.get(part);
        if waited.is_none_or(|waited| waited.swap(true, Ordering::Relaxed)) {
            return Ok(());
        }
        // SAFETY: a session's stream is one of this GPU.
        unsafe { image.arrivals().wait_in_stream(part, stream) }?;
        if let Some((marks, parts)) = &mut *lock(&self.measured) {
            parts.push(part);
            // SAFETY: as above.
            unsafe { marks.mark_stream(stream) }?;
        }
        Ok(())
    }
}

impl AwaitParts for AwaitedRun {
    fn provider(&self) -> *const c_char {
        c"CUDAExecutionProvider".as_ptr()
    }

    fn await_part(&self, part: usize, stream: *mut c_void) -> Result<()> {
        self.weights.image().map_or(Ok(()), |image| self.wait_for_part(image, part, stream))
    }

    unsafe fn copy_weight(
        &self,
        from: *const u8,
        to: *mut u8,
        len: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: as the caller says; a session's stream is one of this GPU.
        unsafe { tessera_cuda::copy_in_stream(from.addr(), to.addr(), len, stream) }
    }
}
