//! Runs of a block on a GPU that are captured as CUDA graphs: a launch takes microseconds then, and
//! not as long as the GPU works.
//!
//! ONNX Runtime launches one kernel after the other. Where these are short, as in small batches,
//! the GPU waits for launches. So a second session of the block is made, over the same weights,
//! with a stream of its own, and what it puts into that stream is captured, for the memory that a
//! run reads and writes. The next run on the same memory replays the graph, in the stream that all
//! work goes into. Other runs go the plain way, and are captured for the next time. All of that is
//! done on a thread beside; nobody waits for it, and where it fails runs go the plain way.
//!
//! What is captured is what the GPU did for these shapes, whatever is in the tensors. A block where
//! more than that matters has to wait for the GPU or to copy from it, which a CUDA graph can't:
//! those are never captured. Nor are those that draw at random.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tessera_core::{ErrorKind, Fence, MemoryLocation, Result, Tensor, TensorMut};
use tessera_cuda::{CaptureStream, CudaEvent, CudaGraph, Gpu};

use super::bound_session::{BoundSession, SessionPorts};
use super::capture_session::{
    CaptureAddresses, CaptureSession, CaptureShapes, allocate_in_stream, run_on_capture_thread,
};
use crate::device_weights::DeviceWeights;
use tessera_core::lock;

/// CUDA graphs of a block that are kept: one for each pair of memory that is read and written.
const MOST_GRAPHS_KEPT: usize = 16;

/// CUDA graphs that are captured of a block, whether they are of use or not.
const CAPTURED_FIRST: u64 = 4;

/// How often graphs of a block have to be replayed for one more to be captured: where memory is
/// hardly the same twice, captures slow down what others launch, and nobody gains from them.
const REPLAYS_FOR_CAPTURE: u64 = 8;

/// How often a block is prepared for capture before it is given up: something else on the GPU may
/// have spoilt the first.
const MOST_PREPARATIONS: usize = 2;

/// Makes a session of a block on a stream, which has its memory from where the thread says.
pub(super) type MakeCaptureSession =
    Box<dyn Fn(&CaptureStream) -> Result<BoundSession> + Send + Sync>;

/// The CUDA graphs of a block.
pub(super) struct CudaGraphCache(Arc<CudaGraphCacheInner>);

struct CudaGraphCacheInner {
    gpu: Arc<Gpu>,
    ports: Arc<SessionPorts>,
    make_session: MakeCaptureSession,
    /// What has to be there while a run is tried in another stream.
    weights: Arc<DeviceWeights>,
    replayed_runs: AtomicU64,
    state: Mutex<CudaGraphCacheState>,
    /// The session that is captured; used by the thread beside alone.
    capture_session: Mutex<Option<CaptureSession>>,
}

#[derive(Default)]
struct CudaGraphCacheState {
    stage: CaptureStage,
    /// Somebody captures.
    is_capturing: bool,
    failed_preparations: usize,
    captured: u64,
    /// The one that was replayed last is at the end.
    graphs: Vec<(CaptureAddresses, Arc<CudaGraph>)>,
}

#[derive(Default)]
enum CaptureStage {
    #[default]
    New,
    Ready(Arc<CaptureShapes>),
    /// It can't be captured.
    Never,
}

/// A run that may be replayed.
pub(super) enum ReplayOutcome {
    /// It was replayed: these are its outputs.
    Replayed(Vec<Tensor>),
    /// It has to be run, on this memory.
    NotReplayed(Vec<Option<TensorMut>>),
}

impl CudaGraphCache {
    pub(super) fn new(
        gpu: Arc<Gpu>,
        ports: Arc<SessionPorts>,
        make_session: MakeCaptureSession,
        weights: Arc<DeviceWeights>,
    ) -> Self {
        let (replayed_runs, state, capture_session) = Default::default();
        Self(Arc::new(CudaGraphCacheInner {
            gpu,
            ports,
            make_session,
            weights,
            replayed_runs,
            state,
            capture_session,
        }))
    }

    /// How many runs were replayed.
    pub(super) fn replayed_runs(&self) -> u64 {
        self.0.replayed_runs.load(Ordering::Relaxed)
    }

