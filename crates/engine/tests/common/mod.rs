//! What tests of engines share.

use std::collections::BTreeMap;

use tessera_core::Tensor;
use tessera_engine::{Program, ProgramWeight};
use tessera_graph::{Graph, Split, infer, split_into_chain};

/// A model as one block.
pub(crate) fn program_of(graph: &Graph) -> Program {
    let types = infer::infer_types(graph, &BTreeMap::new()).unwrap();
    let cut = split_into_chain(graph, &types, &Split::Blocks(1), &[]).unwrap();
    let block = cut.blocks.values().next().unwrap().clone();
    let weights = block.weights().iter().map(|weight| {
        let bytes = cut.weights[&weight.hash].clone();
        let tensor = Tensor::from_bytes(weight.dtype, &weight.shape, bytes).unwrap();
        ProgramWeight { tensor, mapping: None }
    });
    let weights = weights.collect();
    Program::new(block, weights).unwrap()
}
