//! Records runs of a block: a second session of it, over the same weights, with a stream of its own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use tessera_core::{DType, Error, Result, Tensor, TensorMut, byte_len};
use tessera_cuda::{DeviceBuffer, Gpu, Recording, SideStream};

use super::allocator::{self, Source};
use super::bound::{BoundSession, Ports};
use super::scratch::Scratch;
use super::value::OrtValue;
use super::{engine_error, lock};

/// Runs before the first is recorded: kernels are chosen in the first, memory is laid out in the next.
const WARM_UP: usize = 3;

/// How often a recording is played before it is trusted.
const TRIALS: usize = 2;

/// Of an output, the bytes that are compared then.
const MOST_COMPARED: usize = 16 << 20;

/// The shape of each input or output.
type Shapes = Vec<Vec<usize>>;

/// For these shapes of inputs, outputs have those.
pub(super) struct Known {
    pub(super) taken: Shapes,
    pub(super) given: Shapes,
}

/// The memory that a run reads and writes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
}

impl Places {
    /// That of these tensors.
    pub(super) fn of<'a>(inputs: &[Tensor], outputs: impl Iterator<Item = &'a TensorMut>) -> Self {
        Self {
            inputs: inputs.iter().map(|input| input.address().unwrap_or(0)).collect(),
            outputs: outputs.map(|output| output.address().as_ptr().addr()).collect(),
        }
    }
}

/// A session that is recorded.
pub(super) struct Recorder {
    // Before the stream that it uses.
    session: BoundSession,
    stream: SideStream,
    ports: Arc<Ports>,
    /// What its recordings use.
    scratch: Arc<Mutex<Scratch>>,
    /// Whether it has kept memory that all recordings share.
    is_spoilt: bool,
}

