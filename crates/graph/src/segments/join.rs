//! Neighbouring segments as one block, in the form that the model's own cutting gives it.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use prost::Message;
use tessera_core::{Error, Result};

use super::SegmentedModel;
use super::merge::merge_recomputed;
use crate::block::Block;
use crate::block_graph::{BlockGraph, BlockNode, TensorSource};
use crate::block_writer::extract_block;
use crate::fuse::fuse_blocks;
use crate::infer;
use crate::model::{Graph, ValueId};
use crate::onnx::ModelProto;
use crate::onnx::external::ExternalData;
use crate::onnx::read::from_proto;
use crate::weight_hashes::WeightHashes;

/// Segments as one block.
pub(super) struct JoinedRun {
    pub(super) block: Block,
    /// What it takes, in its order: inputs of the model, or what other segments compute.
    pub(super) inputs: Vec<TensorSource>,
    /// What it gives, in its order: what its segments compute.
    pub(super) outputs: Vec<TensorSource>,
}

/// Joins neighbouring segments, given by their numbers in the order in which they run.
pub(super) fn join_run(model: &SegmentedModel, members: &[usize]) -> Result<JoinedRun> {
    if let [member] = *members {
        let node = &model.graph.blocks[member];
        let outputs = (0..node.outputs.len())
            .map(|output| TensorSource::Block { block: member, output })
            .collect();
        let block = model.blocks[&node.block].clone();
        return Ok(JoinedRun { block, inputs: node.inputs.clone(), outputs });
    }
    let (apart, inputs, outputs) = run_as_graph(model, members)?;
    let find = |hash| {
        let found = model.blocks.get(&hash).cloned();
        found.ok_or_else(|| Error::invalid("a segment is not there"))
    };
    let (fused, _) = fuse_blocks(&apart, &find)?;
    let rewritten = rewrite_block(&fused)?;
    Ok(JoinedRun {
        block: rewritten.block,
        inputs: rewritten.inputs.into_iter().map(|input| inputs[input]).collect(),
        outputs: rewritten.outputs.into_iter().map(|output| outputs[output]).collect(),
    })
}

/// The segments as a graph of their own, and what its inputs and outputs are in the model.
fn run_as_graph(
    model: &SegmentedModel,
    members: &[usize],
) -> Result<(BlockGraph, Vec<TensorSource>, Vec<TensorSource>)> {
    let place = |block: usize| members.iter().position(|&member| member == block);
    let mut inputs: Vec<TensorSource> = Vec::new();
    let mut source_within = |source: TensorSource| {
        if let TensorSource::Block { block, output } = source
            && let Some(block) = place(block)
        {
            return TensorSource::Block { block, output };
        }
        let known = inputs.iter().position(|known| *known == source);
        TensorSource::Input(known.unwrap_or_else(|| {
            inputs.push(source);
            inputs.len() - 1
        }))
    };
    let blocks = members.iter().map(|&member| {
        let BlockNode { block, inputs, outputs } = &model.graph.blocks[member];
        let inputs = inputs.iter().map(|source| source_within(*source)).collect();
        BlockNode { block: *block, inputs, outputs: outputs.clone() }
    });
    let blocks: Vec<BlockNode> = blocks.collect();
    let used = sources_used_elsewhere(&model.graph, members);
    let mut outputs = Vec::new();
    for &member in members {
        let all = (0..model.graph.blocks[member].outputs.len())
            .map(|output| TensorSource::Block { block: member, output });
        outputs.extend(all.filter(|source| used.contains(source)));
    }
    let port = |source: &TensorSource| {
        let found = model.graph.source_port(*source).cloned();
        found.ok_or_else(|| Error::invalid("a segment takes what is not there"))
    };
    let given = |source: &TensorSource| {
        let TensorSource::Block { block, output } = *source else {
            return Err(Error::invalid("a segment gives what it takes"));
        };
        let block = place(block).unwrap_or_default();
        Ok((port(source)?, TensorSource::Block { block, output }))
    };
    let graph = BlockGraph {
        inputs: inputs.iter().map(port).collect::<Result<_>>()?,
        blocks,
        outputs: outputs.iter().map(given).collect::<Result<_>>()?,
        exits: Vec::new(),
        row_obstacle: None,
        relies_on_dim_names: false,
    };
    Ok((graph, inputs, outputs))
}

/// What blocks outside of these take, or whoever asks the model.
fn sources_used_elsewhere(graph: &BlockGraph, members: &[usize]) -> HashSet<TensorSource> {
    let others = graph.blocks.iter().enumerate().filter(|(block, _)| !members.contains(block));
    let taken = others.flat_map(|(_, node)| &node.inputs).copied();
    taken.chain(graph.outputs.iter().map(|(_, source)| *source)).collect()
}

/// A block in its one form, and which of the former inputs and outputs its own are.
struct RewrittenBlock {
    block: Block,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// Writes a block as if it had been cut out of a model.
fn rewrite_block(fused: &Block) -> Result<RewrittenBlock> {
    let mut model = ModelProto::decode(fused.program().clone())
        .map_err(|error| Error::invalid(format!("not a block: {error}")))?;
    merge_recomputed(model.graph.get_or_insert_default());
    let names = |ports: &[crate::block::BlockPort]| -> Vec<String> {
        ports.iter().map(|port| port.name.clone()).collect()
    };
    let (input_names, output_names) = (names(fused.inputs()), names(fused.outputs()));
    let graph = from_proto(model, &mut AbsentWeights::of_block(fused))?;
    let types = infer::infer_types(&graph, &BTreeMap::new())?;
    let known = fused
        .weights()
        .iter()
        .filter_map(|weight| Some((graph.find_value(&weight.name)?, weight.hash)));
    let hashes = WeightHashes::of_known(known);
    let find = |name: &String| {
        let found = graph.find_value(name);
        found.ok_or_else(|| Error::invalid(format!("\"{name}\" is computed by no segment")))
    };
    let outputs = output_names.iter().map(find).collect::<Result<Vec<ValueId>>>()?;
    let written = extract_block(&graph, &types, &hashes, &|_| true, outputs)?;
    Ok(RewrittenBlock {
        block: written.block,
        inputs: positions(&graph, &written.inputs, &input_names)?,
        outputs: positions(&graph, &written.outputs, &output_names)?,
    })
}

fn positions(graph: &Graph, values: &[ValueId], names: &[String]) -> Result<Vec<usize>> {
    let position = |&value: &ValueId| {
        let name = graph.value_name(value);
        let found = names.iter().position(|known| known == name);
        found.ok_or_else(|| Error::invalid(format!("\"{name}\" is none of a segment's ports")))
    };
    values.iter().map(position).collect()
}

/// Weights of which only the size is known: they stay where they are, under their hash.
struct AbsentWeights(HashMap<String, usize>);

impl AbsentWeights {
    fn of_block(block: &Block) -> Self {
        let size = |weight: &crate::block::WeightRef| (weight.location(), weight.byte_len);
        Self(block.weights().iter().map(size).collect())
    }
}

impl ExternalData for AbsentWeights {
    fn open_file(&mut self, location: &str) -> Result<Bytes> {
        let len = self.0.get(location).copied();
        let len = len.ok_or_else(|| Error::not_found(format!("weight \"{location}\"")))?;
        // Pages that nobody reads take no memory.
        Ok(vec![0; len].into())
    }
}
