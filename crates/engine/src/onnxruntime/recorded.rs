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
use std::sync::{Arc, Mutex, MutexGuard};

use tessera_core::{Event, Location, Result, Tensor, TensorMut};
use tessera_cuda::{CudaEvent, Gpu, Recording, SideStream};

use super::bound::{BoundSession, Ports};
use super::lock;
use super::recorder::{Known, Places, Recorder, beside, memory};

/// Recordings of a block that are kept: one for each pair of memory that is read and written.
const MOST_KEPT: usize = 16;

/// Recordings that are made of a block: with more than this, memory is hardly the same twice.
const MOST_MADE: usize = 128;

/// Makes a session of a block on a stream, which has its memory from where the thread says.
pub(super) type MakeSession = Box<dyn Fn(&SideStream) -> Result<BoundSession> + Send + Sync>;

/// The recordings of a block.
pub(super) struct Recorded(Arc<Shared>);

struct Shared {
    gpu: Arc<Gpu>,
    ports: Arc<Ports>,
    make: MakeSession,
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

/// A run that may be recorded.
pub(super) enum Run {
    /// It was played: these are its outputs.
    Played(Vec<Tensor>),
    /// It has to be run, on this memory.
    Plain(Vec<Option<TensorMut>>),
}

impl Recorded {
    pub(super) fn new(gpu: Arc<Gpu>, ports: Arc<Ports>, make: MakeSession) -> Self {
        let (played, state, recorder) = Default::default();
        Self(Arc::new(Shared { gpu, ports, make, played, state, recorder }))
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
        let ports = shared.ports.outputs.iter().zip(&known.given);
        for (output, ((_, dtype), shape)) in outputs.iter_mut().zip(ports) {
            match output {
                Some(bound) if bound.shape() != shape => return Ok(Run::Plain(outputs)),
                Some(_) => {}
                None => *output = memory(&shared.gpu, *dtype, shape).ok(),
            }
        }
        if outputs.iter().any(Option::is_none) {
            // There is no memory for them; the session may have some.
            return Ok(Run::Plain(outputs));
        }
        let places = Places::of(inputs, outputs.iter().flatten());
        let Some(recording) = shared.state().find(&places) else {
            shared.record(places, known);
            return Ok(Run::Plain(outputs));
        };
        // SAFETY: the memory that it was recorded with is that of these tensors, which whoever uses it again does later
        // in the stream; that of the recorder's session, which is given back when all is done; and scratch that other
        // recordings use too, before and after it in the stream.
        unsafe { recording.play() }.map_err(|error| error.within(&shared.ports.label))?;
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
            let mut copy = memory(&self.gpu, input.dtype(), input.shape())?;
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
                tracing::debug!(block = self.ports.label, %error, "runs are not recorded");
                Stage::Never
            }
        };
    }

    fn try_on(&self, samples: &[Tensor]) -> Result<Known> {
        let (recorder, known) = Recorder::new(&self.gpu, &self.ports, &self.make, samples)?;
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
            let made = recorder.as_mut().map(|recorder| recorder.record(&places, &known));
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
                    tracing::debug!(block = shared.ports.label, %error, "a run was not recorded");
                    if recorder.as_ref().is_some_and(Recorder::is_spoilt) {
                        shared.gpu.synchronise().ok();
                        state.kept.clear();
                        state.stage = Stage::Never;
                        *recorder = None;
                    }
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
