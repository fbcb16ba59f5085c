//! Chooses the cuts of several models so that the layers they have in common become shared blocks.
//!
//! Every model is first cut at every cut point. Segments that are equal by content are the layers
//! in common. Neighbouring segments are then joined wherever no model tells them apart: if, in all
//! models, one is always followed by the other and the other always preceded by the one, a cut
//! between them would share nothing more. What remains are the longest common runs, each a block.
//!
//! A segment without weights (an activation, a reshape) is the same wherever it occurs and would
//! tear everything apart; it counts as part of what comes before it.

use std::collections::HashMap;

use tessera_core::{ContentHash, Result};

use crate::exits::ExitSpec;
use crate::infer::InferredTypes;
use crate::model::{Graph, NodeId};
use crate::partition::{ChainSplitter, Partition};

/// Segments with fewer bytes of constants than this are not worth sharing for themselves.
const WORTH_SHARING: usize = 256;

/// A model to share layers with others.
pub struct SharedModel<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Its types.
    pub types: &'a InferredTypes,
    /// Its exits.
    pub exits: &'a [ExitSpec],
}

/// Models cut so that they share blocks.
#[derive(Clone, Debug)]
pub struct SharedPartitions {
    /// The models, in the order in which they were given.
    pub partitions: Vec<Partition>,
}

impl SharedPartitions {
    /// Bytes of weights if every model kept its own.
    pub fn bytes_apart(&self) -> usize {
        self.partitions.iter().map(Partition::weight_bytes).sum()
    }

    /// Bytes of weights with what is common kept once.
    pub fn bytes_shared(&self) -> usize {
        let mut all: HashMap<ContentHash, usize> = HashMap::new();
        for (hash, bytes) in self.partitions.iter().flat_map(|partition| &partition.weights) {
            all.insert(*hash, bytes.len());
        }
        all.values().sum()
    }

    /// Bytes of weights that are saved because whole blocks are common: these are in memory once, and
    /// computed for all their models together.
    pub fn bytes_in_common_blocks(&self) -> usize {
        let weight_bytes = |hash: &ContentHash| {
            let blocks = self.partitions.iter().find_map(|partition| partition.blocks.get(hash));
            blocks.map_or(0, crate::Block::weight_bytes)
        };
        let users = self.models_by_block();
        users.iter().map(|(hash, models)| weight_bytes(hash) * (models.len() - 1)).sum()
    }

    /// Per block, the indices of the models that use it.
    pub fn models_by_block(&self) -> HashMap<ContentHash, Vec<usize>> {
        let mut users: HashMap<ContentHash, Vec<usize>> = HashMap::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            for hash in partition.graph.distinct_blocks() {
                users.entry(hash).or_default().push(index);
            }
        }
        users
    }
}

