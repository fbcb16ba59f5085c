//! A model in its segments: cut at every cut point. Any other cut of it is made by joining
//! neighbours again, without the model's file.
//!
//! What is joined is written in the one form of a block, so that it is the block that cutting the
//! model there would have given. Where it is not, as an exporter wrote the same cheap node several
//! times, less is shared, and answers are the same.

mod join;
mod merge;
mod with_stored;

use std::collections::{HashMap, HashSet};

use tessera_core::{ContentHash, Error, Result};

use crate::block::Block;
use crate::block_graph::{BlockGraph, BlockNode, TensorSource};
use crate::exits::Exit;
use crate::partition::Partition;
use crate::share::{SegmentToken, next_token};
use join::JoinedRun;
pub use with_stored::{AddedModel, ModelCut, find_segments, share_with_stored};

/// A model, cut at every cut point.
#[derive(Clone, Debug)]
pub struct SegmentedModel {
    graph: BlockGraph,
    blocks: HashMap<ContentHash, Block>,
    /// The blocks that requests pass one after the other, without heads of exits.
    trunk: Vec<usize>,
}

/// A model that was cut anew; its weights are where they were.
#[derive(Clone, Debug)]
pub struct RecutModel {
    /// How the blocks hang together.
    pub graph: BlockGraph,
    /// Every block that the graph names.
    pub blocks: HashMap<ContentHash, Block>,
}

impl SegmentedModel {
    /// A model that was cut at every cut point.
    pub fn of_partition(partition: Partition) -> Result<Self> {
        Self::of_parts(partition.graph, partition.blocks.into_values())
    }

    /// The same from its graph and the blocks that the graph names.
    pub fn of_parts(graph: BlockGraph, blocks: impl IntoIterator<Item = Block>) -> Result<Self> {
        let blocks: HashMap<ContentHash, Block> =
            blocks.into_iter().map(|block| (block.hash(), block)).collect();
        if let Some(lacking) = graph.blocks.iter().find(|node| !blocks.contains_key(&node.block)) {
            let hash = lacking.block.short_hex();
            return Err(Error::invalid(format!("block {hash} is not among the segments")));
        }
        let heads: HashSet<usize> = graph.exits.iter().map(|exit| exit.head).collect();
        // What takes nothing hands out constants.
        let is_passed =
            |&block: &usize| !heads.contains(&block) && !graph.blocks[block].inputs.is_empty();
        let trunk = (0..graph.blocks.len()).filter(is_passed).collect();
        Ok(Self { graph, blocks, trunk })
    }

    /// How its segments hang together.
    pub fn graph(&self) -> &BlockGraph {
        &self.graph
    }

    /// The blocks that its graph names.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// How many segments its trunk has: it can be cut after each but the last.
    pub fn trunk_len(&self) -> usize {
        self.trunk.len()
    }

    /// After which segments of the trunk it is cut in any case, as exits hang from there.
    pub(crate) fn exit_borders(&self) -> HashSet<usize> {
        let after = self.graph.exits.iter().filter_map(|exit| exit.after);
        after.filter_map(|block| self.trunk.iter().position(|&passed| passed == block)).collect()
    }

    /// What each segment of the trunk is, as far as sharing is concerned.
    pub(crate) fn tokens(&self) -> Vec<SegmentToken> {
        let mut before = SegmentToken::default();
        let mut token = |&block: &usize| {
            before = next_token(&before, &self.blocks[&self.graph.blocks[block].block]);
            before
        };
        self.trunk.iter().map(&mut token).collect()
    }

    /// Cuts it after these segments of the trunk, and where exits hang from.
    pub fn cut_after(&self, borders: &[usize]) -> Result<RecutModel> {
        let forced = self.exit_borders();
        let mut runs: Vec<Vec<usize>> = vec![Vec::new()];
        for (position, &block) in self.trunk.iter().enumerate() {
            if let Some(run) = runs.last_mut() {
                run.push(block);
            }
            if borders.contains(&position) || forced.contains(&position) {
                runs.push(Vec::new());
            }
        }
        let run_of: HashMap<usize, &Vec<usize>> =
            runs.iter().flat_map(|run| run.iter().map(move |&block| (block, run))).collect();
        let mut recut = Recutting::new(self);
        for block in 0..self.graph.blocks.len() {
            match run_of.get(&block) {
                // It is written where all that it takes is there.
                Some(run) if run.last() != Some(&block) => {}
                Some(run) => recut.add_run(run)?,
                None => recut.add_run(&[block])?,
            }
        }
        recut.finish()
    }
}

/// A model that is being cut anew.
struct Recutting<'a> {
    model: &'a SegmentedModel,
    made: RecutModel,
    /// Where what segments compute comes from now.
    sources: HashMap<TensorSource, TensorSource>,
    /// Which block is which now.
    numbers: HashMap<usize, usize>,
}

impl<'a> Recutting<'a> {
    fn new(model: &'a SegmentedModel) -> Self {
        let graph = BlockGraph {
            blocks: Vec::new(),
            outputs: Vec::new(),
            exits: Vec::new(),
            ..model.graph.clone()
        };
        let made = RecutModel { graph, blocks: HashMap::new() };
        Self { model, made, sources: HashMap::new(), numbers: HashMap::new() }
    }

    fn add_run(&mut self, members: &[usize]) -> Result<()> {
        let JoinedRun { block, inputs, outputs } = join::join_run(self.model, members)?;
        let number = self.made.graph.blocks.len();
        let inputs = inputs.iter().map(|source| self.source_now(*source)).collect::<Result<_>>()?;
        let mut ports = Vec::with_capacity(outputs.len());
        for (output, source) in outputs.into_iter().enumerate() {
            let port = self.model.graph.source_port(source).cloned();
            ports.push(port.ok_or_else(|| Error::invalid("a segment lacks an output"))?);
            self.sources.insert(source, TensorSource::Block { block: number, output });
        }
        self.numbers.extend(members.iter().map(|&member| (member, number)));
        let node = BlockNode { block: block.hash(), inputs, outputs: ports };
        self.made.graph.blocks.push(node);
        self.made.blocks.insert(block.hash(), block);
        Ok(())
    }

    fn source_now(&self, source: TensorSource) -> Result<TensorSource> {
        match source {
            TensorSource::Input(_) => Ok(source),
            TensorSource::Block { .. } => self.sources.get(&source).copied().ok_or_else(|| {
                Error::invalid("a segment takes what no segment before it computes")
            }),
        }
    }

    fn finish(mut self) -> Result<RecutModel> {
        for (port, source) in &self.model.graph.outputs {
            let source = self.source_now(*source)?;
            self.made.graph.outputs.push((port.clone(), source));
        }
        for exit in &self.model.graph.exits {
            let number = |block: usize| self.numbers.get(&block).copied();
            let head = number(exit.head).ok_or_else(|| Error::invalid("an exit has no head"))?;
            let after = exit.after.and_then(number);
            self.made.graph.exits.push(Exit { head, after, ..exit.clone() });
        }
        Ok(self.made)
    }
}
