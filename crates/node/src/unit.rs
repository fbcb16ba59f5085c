//! A unit that is loaded: sessions for every number of cores, and what their outputs look like.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{
    ContentHash, DType, Device, Error, ErrorKind, Location, Result, Tensor, TensorMut, ToBeWritten,
};
use tessera_engine::{Engine, LoadOptions, OpenSpan, Program, Session, begin_work};
use tessera_graph::{Block, BlockGraph, Source, fuse};
use tessera_plan::Unit;
use tessera_tensormq::Wait;

use crate::batch;
use crate::gpu_queue::{GpuQueue, GpuTime, GpuTimes, Told};
use crate::measure::Summary;
use crate::memory::Memory;
use crate::reach::for_device;
use crate::{ProgramSource, lock};

/// Shapes of inputs whose outputs are remembered; with more than this, none are.
const MOST_SHAPES: usize = 256;

/// Shapes of inputs that have sessions of their own on a GPU.
const MOST_SHAPES_ON_GPU: usize = 16;

/// Runs on a GPU after which it is decided whether to record the next ones.
const RUNS_BEFORE_RECORDING: usize = 32;

/// Runs are recorded where the GPU takes less than so many times as long as being told. With more, a recording has little to
/// win for the memory that it needs. Well before telling takes as long as the GPU works: processes that tell it at the same
/// time slow each other down (ResNet-50 in four, 32 rows, where the first takes a ninth: by 0.1 ms).
const RECORDED_FROM: f64 = 16.0;

/// A unit whose blocks are loaded.
pub struct LoadedUnit {
    engine: Arc<dyn Engine>,
    options: LoadOptions,
    /// What is run: one block where the unit's blocks were fused.
    graph: BlockGraph,
    programs: Vec<Program>,
    /// Sessions that nobody runs at the moment, by number of threads.
    free: Mutex<BTreeMap<NonZeroUsize, Vec<Sessions>>>,
    /// What outputs look like, by what inputs look like. `None`: it depends on more than that.
    shapes: Mutex<HashMap<Vec<Vec<usize>>, Option<Shapes>>>,
    /// Sessions on a GPU, by the shapes of inputs.
    on_gpu: Mutex<HashMap<Shapes, Arc<Mutex<GpuSessions>>>>,
    /// What its GPU has to do.
    queue: Option<Arc<GpuQueue>>,
    /// How long its GPU worked for it.
    gpu_time: Arc<GpuTime>,
    /// How many runs of its blocks were played.
    played: AtomicU64,
    is_fused: bool,
}

/// What a run takes, and when.
pub(crate) struct Turn<'a> {
    /// The inputs of each request.
    pub(crate) requests: Vec<&'a [Tensor]>,
    /// Those of all of them as one; asked for when it is its turn.
    pub(crate) inputs: &'a mut dyn FnMut() -> Result<Vec<Tensor>>,
    /// Who sends outputs on that a GPU has still to be told to write.
    pub(crate) ahead: Option<&'a mut dyn SendAhead>,
}

/// Sends outputs on that a GPU has still to be told to write.
pub(crate) trait SendAhead {
    /// Whether any was sent.
    fn send(&mut self, outputs: &[Tensor]) -> bool;
}

/// Memory for the outputs of a run on a GPU: to write, and as tensors that are handed on.
struct Bound {
    targets: Vec<(Source, TensorMut)>,
    outputs: Vec<Tensor>,
}

/// A session for each block.
type Sessions = Vec<Box<dyn Session>>;

/// Sessions on a GPU.
struct GpuSessions {
    sessions: Sessions,
    /// For how long the GPU was told of each run, since it was last decided on recording them.
    told: Vec<Duration>,
    /// Whether the last run was played from a recording: telling the GPU takes no time then.
    is_quick: bool,
}

impl GpuSessions {
    fn new(sessions: Sessions) -> Self {
        Self { sessions, told: Vec::new(), is_quick: false }
    }