impl Recorder {
    /// Makes the session and tries it on these inputs; for inputs of their shapes it records from now on.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        ports: &Arc<Ports>,
        make: impl FnOnce(&SideStream) -> Result<BoundSession>,
        samples: &[Tensor],
    ) -> Result<(Self, Known)> {
        let stream = SideStream::new(gpu)?;
        let session = make(&stream)?;
        // Not the memory of recordings, which may be played at the same time.
        let scratch = Scratch::new(gpu)?;
        let ports = Arc::clone(ports);
        let mut recorder = Self { session, stream, ports, scratch, is_spoilt: false };
        let tried = recorder.try_on(gpu, samples);
        // The inputs are given back by the order of another stream, and so is this memory.
        recorder.stream.synchronise()?;
        let known = tried?;
        recorder.scratch = Scratch::shared(gpu)?;
        Ok((recorder, known))
    }

    /// Whether nothing more must be recorded, nor be played that was.
    pub(super) fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Runs the session, and records a run that gives the same each time it is played.
    ///
    /// Something that a library does beside the stream is no part of a recording. It was done while that was recorded, and so
    /// is missed the second time.
    fn try_on(&mut self, gpu: &Arc<Gpu>, samples: &[Tensor]) -> Result<Known> {
        let source = Source::Scratch(Arc::clone(&self.scratch));
        let (given, expected) = allocator::with(source, || self.warm_up(samples))?;
        let outputs = self.ports.outputs.iter().zip(&given).map(|((_, dtype), shape)| {
            // In memory that nobody uses in another stream.
            let buffer = DeviceBuffer::fresh(gpu, byte_len(*dtype, shape)?)?;
            TensorMut::over(*dtype, shape, Box::new(buffer))
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let taken = samples.iter().map(|input| input.shape().to_vec()).collect();
        let known = Known { taken, given };
        let recording = self.record(&Places::of(samples, outputs.iter()), &known)?;
        // SAFETY: all memory that it uses is of this recorder alone, and stays until it is done.
        let played = (0..TRIALS).try_for_each(|_| unsafe { recording.play_in(&self.stream) });
        self.stream.synchronise()?;
        played?;
        for (output, expected) in outputs.into_iter().zip(expected) {
            if tessera_cuda::peek(&output.freeze(), MOST_COMPARED)? != expected {
                return Err(Error::unsupported("a recording that gives something else than a run"));
            }
        }
        let bytes = lock(&self.scratch).byte_len();
        tracing::debug!(block = self.ports.label, bytes, "runs are recorded");
        Ok(known)
    }

    /// Runs the session on these inputs; the shapes of its outputs, and what is in them.
    fn warm_up(&mut self, samples: &[Tensor]) -> Result<(Shapes, Vec<Vec<u8>>)> {
        let ports = &self.ports;
        let fail = |error: ort::Error| engine_error(&ports.label, &error);
        let location = self.session.location();
        let values = samples.iter().map(OrtValue::over).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(fail)?;
        let free: Vec<Option<OrtValue>> = ports.outputs.iter().map(|_| None).collect();
        let mut outputs = Vec::new();
        for _ in 0..WARM_UP {
            outputs = self.session.run(&values, &free).map_err(fail)?;
        }
        let tensors = outputs.into_iter().map(|value| value.into_tensor_at(location));
        let tensors = tensors.collect::<ort::Result<Vec<Tensor>>>().map_err(fail)?;
        self.stream.synchronise()?;
        let found = tensors.iter().map(|tensor| tessera_cuda::peek(tensor, MOST_COMPARED));
        let found = found.collect::<Result<_>>()?;
        Ok((tensors.iter().map(|tensor| tensor.shape().to_vec()).collect(), found))
    }

    /// Records a run on this memory.
    pub(super) fn record(&mut self, places: &Places, known: &Known) -> Result<Recording> {
        let ports = &self.ports;
        let fail = |error: ort::Error| engine_error(&ports.label, &error);
        let location = self.session.location();
        let over = |addresses: &[usize], ports: &[(String, DType)], shapes: &[Vec<usize>]| {
            let all = addresses.iter().zip(ports).zip(shapes);
            // SAFETY: nothing is done with the memory here; whoever plays the recording has it.
            all.map(|((address, (_, dtype)), shape)| unsafe {
                OrtValue::at(location, *address, *dtype, shape)
            })
            .collect::<ort::Result<Vec<_>>>()
        };
        let inputs = over(&places.inputs, &ports.inputs, &known.taken).map_err(fail)?;
        let outputs = over(&places.outputs, &ports.outputs, &known.given).map_err(fail)?;
        let bound: Vec<Option<OrtValue>> = outputs.into_iter().map(Some).collect();
        let session = &mut self.session;
        let source = Source::Scratch(Arc::clone(&self.scratch));
        let recording = allocator::with(source, || {
            self.stream.record(|| session.run(&inputs, &bound).map(drop).map_err(fail))
        })?;
        // What a session keeps from one run to the next must not be in memory that others write meanwhile.
        self.is_spoilt |= !lock(&self.scratch).is_free();
        match self.is_spoilt {
            true => Err(Error::unsupported("a recording of what keeps memory between runs")),
            false => Ok(recording),
        }
    }
}

/// Memory for a tensor, in the order of the stream that all work goes into.
pub(super) fn memory(gpu: &Arc<Gpu>, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
    TensorMut::over(dtype, shape, Box::new(DeviceBuffer::new(gpu, byte_len(dtype, shape)?)?))
}

/// Has something be done on the one thread that records.
pub(super) fn beside(job: impl FnOnce() + Send + 'static) {
    type Job = Box<dyn FnOnce() + Send>;
    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (sender, receiver) = channel::<Job>();
        let work = move || {
            for job in receiver {
                // One that panics is not recorded, and the others are.
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok();
            }
        };
        std::thread::Builder::new().name("tessera-record".to_owned()).spawn(work).ok()?;
        Some(sender)
    });
    if let Some(jobs) = jobs {
        // The thread ends with the process.
        jobs.send(Box::new(job)).ok();
    }
}

/// Why a block with these operators is not recorded.
pub(super) fn why_not(operators: &[String]) -> Option<Error> {
    const RANDOM: &[&str] = &[
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    ];
    let found = operators.iter().find(|operator| RANDOM.contains(&operator.as_str()))?;
    Some(Error::unsupported(format!("a recording of {found}, which draws at random")))
}
