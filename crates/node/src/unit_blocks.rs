//! The blocks of a unit: its programs, loaded onto an engine as often as somebody needs them, and
//! run one after the other.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use tessera_core::{ContentHash, DType, Device, Error, Result, Tensor, TensorMut, lock};
use tessera_deploy::Unit;
use tessera_engine::{
    CudaEngineSession, Engine, EngineSession, LoadOptions, Program, WeightLoading,
};
use tessera_graph::{Block, BlockGraph, RunForecast, TensorSource, fuse_blocks};
use tessera_tensormq::Wait;

use crate::ProgramSource;
use crate::memory::TensorMemory;
use crate::residency::WeightPart;
use crate::run_memory::{RunMemory, RunReservation};

/// Shapes of inputs of which something is remembered.
const MOST_SHAPES: usize = 256;

/// The shape of each input or output.
pub(crate) type TensorShapes = Vec<Vec<usize>>;

/// The shapes of inputs.
pub(crate) fn input_shapes(inputs: &[Tensor]) -> TensorShapes {
    inputs.iter().map(|input| input.shape().to_vec()).collect()
}

/// The blocks of a unit, ready to be loaded.
pub(crate) struct UnitBlocks {
    engine: Arc<dyn Engine>,
    options: LoadOptions,
    /// What is run: one block where the unit's blocks were fused.
    graph: BlockGraph,
    programs: Vec<Program>,
    is_fused: bool,
    /// What outputs look like, by what inputs look like. `None`: it depends on more than that.
    output_shapes: Mutex<HashMap<TensorShapes, Option<TensorShapes>>>,
    /// Per block and shapes of its inputs, the bytes that a run takes.
    forecasts: Mutex<HashMap<(usize, TensorShapes), u64>>,
    /// What runs may take.
    run_memory: Arc<RunMemory>,
}

impl UnitBlocks {
    /// Whether some of it is run as often as its values say.
    pub(crate) fn has_loops(&self) -> bool {
        self.programs.iter().any(|program| program.block().has_loops())
    }

    /// Fetches the blocks of a unit, and fuses them where they can be.
    pub(crate) fn fetch(
        engine: Arc<dyn Engine>,
        source: &dyn ProgramSource,
        unit: &Unit,
        options: LoadOptions,
        run_memory: Arc<RunMemory>,
    ) -> Result<Self> {
        let options = LoadOptions { device: unit.settings.device, ..options };
        let members = unit
            .block_hashes()
            .map(|hash| source.fetch_program(hash))
            .collect::<Result<Vec<_>>>()?;
        let (graph, programs) = match fuse_programs(unit, &members) {
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
        let is_fused = graph.blocks.len() < unit.graph.blocks.len();
        let (output_shapes, forecasts) = (Mutex::default(), Mutex::default());
        Ok(Self {
            engine,
            options,
            graph,
            programs,
            is_fused,
            output_shapes,
            forecasts,
            run_memory,
        })
    }

    /// Whether several blocks became one.
    pub(crate) fn is_fused(&self) -> bool {
        self.is_fused
    }

    /// Bytes of its weights.
    pub(crate) fn weight_bytes(&self) -> usize {
        distinct_weight_bytes(self.programs.iter().map(Program::block))
    }

    /// What is loaded as one, each once.
    pub(crate) fn weight_parts(&self) -> Vec<WeightPart> {
        let part = |program: &Program| {
            let bytes = distinct_weight_bytes(std::iter::once(program.block())) as u64;
            (program.key(), self.most_on_gpu(program).map_or(bytes, |most| most.min(bytes)))
        };
        let parts: HashMap<ContentHash, u64> = self.programs.iter().map(part).collect();
        parts.into_iter().map(|(hash, bytes)| WeightPart { hash, bytes }).collect()
    }

    /// Gives back what is left of weights that no session has any more.
    pub(crate) fn release_weights(&self) {
        self.programs.iter().for_each(Program::release_weight_pages);
        tessera_engine::release_freed_memory();
    }

    /// What it runs on.
    pub(crate) fn device(&self) -> Device {
        self.options.device
    }

    /// Has so many bytes of its weights be on a GPU at most; it reads all others over the bus.
    pub(crate) fn limit_on_gpu(&mut self, most: u64) {
        self.options.weights = WeightLoading::DirectHostAccess;
        self.options.most_on_gpu = Some(most);
    }

    /// A session on a GPU for each block. What of the weights may be there they divide by their
    /// sizes.
    pub(crate) fn load_gpu_sessions(&self) -> Result<Vec<Box<dyn CudaEngineSession>>> {
        let load = |program: &Program| {
            let most_on_gpu = self.most_on_gpu(program);
            let options = LoadOptions { most_on_gpu, ..self.options.clone() };
            self.engine.load_cuda_program(program, &options)
        };
        self.programs.iter().map(load).collect()
    }

    fn most_on_gpu(&self, program: &Program) -> Option<u64> {
        let most = self.options.most_on_gpu?;
        let own = distinct_weight_bytes(std::iter::once(program.block()));
        let share = own as f64 / self.weight_bytes().max(1) as f64;
        Some((most as f64 * share) as u64)
    }

    /// A session for each block, for runs on so many threads.
    pub(crate) fn load_sessions(
        &self,
        threads: NonZeroUsize,
    ) -> Result<Vec<Box<dyn EngineSession>>> {
        let options = LoadOptions { threads, ..self.options.clone() };
        self.programs.iter().map(|program| self.engine.load_program(program, &options)).collect()
    }

    /// Has the engine give memory back that no run needs.
    pub(crate) fn release_idle_memory(&self) {
        self.engine.release_idle_memory();
    }

    /// The same where this process has come to hold much, and its runs are small now.
    pub(crate) fn release_grown_memory(&self) {
        if self.run_memory.is_calm() {
            tessera_engine::release_grown_memory(|| self.release_idle_memory());
        }
    }

    /// The outputs with the block that computes each, and its dtype.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (TensorSource, DType)> {
        self.graph.outputs.iter().map(|(port, source)| (*source, port.tensor_type.dtype))
    }

