//! Records runs of a block: a second session of it, over the same weights, with a stream of its own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use tessera_core::{DType, Error, Result, Tensor, TensorMut};
use tessera_cuda::{DeviceBuffer, Gpu, Recording, SideStream};

use super::allocator::{self, Source};
use super::bound::{BoundSession, Ports};
use super::scratch::Scratch;
use super::value::OrtValue;
use super::{engine_error, lock};

/// Runs before the first is recorded: kernels are chosen in the first, memory is laid out in the next.
const WARM_UP: usize = 3;

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
        let mut session = make(&stream)?;
        // Not the memory of recordings, which may be played at the same time.
        let scratch = Scratch::new(gpu)?;
        let source = Source::Scratch(Arc::clone(&scratch));
        let shapes = allocator::with(source, || warm_up(&mut session, ports, samples));
        // The inputs are given back by the order of another stream, and so is this memory.
        stream.synchronise()?;
        let shapes = shapes?;
        check_free(&scratch)?;
        drop(scratch);
        let scratch = Scratch::shared(gpu)?;
        let mut recorder = Self { session, stream, ports: Arc::clone(ports), scratch };
        // For nothing but to see that it can be: in memory of its own.
        let outputs = ports.outputs.iter().zip(&shapes);
        let outputs = outputs.map(|((_, dtype), shape)| memory(gpu, *dtype, shape));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let taken = samples.iter().map(|input| input.shape().to_vec()).collect();
        let known = Known { taken, given: shapes };
        recorder.record(&Places::of(samples, outputs.iter()), &known)?;
        let bytes = lock(&recorder.scratch).byte_len();
        tracing::debug!(block = ports.label, bytes, "runs are recorded");
        Ok((recorder, known))
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
        check_free(&self.scratch)?;
        Ok(recording)
    }
}

/// Runs a session on these inputs; the shapes of its outputs.
fn warm_up(session: &mut BoundSession, ports: &Ports, samples: &[Tensor]) -> Result<Shapes> {
    let fail = |error: ort::Error| engine_error(&ports.label, &error);
    let location = session.location();
    let values = samples.iter().map(OrtValue::over).collect::<ort::Result<Vec<_>>>();
    let values = values.map_err(fail)?;
    let free: Vec<Option<OrtValue>> = ports.outputs.iter().map(|_| None).collect();
    let mut outputs = Vec::new();
    for _ in 0..WARM_UP {
        outputs = session.run(&values, &free).map_err(fail)?;
    }
    let tensors = outputs.into_iter().map(|value| value.into_tensor_at(location));
    let tensors = tensors.collect::<ort::Result<Vec<Tensor>>>().map_err(fail)?;
    Ok(tensors.iter().map(|tensor| tensor.shape().to_vec()).collect())
}

/// Memory for a tensor, in the order of the stream that all work goes into.
pub(super) fn memory(gpu: &Arc<Gpu>, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
    let count = tessera_core::element_count(shape).and_then(|count| dtype.bytes(count));
    let buffer = DeviceBuffer::new(gpu, count.unwrap_or(0))?;
    TensorMut::over(dtype, shape, Box::new(buffer))
}

/// What a session keeps from one run to the next must not be in memory that others write meanwhile.
fn check_free(scratch: &Mutex<Scratch>) -> Result<()> {
    match lock(scratch).is_free() {
        true => Ok(()),
        false => Err(Error::unsupported("a recording of what keeps memory between runs")),
    }
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
