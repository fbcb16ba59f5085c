//! Runs of a block on a GPU that are recorded: telling the GPU takes microseconds then, and not as long as the GPU works.
//!
//! ONNX Runtime tells a GPU one kernel after the other. Where these are short, as in small batches, the GPU waits for
//! being told. So a second session of the block is made, over the same weights, with a stream of its own, and what it puts
//! into that stream is recorded, for the memory that a run reads and writes. The next run on the same memory plays the
//! recording, in the stream that all work goes into. Other runs go the plain way, and are recorded for the next time. All of
//! that is done on a thread beside; nobody waits for it, and where it fails runs go the plain way.
//!
//! What is recorded is what the GPU did for these shapes, whatever is in the tensors. A block where more than that
//! matters has to wait for the GPU or to copy from it, which a recording can't: those are never recorded. Nor are those that
//! draw at random.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tessera_core::{DType, Error, Event, Location, Result, Tensor, TensorMut};
use tessera_cuda::{CudaEvent, DeviceBuffer, Gpu, Recording, SideStream};

use super::allocator::{self, Source};
use super::bound::BoundSession;
use super::scratch::Scratch;
use super::value::OrtValue;
use super::{engine_error, lock};

/// Runs before the first is recorded: kernels are chosen in the first, memory is laid out in the next.
const WARM_UP: usize = 3;

/// Recordings of a block that are kept: one for each pair of memory that is read and written.
const MOST_KEPT: usize = 16;

/// Recordings that are made of a block: with more than this, memory is hardly the same twice.
const MOST_MADE: usize = 128;

/// Makes a session of a block on a stream, which has its memory from where the thread says.
pub(super) type MakeSession = Box<dyn Fn(&SideStream) -> Result<BoundSession> + Send + Sync>;

/// The shape of each input or output.
type Shapes = Vec<Vec<usize>>;

/// The memory that a run reads and writes.
#[derive(Clone, PartialEq, Eq)]
struct Places {
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// The recordings of a block.
pub(super) struct Recorded(Arc<Shared>);

struct Shared {
    label: String,
    gpu: Arc<Gpu>,
    make: MakeSession,
    types: (Vec<DType>, Vec<DType>),
    played: AtomicU64,
    state: Mutex<State>,
    /// Whoever records; used by the thread beside alone.
    recorder: Mutex<Option<Recorder>>,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Somebody records.
    is_busy: bool,
    made: usize,
    /// The one that was played last is at the end.
    kept: Vec<(Places, Arc<Recording>)>,
}

#[derive(Default)]
enum Stage {
    #[default]
    New,
    Ready(Arc<Known>),
    /// It can't be recorded.
    Never,
}

/// For these shapes of inputs, outputs have those.
struct Known {
    taken: Shapes,
    given: Shapes,
}

/// A session that is recorded.
struct Recorder {
    // Before the stream that it uses.
    session: BoundSession,
    stream: SideStream,
    /// What its recordings use.
    scratch: Arc<Mutex<Scratch>>,
}

/// A run that may be recorded.
pub(super) enum Run {
    /// It was played: these are its outputs.
    Played(Vec<Tensor>),
    /// It has to be run, on this memory.
    Plain(Vec<Option<TensorMut>>),
}

impl Recorded {
    pub(super) fn new(
        label: String,
        gpu: Arc<Gpu>,
        types: (Vec<DType>, Vec<DType>),
        make: MakeSession,
    ) -> Self {
        let (played, state, recorder) = Default::default();
        Self(Arc::new(Shared { label, gpu, make, types, played, state, recorder }))
    }

    /// How many runs were played.
    pub(super) fn played(&self) -> u64 {
        self.0.played.load(Ordering::Relaxed)
    }