    /// What outputs look like where inputs have these shapes: `None` where that is not known yet,
    /// `Some(None)` where it depends on more than that.
    pub(crate) fn known_output_shapes(
        &self,
        inputs: &TensorShapes,
    ) -> Option<Option<TensorShapes>> {
        lock(&self.output_shapes).get(inputs).cloned()
    }

    /// Remembers what outputs look like where inputs have these shapes.
    pub(crate) fn remember_output_shapes(&self, inputs: TensorShapes, outputs: &[Tensor]) {
        let is_bytes = outputs.iter().all(|output| output.dtype() != DType::String);
        let outputs = is_bytes.then(|| input_shapes(outputs));
        remember_shapes(&mut lock(&self.output_shapes), inputs, outputs);
    }

    /// What outputs look like depends on more than these shapes.
    pub(crate) fn forget_output_shapes(&self, inputs: TensorShapes) {
        remember_shapes(&mut lock(&self.output_shapes), inputs, None);
    }

    /// Memory for outputs of these shapes.
    pub(crate) fn bind_outputs(
        &self,
        shapes: &TensorShapes,
        memory: &dyn TensorMemory,
        wait: Wait,
    ) -> Result<Vec<(TensorSource, TensorMut)>> {
        let bind = |((source, dtype), shape): ((TensorSource, DType), &Vec<usize>)| {
            Ok((source, memory.allocate_tensor(dtype, shape, wait)?))
        };
        self.outputs().zip(shapes).map(bind).collect()
    }

    /// Refuses what a block can't take, and has room for what its run takes.
    fn prepare_run(&self, block: usize, inputs: &[Tensor], wait: Wait) -> Result<RunReservation> {
        let key = (block, input_shapes(inputs));
        let known = lock(&self.forecasts).get(&key).copied();
        let bytes = match (known, self.programs.get(block)) {
            (Some(known), _) => known,
            (None, None) => 0,
            (None, Some(program)) => {
                let bytes = RunForecast::of_block(program.block(), &key.1)?.peak_bytes;
                remember_shapes(&mut lock(&self.forecasts), key, bytes);
                bytes
            }
        };
        let is_on_host = self.options.device == Device::Cpu;
        self.run_memory.reserve(if is_on_host { bytes } else { 0 }, wait)
    }

    /// Runs block after block; outputs go to the memory that is given for them.
    pub(crate) fn run_blocks<S: EngineSession + ?Sized>(
        &self,
        sessions: &mut [Box<S>],
        inputs: &[Tensor],
        bound: Vec<(TensorSource, TensorMut)>,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let missing = || Error::invalid("a block uses what no earlier block computes");
        let mut bound: HashMap<TensorSource, TensorMut> = bound.into_iter().collect();
        let mut values: Vec<Vec<Tensor>> = Vec::with_capacity(sessions.len());
        let find = |values: &[Vec<Tensor>], source: TensorSource| match source {
            TensorSource::Input(index) => inputs.get(index).cloned().ok_or_else(missing),
            TensorSource::Block { block, output } => {
                values.get(block).and_then(|made| made.get(output)).cloned().ok_or_else(missing)
            }
        };
        for (block, (session, node)) in sessions.iter_mut().zip(&self.graph.blocks).enumerate() {
            let given = node.inputs.iter().map(|&source| find(&values, source));
            let given = given.collect::<Result<Vec<_>>>()?;
            let outputs = (0..node.outputs.len())
                .map(|output| bound.remove(&TensorSource::Block { block, output }))
                .collect();
            let _room = self.prepare_run(block, &given, wait)?;
            values.push(session.run_inference(&given, outputs)?);
        }
        self.graph.outputs.iter().map(|(_, source)| find(&values, *source)).collect()
    }
}

/// Bytes of the weights of blocks, each counted once.
pub(crate) fn distinct_weight_bytes<'a>(blocks: impl Iterator<Item = &'a Block>) -> usize {
    let weights = blocks.flat_map(Block::weights).map(|weight| (weight.hash, weight.byte_len));
    weights.collect::<HashMap<_, _>>().values().sum()
}

/// Remembers something of shapes; with too many of them, begins anew.
fn remember_shapes<K: Eq + std::hash::Hash, V>(known: &mut HashMap<K, V>, key: K, value: V) {
    if known.len() >= MOST_SHAPES {
        known.clear();
    }
    known.insert(key, value);
}

/// The blocks of a unit as one program, where there are several and they can be.
fn fuse_programs(unit: &Unit, members: &[Program]) -> Option<(BlockGraph, Program)> {
    if members.len() < 2 {
        return None;
    }
    let member = |hash: ContentHash| -> Result<Block> {
        let found = members.iter().find(|program| program.block().hash() == hash);
        let found = found.map(|program| program.block().clone());
        found.ok_or_else(|| Error::not_found(format!("block {}", hash.short_hex())))
    };
    let (block, graph) = fuse_blocks(&unit.graph, &member).ok()?;
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
