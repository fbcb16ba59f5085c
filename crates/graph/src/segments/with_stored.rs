//! A model that comes to others that are cut already: it shares what it has in common with them,
//! and they are cut further where that takes it.

use std::collections::{HashMap, HashSet};

use tessera_core::{Error, Result};

use super::SegmentedModel;
use crate::model::NodeId;
use crate::partition::{ChainSplitter, Partition};
use crate::share::{JoinedSegments, SegmentToken, SharedModel};

/// A model in its segments, and where it is cut.
#[derive(Clone, Debug)]
pub struct ModelCut {
    /// Its segments.
    pub segments: SegmentedModel,
    /// After which segments of its trunk it is cut.
    pub borders: Vec<usize>,
}

/// A model that was cut so that it shares blocks with others.
#[derive(Clone, Debug)]
pub struct AddedModel {
    /// The model.
    pub partition: Partition,
    /// Its segments, and where it is cut.
    pub cut: ModelCut,
    /// Of each model that was there, after which segments it is to be cut from now on; `None`
    /// where it stays as it is.
    pub recut: Vec<Option<Vec<usize>>>,
}

/// The segments of a model that was cut into a chain; `None` where it has none that could be joined
/// again.
pub fn find_segments(model: &SharedModel<'_>, partition: &Partition) -> Result<Option<ModelCut>> {
    let chain = ChainSplitter::new(model.graph, model.types, model.exits)?;
    let Some(segments) = segments_of(&chain)? else { return Ok(None) };
    let block_of: HashMap<NodeId, usize> = (partition.nodes.iter().enumerate())
        .flat_map(|(block, nodes)| nodes.iter().map(move |&node| (node, block)))
        .collect();
    let order = &chain.points.order;
    let is_border = |&cut: &usize| {
        let (before, after) = order.split_at(chain.points.cuts[cut].position);
        let before = before.iter().rev().find_map(|node| block_of.get(node));
        before != after.iter().find_map(|node| block_of.get(node))
    };
    let borders = (0..chain.points.cuts.len()).filter(is_border).collect();
    Ok(Some(ModelCut { segments, borders }))
}

fn segments_of(chain: &ChainSplitter<'_>) -> Result<Option<SegmentedModel>> {
    let every: Vec<usize> = (0..chain.points.cuts.len()).collect();
    let segments = SegmentedModel::of_partition(chain.cut_at(&every)?)?;
    // Otherwise it is not known which cut point is which.
    Ok((segments.trunk_len() == every.len() + 1).then_some(segments))
}

/// Cuts a model so that what it has in common with others falls into shared blocks.
pub fn share_with_stored(model: &SharedModel<'_>, stored: &[&ModelCut]) -> Result<AddedModel> {
    let chain = ChainSplitter::new(model.graph, model.types, model.exits)?;
    let segments = segments_of(&chain)?
        .ok_or_else(|| Error::unsupported("a segment of the model gives nothing to others"))?;
    let tokens = segments.tokens();
    let own: HashSet<&SegmentToken> = tokens.iter().collect();
    let all_runs = stored.iter().map(|stored| stored.segments.tokens());
    let runs: Vec<Option<Vec<SegmentToken>>> =
        all_runs.map(|run| run.iter().any(|token| own.contains(token)).then_some(run)).collect();
    let related: Vec<&[SegmentToken]> =
        runs.iter().flatten().map(Vec::as_slice).chain([tokens.as_slice()]).collect();
    let mut joined = JoinedSegments::new(&related);
    // What is cut stays cut.
    for (run, stored) in runs.iter().zip(stored) {
        let Some(run) = run else { continue };
        stored.borders.iter().for_each(|&border| joined.part_at(run, border));
    }
    let borders = sorted(joined.borders_of(&tokens), &chain.forced);
    let recut = runs.iter().zip(stored).map(|(run, stored)| {
        let wanted = sorted(joined.borders_of(run.as_ref()?), &stored.borders);
        (wanted != stored.borders).then_some(wanted)
    });
    let recut = recut.collect();
    let partition = chain.cut_at(&borders)?;
    Ok(AddedModel { partition, cut: ModelCut { segments, borders }, recut })
}

/// Both, each once, in order.
fn sorted(mut borders: Vec<usize>, more: &[usize]) -> Vec<usize> {
    borders.extend(more);
    borders.sort_unstable();
    borders.dedup();
    borders
}