    /// Replays the CUDA graph of a run, where there is one; has one be captured where not.
    ///
    /// The inputs are on the GPU, as is what outputs are bound to.
    pub(super) fn replay_or_capture(
        &self,
        inputs: &[Tensor],
        mut outputs: Vec<Option<TensorMut>>,
    ) -> Result<ReplayOutcome> {
        let shared = &self.0;
        let here = MemoryLocation::Cuda(shared.gpu.number());
        if inputs.iter().any(|input| input.location() != here)
            || outputs.iter().flatten().any(|output| output.location() != here)
        {
            return Ok(ReplayOutcome::NotReplayed(outputs));
        }
        let shapes = match &shared.lock_state().stage {
            CaptureStage::Never => return Ok(ReplayOutcome::NotReplayed(outputs)),
            CaptureStage::New => None,
            CaptureStage::Ready(shapes) => Some(Arc::clone(shapes)),
        };
        let Some(shapes) = shapes else {
            shared.prepare_capture(inputs);
            return Ok(ReplayOutcome::NotReplayed(outputs));
        };
        if !inputs.iter().map(Tensor::shape).eq(&shapes.inputs) {
            return Ok(ReplayOutcome::NotReplayed(outputs));
        }
        let ports = shared.ports.outputs.iter().zip(&shapes.outputs);
        for (output, ((_, dtype), shape)) in outputs.iter_mut().zip(ports) {
            match output {
                Some(bound) if bound.shape() != shape => {
                    return Ok(ReplayOutcome::NotReplayed(outputs));
                }
                Some(_) => {}
                None => *output = allocate_in_stream(&shared.gpu, *dtype, shape).ok(),
            }
        }
        if outputs.iter().any(Option::is_none) {
            // There is no memory for them; the session may have some.
            return Ok(ReplayOutcome::NotReplayed(outputs));
        }
        let addresses = CaptureAddresses::of_tensors(inputs, outputs.iter().flatten());
        let Some(graph) = shared.lock_state().find_graph(&addresses) else {
            shared.capture_graph(addresses, shapes);
            return Ok(ReplayOutcome::NotReplayed(outputs));
        };
        shared.weights.queue_rest()?;
        // SAFETY: the memory that it was captured with is that of these tensors, which whoever uses
        // it again does later in the stream; that of the capture session, which is given back when
        // all is done; and scratch that other CUDA graphs use too, before and after it in the
        // stream.
        unsafe { graph.replay_in_main_stream() }
            .map_err(|error| error.with_context(&shared.ports.label))?;
        shared.replayed_runs.fetch_add(1, Ordering::Relaxed);
        Ok(ReplayOutcome::Replayed(outputs.into_iter().flatten().map(TensorMut::freeze).collect()))
    }
}

impl CudaGraphCacheState {
    fn find_graph(&mut self, addresses: &CaptureAddresses) -> Option<Arc<CudaGraph>> {
        let index = self.graphs.iter().position(|(captured, _)| captured == addresses)?;
        let found = self.graphs.remove(index);
        let graph = Arc::clone(&found.1);
        self.graphs.push(found);
        Some(graph)
    }
}

