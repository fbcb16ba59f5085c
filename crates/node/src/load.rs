//! Loads the blocks of models, each block once however many models use it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{ContentHash, Result};
use tessera_engine::{Engine, LoadOptions, Session};
use tessera_graph::BlockGraph;

use crate::ProgramSource;

/// A block that is loaded; whoever runs it holds the lock.
pub(crate) type LoadedBlock = Arc<Mutex<Box<dyn Session>>>;

/// Loads models onto an engine.
pub struct Loader {
    engine: Arc<dyn Engine>,
    options: LoadOptions,
    loaded: Mutex<HashMap<ContentHash, Weak<Mutex<Box<dyn Session>>>>>,
}

impl Loader {
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
    pub fn load(&self, graph: &BlockGraph, source: &dyn ProgramSource) -> Result<LoadedModel> {
        let blocks = graph
            .blocks
            .iter()
            .map(|node| self.block(node.block, source))
            .collect::<Result<Vec<_>>>()?;
        Ok(LoadedModel::new(graph.clone(), blocks))
    }

    fn block(&self, hash: ContentHash, source: &dyn ProgramSource) -> Result<LoadedBlock> {
        let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = loaded.get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let session = self.engine.load(&source.program(hash)?, &self.options)?;
        let block = Arc::new(Mutex::new(session));
        loaded.retain(|_, known| known.strong_count() > 0);
        loaded.insert(hash, Arc::downgrade(&block));
        Ok(block)
    }
}

/// A model whose blocks are loaded.
pub struct LoadedModel {
    pub(crate) graph: BlockGraph,
    pub(crate) blocks: Vec<LoadedBlock>,
    /// Per block, how many later blocks and outputs use each of its outputs.
    pub(crate) uses: Vec<Vec<usize>>,
}

impl LoadedModel {
    fn new(graph: BlockGraph, blocks: Vec<LoadedBlock>) -> Self {
        let mut uses: Vec<Vec<usize>> =
            graph.blocks.iter().map(|node| vec![0; node.outputs.len()]).collect();
        let sources = graph.blocks.iter().flat_map(|node| &node.inputs);
        for source in sources.chain(graph.outputs.iter().map(|(_, source)| source)) {
            if let tessera_graph::Source::Block { block, output } = *source {
                uses[block][output] += 1;
            }
        }
        Self { graph, blocks, uses }
    }

    /// How the blocks hang together.
    pub fn graph(&self) -> &BlockGraph {
        &self.graph
    }
}