    fn played(&self) -> u64 {
        self.sessions.iter().map(|session| session.played_runs()).sum()
    }

    /// Has runs be recorded where telling the GPU takes long, beside what it does for so many rows.
    fn ran(&mut self, told: Duration, gpu_nanoseconds: u64) {
        self.told.push(told);
        if self.told.len() < RUNS_BEFORE_RECORDING {
            return;
        }
        if is_long(&std::mem::take(&mut self.told), gpu_nanoseconds) {
            self.sessions.iter_mut().for_each(|session| session.record_runs());
        }
    }
}

/// Whether telling the GPU takes long, beside what it does: by the middle of some runs, as single ones take longer now and
/// then, and the first always does.
fn is_long(told: &[Duration], gpu_nanoseconds: u64) -> bool {
    Summary::of(told)
        .is_some_and(|told| told.median_ms * RECORDED_FROM * 1e6 > gpu_nanoseconds as f64)
}

/// The shape of each input or output.
type Shapes = Vec<Vec<usize>>;

impl LoadedUnit {
    /// Loads the blocks of a unit, for runs on each of these numbers of threads; on the unit's device, and in other ways as
    /// the options say.
    pub fn load(
        engine: Arc<dyn Engine>,
        source: &dyn ProgramSource,
        unit: &Unit,
        threads: &[NonZeroUsize],
        options: LoadOptions,
    ) -> Result<Self> {
        let options = LoadOptions { device: unit.settings.device, ..options };
        let members = unit.blocks().map(|hash| source.program(hash)).collect::<Result<Vec<_>>>()?;
        let (graph, programs) = match fused(unit, &members) {
            Some((graph, program)) => (graph, vec![program]),
            None => (unit.graph.clone(), members),
        };
        let programs = programs
            .into_iter()
            .zip(&graph.blocks)
            .map(|(program, node)| {
                let types = node.inputs.iter().map(|&source| graph.source_type(source).cloned());
                match types.collect::<Option<Vec<_>>>() {
                    Some(types) => program.with_input_types(&types),
                    None => Ok(program),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let queue = GpuQueue::of(options.device, unit.settings.isolation);
        let loaded = Self {
            engine,
            options,
            is_fused: graph.blocks.len() < unit.graph.blocks.len(),
            graph,
            programs,
            free: Mutex::default(),
            shapes: Mutex::default(),
            on_gpu: Mutex::default(),
            queue,
            gpu_time: Arc::default(),
            played: AtomicU64::default(),
        };
        // The smallest and the largest share are common; others are loaded when they come up.
        let common = match loaded.options.device {
            Device::Cpu => [threads.first(), threads.last()],
            // A GPU needs one to be told what to do.
            Device::Cuda(_) => [Some(&NonZeroUsize::MIN), None],
        };
        for threads in common.into_iter().flatten() {
            let sessions = loaded.sessions(*threads)?;
            lock(&loaded.free).entry(*threads).or_default().push(sessions);
        }
        Ok(loaded)
    }

    /// Whether several blocks became one.
    pub fn is_fused(&self) -> bool {
        self.is_fused
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> usize {
        let mut seen: HashMap<ContentHash, usize> = HashMap::new();
        for weight in self.programs.iter().flat_map(|program| program.block().weights()) {
            seen.insert(weight.hash, weight.byte_len);
        }
        seen.values().sum()
    }

    /// What it runs on.
    pub fn device(&self) -> Device {
        self.options.device
    }

    /// How long its GPU worked for it; nothing on the CPU.
    pub(crate) fn gpu_time(&self) -> GpuTimes {
        if let Some(queue) = &self.queue {
            queue.tidy();
        }
        self.gpu_time.read()
    }

    /// How many runs of its blocks were played from a recording.
    pub(crate) fn played(&self) -> u64 {
        self.played.load(Ordering::Relaxed)
    }

    /// Nanoseconds that its GPU took for so many rows last time; 0 where that is not known yet.
    pub(crate) fn gpu_time_of(&self, rows: usize) -> u64 {
        self.gpu_time.of(rows)
    }

    /// Runs the unit on tensors that are there.
    pub fn run(
        &self,
        threads: NonZeroUsize,
        inputs: &[Tensor],
        memory: &dyn Memory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let turn =
            Turn { requests: vec![inputs], inputs: &mut || Ok(inputs.to_vec()), ahead: None };
        self.run_turn(threads, turn, memory, wait)
    }

    /// Waits until its GPU has room for another run.
    pub(crate) fn wait_for_room(&self) -> Result<()> {
        self.queue.as_ref().map_or(Ok(()), |queue| queue.wait_for_room())
    }

    fn sessions(&self, threads: NonZeroUsize) -> Result<Sessions> {
        if let Some(free) = lock(&self.free).get_mut(&threads).and_then(Vec::pop) {
            return Ok(free);
        }
        let options = LoadOptions { threads, ..self.options.clone() };
        self.programs.iter().map(|program| self.engine.load(program, &options)).collect()
    }

    /// Has the next run on so many threads give the memory that it needed for itself back.
    pub(crate) fn release_memory(&self, threads: NonZeroUsize) {
        for session in lock(&self.free).get_mut(&threads).into_iter().flatten().flatten() {
            session.release_memory();
        }
    }

    /// Runs the unit on so many threads; outputs are in `memory` wherever that can be known before.
    pub(crate) fn run_turn(
        &self,
        threads: NonZeroUsize,
        turn: Turn<'_>,
        memory: &dyn Memory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        if self.options.device != Device::Cpu {
            return self.run_on_gpu(turn, memory, wait);
        }
        let inputs = &for_device(self.options.device, &(turn.inputs)()?)?[..];
        let mut sessions = self.sessions(threads)?;
        let key: Vec<Vec<usize>> = inputs.iter().map(|input| input.shape().to_vec()).collect();
        let known = lock(&self.shapes).get(&key).cloned();
        let result = match &known {
            Some(Some(shapes)) => {
                match self.run_into(&mut sessions, inputs, shapes, memory, wait) {
                    Err(error)
                        if !matches!(error.kind(), ErrorKind::Full | ErrorKind::TimedOut) =>
                    {
                        // The shapes may depend on what is in the tensors.
                        let result = self.run_free(&mut sessions, inputs);
                        if result.is_ok() {
                            lock(&self.shapes).insert(key, None);
                        }
                        result
                    }
                    result => result,
                }
            }
            Some(None) => self.run_free(&mut sessions, inputs),
            None => {
                let result = self.run_free(&mut sessions, inputs);
                if let Ok(outputs) = &result {
                    self.remember(key, outputs);
                }
                result
            }
        };
        lock(&self.free).entry(threads).or_default().push(sessions);
        // What the engine allocated itself would be copied when it is sent, to one of few buffers that
        // whoever receives it may keep.
        result?.into_iter().map(|output| memory.adopt(output, wait)).collect()
    }

    /// Runs the unit on its GPU; it is told what to do when this returns.
    ///
    /// A session that gets other shapes than last time chooses its algorithms anew, which takes as long as many runs
    /// (ResNet-50 on an H200: 100 ms). So there is a session for each; the weights are there once.
    fn run_on_gpu(&self, turn: Turn<'_>, memory: &dyn Memory, wait: Wait) -> Result<Vec<Tensor>> {
        let Turn { requests, inputs, ahead } = turn;
        let key = batch::shapes(&requests);
        // On the host they must stay until the GPU has read them.
        let on_host = |input: &&Tensor| input.location() == Location::Host;
        let reads = requests.into_iter().flatten().filter(on_host).cloned().collect();
        let sessions = {
            let mut known = lock(&self.on_gpu);
            // What comes in many shapes takes turns at one.
            let place = match known.contains_key(&key) || known.len() < MOST_SHAPES_ON_GPU {
                true => key.clone(),
                false => Vec::new(),
            };
            match known.get(&place) {
                Some(sessions) => Arc::clone(sessions),
                None => {
                    let sessions = self.sessions(NonZeroUsize::MIN)?;
                    let sessions = Arc::new(Mutex::new(GpuSessions::new(sessions)));
                    known.insert(place, Arc::clone(&sessions));
                    sessions
                }
            }
        };
        let bound = self.bound_on_gpu(&key, memory);
        let rows = key.first().and_then(|shape| shape.first()).copied().unwrap_or(1);
        let tell = || {
            let on_gpu = &mut *lock(&sessions);
            let played = on_gpu.played();
            let sessions = &mut on_gpu.sessions;
            // Whoever is next is told first, where telling the GPU takes longer than that.
            let (is_quick, mut ahead) = (on_gpu.is_quick, ahead);
            let is_ahead = match (&mut ahead, &bound) {
                (Some(ahead), Some(bound)) if !is_quick => ahead.send(&bound.outputs),
                _ => false,
            };
            let is_bound = bound.is_some();
            let given = inputs()?;
            let work = begin_work(self.options.device)?;
            let inputs = &for_device(self.options.device, &given)?[..];
            let begun = Instant::now();
            let outputs = match bound {
                Some(Bound { targets, outputs }) => {
                    match self.run_blocks(sessions, inputs, targets) {
                        Ok(_) => outputs,
                        // The shapes may depend on what is in the tensors.
                        Err(_) if !is_ahead => {
                            let outputs = self.run_free(sessions, inputs)?;
                            lock(&self.shapes).insert(key.clone(), None);
                            outputs
                        }
                        Err(error) => return Err(error),
                    }
                }
                None => self.run_free(sessions, inputs)?,
            };
            on_gpu.ran(begun.elapsed(), self.gpu_time.of(rows));
            let played = on_gpu.played() - played;
            on_gpu.is_quick = played > 0;
            self.played.fetch_add(played, Ordering::Relaxed);
            let ahead = ahead.filter(|_| is_quick && is_bound);
            // Before anything else is put into the stream: others wait for it.
            if is_ahead || ahead.is_some() {
                memory.written(&outputs)?;
            }
            let span = work.map(OpenSpan::end).transpose()?;
            if let Some(ahead) = ahead {
                ahead.send(&outputs);
            }
            Ok(Told { result: outputs, span, reads })
        };
        let outputs = match &self.queue {
            Some(queue) => queue.run(rows, &self.gpu_time, tell)?,
            None => tell()?.result,
        };
        if !lock(&self.shapes).contains_key(&key) {
            self.remember(key, &outputs);
        }
        outputs.into_iter().map(|output| memory.adopt(output, wait)).collect()
    }

    /// Memory that others read on the GPU for every output; `None` where there is none, or where their shapes are
    /// not known yet.
    fn bound_on_gpu(&self, key: &[Vec<usize>], memory: &dyn Memory) -> Option<Bound> {
        let shapes = lock(&self.shapes).get(key).cloned()??;
        let (mut targets, mut outputs) = (Vec::new(), Vec::new());
        for ((port, source), shape) in self.graph.outputs.iter().zip(&shapes) {
            // What is an input as it is needs no memory of its own.
            let Source::Block { .. } = source else { return None };
            let dtype = port.tensor_type.dtype;
            let output = memory.tensor_on_gpu(dtype, shape)?.freeze();
            let (region, _) = output.region()?;
            let target = TensorMut::over(dtype, shape, Box::new(ToBeWritten(Arc::clone(region))));
            targets.push((*source, target.ok()?));
            outputs.push(output);
        }
        Some(Bound { targets, outputs })
    }

    fn remember(&self, key: Vec<Vec<usize>>, outputs: &[Tensor]) {
        let mut shapes = lock(&self.shapes);
        if shapes.len() < MOST_SHAPES {
            let is_bytes = outputs.iter().all(|output| output.dtype() != DType::String);
            let found = outputs.iter().map(|output| output.shape().to_vec()).collect();
            shapes.insert(key, is_bytes.then_some(found));
        }
    }

    fn run_into(
        &self,
        sessions: &mut Sessions,
        inputs: &[Tensor],
        shapes: &[Vec<usize>],
        memory: &dyn Memory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let bound = self.graph.outputs.iter().zip(shapes).map(|((port, source), shape)| {
            let tensor = memory.tensor(port.tensor_type.dtype, shape, wait)?;
            Ok((*source, tensor))
        });
        let bound = bound.collect::<Result<Vec<_>>>()?;
        self.run_blocks(sessions, inputs, bound)
    }

    fn run_free(&self, sessions: &mut Sessions, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_blocks(sessions, inputs, Vec::new())
    }

    /// Runs block after block; outputs go to the memory that is given for them.
    fn run_blocks(
        &self,
        sessions: &mut Sessions,
        inputs: &[Tensor],
        bound: Vec<(Source, TensorMut)>,
    ) -> Result<Vec<Tensor>> {
        let missing = || Error::invalid("a block uses what no earlier block computes");
        let mut bound: HashMap<Source, TensorMut> = bound.into_iter().collect();
        let mut values: Vec<Vec<Tensor>> = Vec::with_capacity(sessions.len());
        let find = |values: &[Vec<Tensor>], source: Source| match source {
            Source::Input(index) => inputs.get(index).cloned().ok_or_else(missing),
            Source::Block { block, output } => {
                values.get(block).and_then(|made| made.get(output)).cloned().ok_or_else(missing)
            }
        };
        for (block, (session, node)) in sessions.iter_mut().zip(&self.graph.blocks).enumerate() {
            let given = node.inputs.iter().map(|&source| find(&values, source));
            let given = given.collect::<Result<Vec<_>>>()?;
            let outputs = (0..node.outputs.len())
                .map(|output| bound.remove(&Source::Block { block, output }))
                .collect();
            values.push(session.run(&given, outputs)?);
        }
        self.graph.outputs.iter().map(|(_, source)| find(&values, *source)).collect()
    }
}

/// The blocks of a unit as one program, where there are several and they can be.
fn fused(unit: &Unit, members: &[Program]) -> Option<(BlockGraph, Program)> {
    if members.len() < 2 {
        return None;
    }
    let member = |hash: ContentHash| -> Result<Block> {
        let found = members.iter().find(|program| program.block().hash() == hash);
        let found = found.map(|program| program.block().clone());
        found.ok_or_else(|| Error::not_found(format!("block {}", hash.short())))
    };
    let (block, graph) = fuse(&unit.graph, &member).ok()?;
    let mut weights = HashMap::new();
    for program in members {
        for (reference, weight) in program.block().weights().iter().zip(program.weights()) {
            weights.insert((reference.hash, reference.shape.clone()), weight.clone());
        }
    }
    let weights = block
        .weights()
        .iter()
        .map(|reference| weights.get(&(reference.hash, reference.shape.clone())).cloned())
        .collect::<Option<Vec<_>>>()?;
    Some((graph, Program::new(block, weights).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_recorded_where_telling_takes_long_most_of_the_time() {
        let told = |now_and_then: u64, mostly: u64| -> Vec<Duration> {
            let each = |run| if run % 8 == 0 { now_and_then } else { mostly };
            (0..RUNS_BEFORE_RECORDING).map(|run| Duration::from_nanos(each(run))).collect()
        };
        // One that takes long, as the first does, decides nothing.
        assert!(!is_long(&told(1_000_000, 10), 1000));
        assert!(is_long(&told(1, 100), 1000));
        // Where what the GPU takes is not known yet.
        assert!(is_long(&told(1, 1), 0));
        // And it is decided after so many runs, again and again.
        let mut sessions = GpuSessions::new(Vec::new());
        for run in 1..=4 * RUNS_BEFORE_RECORDING {
            sessions.ran(Duration::from_nanos(1), 0);
            assert_eq!(sessions.told.len(), run % RUNS_BEFORE_RECORDING);
        }
    }
}