    /// Plays the recording of a run, where there is one; has one be made where not.
    ///
    /// The inputs are on the GPU, as is what outputs are bound to.
    pub(super) fn run(
        &self,
        inputs: &[Tensor],
        mut outputs: Vec<Option<TensorMut>>,
    ) -> Result<Run> {
        let shared = &self.0;
        let here = Location::Cuda(shared.gpu.number());
        if inputs.iter().any(|input| input.location() != here)
            || outputs.iter().flatten().any(|output| output.location() != here)
        {
            return Ok(Run::Plain(outputs));
        }
        let known = match &shared.state().stage {
            Stage::Never => return Ok(Run::Plain(outputs)),
            Stage::New => None,
            Stage::Ready(known) => Some(Arc::clone(known)),
        };
        let Some(known) = known else {
            shared.prepare(inputs);
            return Ok(Run::Plain(outputs));
        };
        if !inputs.iter().map(Tensor::shape).eq(&known.taken) {
            return Ok(Run::Plain(outputs));
        }
        for ((output, dtype), shape) in outputs.iter_mut().zip(&shared.types.1).zip(&known.given) {
            match output {
                Some(bound) if bound.shape() != shape => return Ok(Run::Plain(outputs)),
                Some(_) => {}
                None => *output = shared.memory(*dtype, shape).ok(),
            }
        }
        if outputs.iter().any(Option::is_none) {
            // There is no memory for them; the session may have some.
            return Ok(Run::Plain(outputs));
        }
        let places = Places {
            inputs: inputs.iter().map(|input| input.address().unwrap_or(0)).collect(),
            outputs: outputs.iter().flatten().map(|o| o.address().as_ptr().addr()).collect(),
        };
        let Some(recording) = shared.state().find(&places) else {
            shared.record(places, known);
            return Ok(Run::Plain(outputs));
        };
        // SAFETY: the memory that it was recorded with is that of these tensors, which whoever uses it again does later
        // in the stream; that of the recorder's session, which is given back when all is done; and scratch that other
        // recordings use too, before and after it in the stream.
        unsafe { recording.play() }.map_err(|error| error.within(&shared.label))?;
        shared.played.fetch_add(1, Ordering::Relaxed);
        Ok(Run::Played(outputs.into_iter().flatten().map(TensorMut::freeze).collect()))
    }
}

impl State {
    fn find(&mut self, places: &Places) -> Option<Arc<Recording>> {
        let index = self.kept.iter().position(|(known, _)| known == places)?;
        let found = self.kept.remove(index);
        let recording = Arc::clone(&found.1);
        self.kept.push(found);
        Some(recording)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Memory for a tensor, in the order of the stream that all work goes into.
    fn memory(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        let count = tessera_core::element_count(shape).and_then(|count| dtype.bytes(count));
        let buffer = DeviceBuffer::new(&self.gpu, count.unwrap_or(0))?;
        TensorMut::over(dtype, shape, Box::new(buffer))
    }

    /// Whether the caller is to record.
    fn begin(&self) -> bool {
        let mut state = self.state();
        let may = !state.is_busy && state.made < MOST_MADE;
        state.is_busy |= may;
        may
    }

    /// Has a session be made that is recorded, and tried on a copy of these inputs.
    fn prepare(self: &Arc<Self>, inputs: &[Tensor]) {
        if !self.begin() {
            return;
        }
        let copy = |input: &Tensor| {
            let mut copy = self.memory(input.dtype(), input.shape())?;
            tessera_cuda::copy(input, &mut copy)?;
            Ok(copy.freeze())
        };
        let copied = inputs.iter().map(copy).collect::<Result<Vec<Tensor>>>();
        match copied.and_then(|copies| Ok((copies, CudaEvent::record(&self.gpu)?))) {
            Ok((samples, written)) => {
                let shared = Arc::clone(self);
                beside(move || {
                    shared.prepared(written.wait().and_then(|()| shared.try_on(&samples)));
                });
            }
            // What runs is not to fail for that.
            Err(error) => self.prepared(Err(error)),
        }
    }

    fn prepared(&self, known: Result<Known>) {
        let mut state = self.state();
        state.is_busy = false;
        state.stage = match known {
            Ok(known) => Stage::Ready(Arc::new(known)),
            Err(error) => {
                tracing::debug!(block = self.label, %error, "runs are not recorded");
                Stage::Never
            }
        };
    }

    /// Makes the session and runs it on these inputs.
    fn try_on(&self, samples: &[Tensor]) -> Result<Known> {
        let fail = |error: ort::Error| engine_error(&self.label, &error);
        let stream = SideStream::new(&self.gpu)?;
        let mut session = (self.make)(&stream)?;
        let location = session.location();
        let values = samples.iter().map(OrtValue::over).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(fail)?;
        let free: Vec<Option<OrtValue>> = self.types.1.iter().map(|_| None).collect();
        let mut warm_up = || -> Result<Shapes> {
            let mut outputs = Vec::new();
            for _ in 0..WARM_UP {
                outputs = session.run(&values, &free).map_err(fail)?;
            }
            let tensors = outputs.into_iter().map(|value| value.into_tensor_at(location));
            let tensors = tensors.collect::<ort::Result<Vec<Tensor>>>().map_err(fail)?;
            Ok(tensors.iter().map(|tensor| tensor.shape().to_vec()).collect())
        };
        // Not that of recordings, which may be played at the same time.
        let scratch = Scratch::new(&self.gpu)?;
        let shapes = allocator::with(Source::Scratch(Arc::clone(&scratch)), &mut warm_up);
        // The inputs are given back by the order of another stream, and so is this memory.
        stream.synchronise()?;
        let shapes = shapes?;
        check_free(&scratch)?;
        drop(scratch);
        let scratch = Scratch::shared(&self.gpu)?;
        let mut recorder = Recorder { session, stream, scratch };
        // For nothing but to see that it can be: in memory of its own.
        let outputs =
            self.types.1.iter().zip(&shapes).map(|(dtype, shape)| self.memory(*dtype, shape));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let places = Places {
            inputs: samples.iter().map(|input| input.address().unwrap_or(0)).collect(),
            outputs: outputs.iter().map(|output| output.address().as_ptr().addr()).collect(),
        };
        let taken = samples.iter().map(|input| input.shape().to_vec()).collect();
        let known = Known { taken, given: shapes };
        recorder.record(self, &places, &known)?;
        let bytes = lock(&recorder.scratch).byte_len();
        tracing::debug!(block = self.label, bytes, "runs are recorded");
        *lock(&self.recorder) = Some(recorder);
        Ok(known)
    }

    /// Has a run on this memory be recorded.
    fn record(self: &Arc<Self>, places: Places, known: Arc<Known>) {
        if !self.begin() {
            return;
        }
        let shared = Arc::clone(self);
        beside(move || {
            let mut recorder = lock(&shared.recorder);
            let made = recorder.as_mut().map(|recorder| recorder.record(&shared, &places, &known));
            let mut state = shared.state();
            state.is_busy = false;
            state.made += 1;
            match made {
                Some(Ok(recording)) => {
                    if state.kept.len() >= MOST_KEPT {
                        state.kept.remove(0);
                    }
                    state.kept.push((places, Arc::new(recording)));
                }
                Some(Err(error)) => {
                    tracing::debug!(block = shared.label, %error, "a run was not recorded");
                }
                None => {}
            }
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Recordings that are under way use memory that goes with the session. What goes wrong here can't be mended.
        self.gpu.synchronise().ok();
        self.state().kept.clear();
    }
}

impl Recorder {
    fn record(&mut self, shared: &Shared, places: &Places, known: &Known) -> Result<Recording> {
        let fail = |error: ort::Error| engine_error(&shared.label, &error);
        let location = self.session.location();
        let over = |addresses: &[usize], types: &[DType], shapes: &[Vec<usize>]| {
            let all = addresses.iter().zip(types).zip(shapes);
            // SAFETY: nothing is done with the memory here; whoever plays the recording has it.
            all.map(|((address, dtype), shape)| unsafe {
                OrtValue::at(location, *address, *dtype, shape)
            })
            .collect::<ort::Result<Vec<_>>>()
        };
        let inputs = over(&places.inputs, &shared.types.0, &known.taken).map_err(fail)?;
        let outputs = over(&places.outputs, &shared.types.1, &known.given).map_err(fail)?;
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

/// What a session keeps from one run to the next must not be in memory that others write meanwhile.
fn check_free(scratch: &Mutex<Scratch>) -> Result<()> {
    match lock(scratch).is_free() {
        true => Ok(()),
        false => Err(Error::unsupported("a recording of what keeps memory between runs")),
    }
}

/// Has something be done on the one thread that records.
fn beside(job: impl FnOnce() + Send + 'static) {
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
