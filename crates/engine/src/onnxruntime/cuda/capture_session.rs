//! Captures runs of a block as CUDA graphs: a second session of it, over the same weights, with a
//! stream of its own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use tessera_core::{DType, Error, Result, Tensor, TensorMut, byte_len};
use tessera_cuda::{CaptureStream, CudaGraph, DeviceBuffer, Gpu};

use super::allocator::{self, AllocationSource};
use super::bound_session::{BoundSession, SessionPorts};
use super::capture_lock::lock_device_for_setup;
use super::capture_scratch::CaptureScratch;
use super::cublas_workspace;
use super::run_waits::StreamPointer;
use crate::onnxruntime::ort_value::OrtValue;
use crate::onnxruntime::session_builder::engine_error;
use tessera_core::lock;

/// Runs before the first is captured: kernels are chosen in the first, memory is laid out in the
/// next.
const WARM_UP_RUNS: usize = 3;

/// How often a CUDA graph is replayed before it is trusted.
const REPLAY_TRIALS: usize = 2;

/// Of an output, the bytes that are compared then.
const MOST_COMPARED: usize = 16 << 20;

/// The shape of each input or output.
type PortShapes = Vec<Vec<usize>>;

/// For these shapes of inputs, outputs have those.
pub(super) struct CaptureShapes {
    pub(super) inputs: PortShapes,
    pub(super) outputs: PortShapes,
}

/// The memory that a run reads and writes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CaptureAddresses {
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
}

impl CaptureAddresses {
    /// That of these tensors.
    pub(super) fn of_tensors<'a>(
        inputs: &[Tensor],
        outputs: impl Iterator<Item = &'a TensorMut>,
    ) -> Self {
        Self {
            inputs: inputs.iter().map(|input| input.address().unwrap_or(0)).collect(),
            outputs: outputs.map(|output| output.address().as_ptr().addr()).collect(),
        }
    }
}

/// A session whose runs are captured.
pub(super) struct CaptureSession {
    // Before the stream that it uses.
    session: BoundSession,
    stream: CaptureStream,
    ports: Arc<SessionPorts>,
    /// What its CUDA graphs use.
    scratch: Arc<Mutex<CaptureScratch>>,
    /// Whether it has kept memory that all CUDA graphs share.
    has_kept_scratch: bool,
}

