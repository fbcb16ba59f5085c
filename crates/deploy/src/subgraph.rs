//! A part of a task's path as a graph of its own.

use std::collections::BTreeSet;
use std::ops::Range;

use tessera_core::{DType, TensorType};
use tessera_graph::{BlockGraph, BlockNode, TensorPort, TensorSource};

/// The blocks of `run` as a graph of their own, with where its inputs come from and which outputs
/// of the whole it gives.
pub(crate) fn extract_subgraph(
    graph: &BlockGraph,
    run: Range<usize>,
) -> (BlockGraph, Vec<TensorSource>, Vec<TensorSource>) {
    let mut inputs: Vec<TensorSource> = Vec::new();
    let mut blocks = Vec::with_capacity(run.len());
    for node in &graph.blocks[run.clone()] {
        let sources = node.inputs.iter().map(|&source| match source {
            TensorSource::Block { block, output } if run.contains(&block) => {
                TensorSource::Block { block: block - run.start, output }
            }
            outside => {
                let known = inputs.iter().position(|&seen| seen == outside);
                TensorSource::Input(known.unwrap_or_else(|| {
                    inputs.push(outside);
                    inputs.len() - 1
                }))
            }
        });
        let sources = sources.collect();
        blocks.push(BlockNode {
            block: node.block,
            inputs: sources,
            outputs: node.outputs.clone(),
        });
    }
    let later = graph.blocks[run.end..].iter().flat_map(|node| &node.inputs);
    let wanted: BTreeSet<(usize, usize)> = later
        .chain(graph.outputs.iter().map(|(_, source)| source))
        .filter_map(|source| match *source {
            TensorSource::Block { block, output } if run.contains(&block) => Some((block, output)),
            _ => None,
        })
        .collect();
    // The head of an exit gives its scores, which no block uses.
    let is_head = run.len() == 1 && graph.exit_of(run.start).is_some();
    let all = || (0..graph.blocks[run.start].outputs.len()).map(|output| (run.start, output));
    let wanted: Vec<(usize, usize)> =
        if is_head { all().collect() } else { wanted.into_iter().collect() };
    let outputs = wanted.iter().map(|&(block, output)| {
        let port: TensorPort = graph.blocks[block].outputs[output].clone();
        (port, TensorSource::Block { block: block - run.start, output })
    });
    let outputs = outputs.collect();
    let ports = inputs.iter().enumerate().map(|(number, &source)| TensorPort {
        name: format!("in{number}"),
        tensor_type: graph.source_type(source).cloned().unwrap_or_else(|| {
            // A sound graph has a type for every source.
            TensorType::of_any_shape(DType::F32)
        }),
        is_row_wise: graph.source_port(source).is_some_and(|port| port.is_row_wise),
        // For whoever tries the unit out: a request brings it.
        default: graph.source_port(source).and_then(|port| port.default.clone()),
    });
    let part = BlockGraph {
        inputs: ports.collect(),
        blocks,
        outputs,
        exits: Vec::new(),
        row_obstacle: graph.row_obstacle.clone(),
        relies_on_dim_names: graph.relies_on_dim_names,
    };
    let given = wanted.into_iter().map(|(block, output)| TensorSource::Block { block, output });
    (part, inputs, given.collect())
}
