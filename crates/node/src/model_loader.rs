//! Loads the blocks of models, each block once however many models use it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{ContentHash, Result, TensorType, lock};
use tessera_engine::{Engine, EngineSession, LoadOptions};
use tessera_graph::BlockGraph;

use crate::ProgramSource;
use crate::buffer_pool::BufferPool;

/// A block that is loaded; whoever runs it holds the lock.
pub(crate) type LoadedBlock = Arc<LockedSession>;

type LockedSession = Mutex<Box<dyn EngineSession>>;

/// Loads models onto an engine.
pub struct ModelLoader {
    engine: Arc<dyn Engine>,
    options: LoadOptions,
    loaded: Mutex<HashMap<LoadKey, Weak<LockedSession>>>,
}

/// A block, and the types of its inputs: a session is made for them.
type LoadKey = (ContentHash, Option<Vec<TensorType>>);

impl ModelLoader {
    /// A loader for this engine.
    pub fn new(engine: Arc<dyn Engine>, options: LoadOptions) -> Self {
        Self { engine, options, loaded: Mutex::new(HashMap::new()) }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// How blocks are loaded.
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// Loads the blocks of a model; those that another model has loaded are shared.
    pub fn load_model(
        &self,
        graph: &BlockGraph,
        source: &dyn ProgramSource,
    ) -> Result<LoadedModel> {
        let blocks = graph
            .blocks
            .iter()
            .map(|node| {
                let types = node.inputs.iter().map(|&source| graph.source_type(source).cloned());
                self.load_block(node.block, types.collect(), source)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(LoadedModel::new(graph.clone(), blocks))
    }

    fn load_block(
        &self,
        hash: ContentHash,
        inputs: Option<Vec<TensorType>>,
        source: &dyn ProgramSource,
    ) -> Result<LoadedBlock> {
        let key = (hash, inputs);
        let mut loaded = lock(&self.loaded);
        if let Some(known) = loaded.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let mut program = source.fetch_program(hash)?;
        if let Some(inputs) = &key.1 {
            program = program.with_input_types(inputs)?;
        }
        let session = self.engine.load_program(&program, &self.options)?;
        let block = Arc::new(Mutex::new(session));
        loaded.retain(|_, known| known.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&block));
        Ok(block)
    }
}

/// A model whose blocks are loaded.
pub struct LoadedModel {
    pub(crate) graph: BlockGraph,
    pub(crate) blocks: Vec<LoadedBlock>,
    /// Per block, how many later blocks and outputs use each of its outputs.
    pub(crate) uses: Vec<Vec<usize>>,
    /// Per block, whether a run has shown that its outputs have the shapes that were inferred.
    pub(crate) confirmed: Vec<AtomicBool>,
    pub(crate) buffers: Arc<BufferPool>,
}

impl LoadedModel {
    fn new(graph: BlockGraph, blocks: Vec<LoadedBlock>) -> Self {
        let mut uses: Vec<Vec<usize>> =
            graph.blocks.iter().map(|node| vec![0; node.outputs.len()]).collect();
        let sources = graph.blocks.iter().flat_map(|node| &node.inputs);
        for source in sources.chain(graph.outputs.iter().map(|(_, source)| source)) {
            if let tessera_graph::TensorSource::Block { block, output } = *source {
                uses[block][output] += 1;
            }
        }
        let confirmed = graph.blocks.iter().map(|_| AtomicBool::new(false)).collect();
        Self { graph, blocks, uses, confirmed, buffers: Arc::default() }
    }

    /// How the blocks hang together.
    pub fn graph(&self) -> &BlockGraph {
        &self.graph
    }
}