impl CaptureSession {
    /// Makes the session and tries it on these inputs; for inputs of their shapes it captures runs
    /// from now on.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        ports: &Arc<SessionPorts>,
        make: impl FnOnce(&CaptureStream) -> Result<BoundSession>,
        samples: &[Tensor],
    ) -> Result<(Self, CaptureShapes)> {
        let stream = CaptureStream::new(gpu)?;
        let session = make(&stream)?;
        // Not the memory of other CUDA graphs, which may be replayed at the same time.
        let scratch = CaptureScratch::new(gpu)?;
        let ports = Arc::clone(ports);
        let mut capture = Self { session, stream, ports, scratch, has_kept_scratch: false };
        let tried = capture.try_capture(gpu, samples);
        // The inputs are given back by the order of another stream, and so is this memory.
        capture.stream.synchronise_stream()?;
        let shapes = tried?;
        capture.scratch = CaptureScratch::shared_on_gpu(gpu)?;
        Ok((capture, shapes))
    }

    /// Whether nothing more must be captured, nor be replayed that was.
    pub(super) fn has_kept_scratch(&self) -> bool {
        self.has_kept_scratch
    }

    /// Runs the session, and captures a run that gives the same each time it is replayed.
    ///
    /// Something that a library does beside the stream is no part of a CUDA graph. It was done
    /// while that was captured, and so is missed the second time.
    fn try_capture(&mut self, gpu: &Arc<Gpu>, samples: &[Tensor]) -> Result<CaptureShapes> {
        let source = AllocationSource::Scratch(Arc::clone(&self.scratch));
        let (output_shapes, expected) =
            allocator::with_source(source, || self.warm_up_session(samples))?;
        let outputs = self.ports.outputs.iter().zip(&output_shapes).map(|((_, dtype), shape)| {
            // In memory that nobody uses in another stream.
            let buffer = DeviceBuffer::new_unpooled(gpu, byte_len(*dtype, shape)?)?;
            TensorMut::from_buffer(*dtype, shape, Box::new(buffer))
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let input_shapes = samples.iter().map(|input| input.shape().to_vec()).collect();
        let shapes = CaptureShapes { inputs: input_shapes, outputs: output_shapes };
        let addresses = CaptureAddresses::of_tensors(samples, outputs.iter());
        let graph = self.capture_trial(&addresses, &shapes)?;
        // SAFETY: all memory that it uses is of this session alone, and stays until it is done.
        let replayed = (0..REPLAY_TRIALS)
            .try_for_each(|_| unsafe { graph.replay_in_capture_stream(&self.stream) });
        self.stream.synchronise_stream()?;
        replayed?;
        for (output, expected) in outputs.into_iter().zip(expected) {
            if tessera_cuda::read_first_bytes(&output.freeze(), MOST_COMPARED)? != expected {
                return Err(Error::unsupported("a CUDA graph whose replay differs from a run"));
            }
        }
        let bytes = lock(&self.scratch).byte_len();
        tracing::debug!(block = self.ports.label, bytes, "runs are captured");
        Ok(shapes)
    }

    /// Runs the session on these inputs; the shapes of its outputs, and what is in them.
    fn warm_up_session(&mut self, samples: &[Tensor]) -> Result<(PortShapes, Vec<Vec<u8>>)> {
        let ports = &self.ports;
        let fail = |error: ort::Error| engine_error(&ports.label, &error);
        let location = self.session.location();
        let values = samples.iter().map(OrtValue::over_tensor).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(fail)?;
        let free: Vec<Option<OrtValue>> = ports.outputs.iter().map(|_| None).collect();
        let mut outputs = Vec::new();
        for _ in 0..WARM_UP_RUNS {
            outputs = self.session.run_bound(&values, &free).map_err(fail)?;
        }
        let tensors = outputs.into_iter().map(|value| value.into_tensor_at(location));
        let tensors = tensors.collect::<ort::Result<Vec<Tensor>>>().map_err(fail)?;
        self.stream.synchronise_stream()?;
        let found =
            tensors.iter().map(|tensor| tessera_cuda::read_first_bytes(tensor, MOST_COMPARED));
        let found = found.collect::<Result<_>>()?;
        Ok((tensors.iter().map(|tensor| tensor.shape().to_vec()).collect(), found))
    }

    /// Captures a run on this memory, to be replayed in the stream that all work goes into.
    pub(super) fn capture_run(
        &mut self,
        gpu: &Arc<Gpu>,
        addresses: &CaptureAddresses,
        shapes: &CaptureShapes,
    ) -> Result<CudaGraph> {
        let stream = StreamPointer(self.stream.stream_pointer());
        cublas_workspace::with_main_workspace(gpu, stream, || {
            self.capture_trial(addresses, shapes)
        })?
    }

    /// Captures a run on this memory, to be replayed in the stream that it is captured in.
    fn capture_trial(
        &mut self,
        addresses: &CaptureAddresses,
        shapes: &CaptureShapes,
    ) -> Result<CudaGraph> {
        let ports = &self.ports;
        let fail = |error: ort::Error| engine_error(&ports.label, &error);
        let location = self.session.location();
        let over = |addresses: &[usize], ports: &[(String, DType)], shapes: &[Vec<usize>]| {
            let all = addresses.iter().zip(ports).zip(shapes);
            // SAFETY: nothing is done with the memory here; whoever replays the graph has it.
            all.map(|((address, (_, dtype)), shape)| unsafe {
                OrtValue::at_address(location, *address, *dtype, shape)
            })
            .collect::<ort::Result<Vec<_>>>()
        };
        let inputs = over(&addresses.inputs, &ports.inputs, &shapes.inputs).map_err(fail)?;
        let outputs = over(&addresses.outputs, &ports.outputs, &shapes.outputs).map_err(fail)?;
        let bound: Vec<Option<OrtValue>> = outputs.into_iter().map(Some).collect();
        let session = &mut self.session;
        let source = AllocationSource::Scratch(Arc::clone(&self.scratch));
        let graph = allocator::with_source(source, || {
            let _setup = lock_device_for_setup();
            self.stream.capture_graph(|| session.run_bound(&inputs, &bound).map(drop).map_err(fail))
        })?;
        // What a session keeps from one run to the next must not be in memory that others write
        // meanwhile.
        self.has_kept_scratch |= !lock(&self.scratch).is_free();
        if self.has_kept_scratch {
            return Err(Error::unsupported("a CUDA graph of what keeps memory between runs"));
        }
        Ok(graph)
    }
}

impl Drop for CaptureSession {
    fn drop(&mut self) {
        cublas_workspace::forget_stream(StreamPointer(self.stream.stream_pointer()));
    }
}

/// Memory for a tensor, in the order of the stream that all work goes into.
pub(super) fn allocate_in_stream(
    gpu: &Arc<Gpu>,
    dtype: DType,
    shape: &[usize],
) -> Result<TensorMut> {
    TensorMut::from_buffer(dtype, shape, Box::new(DeviceBuffer::new(gpu, byte_len(dtype, shape)?)?))
}

/// Has something be done on the one thread that captures.
pub(super) fn run_on_capture_thread(job: impl FnOnce() + Send + 'static) {
    type CaptureJob = Box<dyn FnOnce() + Send>;
    static CAPTURE_JOBS: OnceLock<Option<Sender<CaptureJob>>> = OnceLock::new();
    let jobs = CAPTURE_JOBS.get_or_init(|| {
        let (sender, receiver) = channel::<CaptureJob>();
        let work = move || {
            for job in receiver {
                // One that panics is not captured, and the others are.
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok();
            }
        };
        std::thread::Builder::new().name("tessera-capture".to_owned()).spawn(work).ok()?;
        Some(sender)
    });
    if let Some(jobs) = jobs {
        // The thread ends with the process.
        jobs.send(Box::new(job)).ok();
    }
}

/// Why a block with these operators is not captured.
pub(super) fn why_not_captured(operators: &[String]) -> Option<Error> {
    const RANDOM_OPERATORS: &[&str] = &[
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    ];
    let found = operators.iter().find(|operator| RANDOM_OPERATORS.contains(&operator.as_str()))?;
    Some(Error::unsupported(format!("a CUDA graph of {found}, which draws at random")))
}