impl CudaGraphCacheInner {
    fn lock_state(&self) -> MutexGuard<'_, CudaGraphCacheState> {
        lock(&self.state)
    }

    /// Whether the caller is to capture.
    fn begin_capture(&self) -> bool {
        let replayed = self.replayed_runs.load(Ordering::Relaxed);
        let mut state = self.lock_state();
        let may = !state.is_capturing && is_worth_capturing(state.captured, replayed);
        state.is_capturing |= may;
        may
    }

    /// Has a session be made whose runs are captured, and tried on a copy of these inputs.
    fn prepare_capture(self: &Arc<Self>, inputs: &[Tensor]) {
        if !self.begin_capture() {
            return;
        }
        let copy = |input: &Tensor| {
            let mut copy = allocate_in_stream(&self.gpu, input.dtype(), input.shape())?;
            tessera_cuda::copy_on_device(input, &mut copy)?;
            Ok(copy.freeze())
        };
        let copied = inputs.iter().map(copy).collect::<Result<Vec<Tensor>>>();
        match copied.and_then(|copies| Ok((copies, CudaEvent::record_for_spin_wait(&self.gpu)?))) {
            Ok((samples, written)) => {
                let (shared, hold) = (Arc::clone(self), self.weights.begin_hold());
                run_on_capture_thread(move || {
                    let _hold = hold;
                    shared.finish_preparation(
                        written.wait_on_host().and_then(|()| shared.make_capture_session(&samples)),
                    );
                });
            }
            // What runs is not to fail for that.
            Err(error) => self.finish_preparation(Err(error)),
        }
    }

    fn finish_preparation(&self, prepared: Result<CaptureShapes>) {
        let mut state = self.lock_state();
        state.is_capturing = false;
        state.stage = match prepared {
            Ok(shapes) => CaptureStage::Ready(Arc::new(shapes)),
            Err(error) => {
                tracing::debug!(block = self.ports.label, %error, "runs are not captured");
                state.failed_preparations += 1;
                let is_hopeless = error.kind() == ErrorKind::Unsupported
                    || state.failed_preparations >= MOST_PREPARATIONS;
                if is_hopeless { CaptureStage::Never } else { CaptureStage::New }
            }
        };
    }

    fn make_capture_session(&self, samples: &[Tensor]) -> Result<CaptureShapes> {
        let (session, shapes) =
            CaptureSession::new(&self.gpu, &self.ports, &self.make_session, samples)?;
        *lock(&self.capture_session) = Some(session);
        Ok(shapes)
    }

    /// Has a run on this memory be captured.
    fn capture_graph(self: &Arc<Self>, addresses: CaptureAddresses, shapes: Arc<CaptureShapes>) {
        if !self.begin_capture() {
            return;
        }
        let shared = Arc::clone(self);
        run_on_capture_thread(move || {
            let mut session = lock(&shared.capture_session);
            let captured = session
                .as_mut()
                .map(|session| session.capture_run(&shared.gpu, &addresses, &shapes));
            let mut state = shared.lock_state();
            state.is_capturing = false;
            state.captured += 1;
            match captured {
                Some(Ok(graph)) => {
                    if state.graphs.len() >= MOST_GRAPHS_KEPT {
                        state.graphs.remove(0);
                    }
                    state.graphs.push((addresses, Arc::new(graph)));
                }
                Some(Err(error)) => {
                    tracing::debug!(block = shared.ports.label, %error, "a run was not captured");
                    if session.as_ref().is_some_and(CaptureSession::has_kept_scratch) {
                        shared.gpu.synchronise_stream().ok();
                        state.graphs.clear();
                        state.stage = CaptureStage::Never;
                        *session = None;
                    }
                }
                None => {}
            }
        });
    }
}

/// Whether one more graph of a block pays, of which so many were captured and replayed.
fn is_worth_capturing(captured: u64, replayed: u64) -> bool {
    captured < CAPTURED_FIRST + replayed / REPLAYS_FOR_CAPTURE
}

impl Drop for CudaGraphCacheInner {
    fn drop(&mut self) {
        // CUDA graphs that are under way use memory that goes with the session. What goes wrong
        // here can't be mended.
        self.gpu.synchronise_stream().ok();
        self.lock_state().graphs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_captured_for_as_long_as_they_are_replayed() {
        // Memory that is never the same twice: after a few it is over.
        let captured =
            (0..1000).fold(0, |captured, _| captured + u64::from(is_worth_capturing(captured, 0)));
        assert_eq!(captured, CAPTURED_FIRST);
        // Memory that is one of sixteen: all of them are captured soon.
        let (mut captured, mut replayed, mut runs) = (0u64, 0u64, 0);
        while captured < 16 && runs < 1000 {
            runs += 1;
            // Of sixteen runs in turn, those are replayed whose memory came first.
            if runs % 16 < captured {
                replayed += 1;
            } else if is_worth_capturing(captured, replayed) {
                captured += 1;
            }
        }
        assert!(captured == 16 && runs < 400, "{captured} graphs after {runs} runs");
    }
}