/// Cuts `models` so that their common layers fall into shared blocks.
pub fn share_blocks(
    models: &[SharedModel<'_>],
    progress: &mut dyn FnMut(usize),
) -> Result<SharedPartitions> {
    let mut chains = Vec::with_capacity(models.len());
    let mut runs = Vec::with_capacity(models.len());
    for (index, model) in models.iter().enumerate() {
        let chain = ChainSplitter::new(model.graph, model.types, model.exits)?;
        runs.push(segment_tokens(&chain)?);
        chains.push(chain);
        progress(index);
    }
    let joined = JoinedSegments::new(&runs);
    let partitions = chains
        .iter()
        .zip(&runs)
        .map(|(chain, tokens)| {
            let mut cuts = joined.borders_of(tokens);
            cuts.extend(&chain.forced);
            cuts.sort_unstable();
            cuts.dedup();
            chain.cut_at(&cuts)
        })
        .collect::<Result<_>>()?;
    Ok(SharedPartitions { partitions })
}

/// What each segment of a model is, as far as sharing is concerned.
pub(crate) type SegmentToken = [u8; 32];

/// What a segment is that follows another.
pub(crate) fn next_token(before: &SegmentToken, block: &crate::Block) -> SegmentToken {
    if block.weight_bytes() + inline_bytes(block) >= WORTH_SHARING {
        return *block.hash().as_bytes();
    }
    let mut both = blake3::Hasher::new();
    both.update(before).update(block.hash().as_bytes());
    *both.finalize().as_bytes()
}

fn segment_tokens(chain: &ChainSplitter<'_>) -> Result<Vec<SegmentToken>> {
    let every: Vec<usize> = (0..chain.points.cuts.len()).collect();
    let part_of = chain.part_of_trunk(&every);
    let mut nodes_of: Vec<Vec<NodeId>> = vec![Vec::new(); every.len() + 1];
    for id in chain.graph.node_ids() {
        if let Some(nodes) = part_of[id.index()].and_then(|part| nodes_of.get_mut(part)) {
            nodes.push(id);
        }
    }
    let parts = chain.assign_parts(part_of, every.len() + 1);
    let mut before: SegmentToken = [0; 32];
    nodes_of
        .iter()
        .enumerate()
        .map(|(segment, nodes)| {
            let mut outputs = parts.outputs_of(segment, nodes);
            if let Some(cut) = chain.points.cuts.get(segment) {
                // What exits alone use from here is their business.
                outputs.retain(|&id| chain.graph.is_output(id) || cut.tensors().any(|t| t == id));
            }
            let extracted = parts.extract_part(Some(segment), outputs)?;
            before = next_token(&before, &extracted.block);
            Ok(before)
        })
        .collect()
}

/// Bytes of the constants that a block's file carries itself, roughly: all but its fixed parts.
fn inline_bytes(block: &crate::Block) -> usize {
    use prost::Message;
    let model = crate::onnx::ModelProto::decode(block.program().clone()).unwrap_or_default();
    let graph = model.graph.unwrap_or_default();
    graph.initializer.iter().map(|tensor| tensor.raw_data().len()).sum()
}

/// Which neighbouring segments no model tells apart.
pub(crate) struct JoinedSegments {
    /// The one token that follows each; `None` where it varies or a model ends there.
    next: HashMap<SegmentToken, Option<SegmentToken>>,
    previous: HashMap<SegmentToken, Option<SegmentToken>>,
}

impl JoinedSegments {
    pub(crate) fn new(runs: &[impl AsRef<[SegmentToken]>]) -> Self {
        fn note_neighbour(
            map: &mut HashMap<SegmentToken, Option<SegmentToken>>,
            key: SegmentToken,
            value: Option<SegmentToken>,
        ) {
            map.entry(key)
                .and_modify(|known| *known = known.filter(|_| *known == value))
                .or_insert(value);
        }
        let mut joined = Self { next: HashMap::new(), previous: HashMap::new() };
        for run in runs {
            let run = run.as_ref();
            for (index, &token) in run.iter().enumerate() {
                note_neighbour(&mut joined.next, token, run.get(index + 1).copied());
                let previous = index.checked_sub(1).and_then(|index| run.get(index).copied());
                note_neighbour(&mut joined.previous, token, previous);
            }
        }
        joined
    }

    /// Has the segments `at` and `at + 1` of a run belong to two blocks, wherever they are.
    pub(crate) fn part_at(&mut self, run: &[SegmentToken], at: usize) {
        if let Some(here) = run.get(at) {
            self.next.insert(*here, None);
        }
    }

    /// After which segments of a run a block ends; the last is not among them.
    pub(crate) fn borders_of(&self, run: &[SegmentToken]) -> Vec<usize> {
        (0..run.len().saturating_sub(1)).filter(|&at| !self.is_joined_at(run, at)).collect()
    }

    /// Whether segments `at` and `at + 1` belong to the same block.
    fn is_joined_at(&self, run: &[SegmentToken], at: usize) -> bool {
        let (Some(here), Some(there)) = (run.get(at), run.get(at + 1)) else {
            return false;
        };
        here != there
            && self.next.get(here) == Some(&Some(*there))
            && self.previous.get(there) == Some(&Some(*here))
    }
}
