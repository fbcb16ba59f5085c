//! What a block of a partition costs.

use std::collections::HashSet;

use crate::block_graph::{TensorPort, TensorSource};
use crate::cost::{Cost, is_parameter, node_cost};
use crate::infer::InferredTypes;
use crate::model::{Graph, ValueId};
use crate::partition::Partition;

/// The cost of a block, and whether all shapes that it depends on were known.
///
/// Weights count once however many nodes use them, and also where a node that is computed from
/// constants stands between; inputs and outputs are those of the block, not of its nodes.
pub fn block_cost(
    graph: &Graph,
    types: &InferredTypes,
    partition: &Partition,
    block: usize,
) -> (Cost, bool) {
    let (Some(nodes), Some(node)) = (partition.nodes.get(block), partition.graph.blocks.get(block))
    else {
        return (Cost::default(), false);
    };
    let mut cost = Cost::default();
    let mut known = true;
    let mut weights = HashSet::new();
    let mut pending: Vec<ValueId> = Vec::new();
    for &id in nodes {
        let part = node_cost(graph, types, id);
        known &= part.known;
        cost.flops = cost.flops.saturating_add(part.cost.flops);
        pending.extend(graph.node(id).used_values());
    }
    while let Some(value) = pending.pop() {
        if !graph.is_constant(value) || !weights.insert(value) {
            continue;
        }
        if let Some(weight) = graph.weight(value) {
            cost.weight_bytes = cost.weight_bytes.saturating_add(weight.byte_len() as u64);
            if weight.tensor_type().is_some_and(|known| is_parameter(known.dtype)) {
                cost.parameters = cost.parameters.saturating_add(weight.element_count() as u64);
            }
        }
        if let Some(made) = graph.producer(value) {
            pending.extend(graph.node(made).used_values());
        }
    }
    let mut bytes = |ports: &mut dyn Iterator<Item = &TensorPort>| {
        ports.fold(0u64, |sum, port| {
            let size = port_bytes(port);
            known &= size.is_some();
            sum.saturating_add(size.unwrap_or(0))
        })
    };
    let source = |source: &TensorSource| match *source {
        TensorSource::Input(index) => partition.graph.inputs.get(index),
        TensorSource::Block { block, output } => {
            partition.graph.blocks.get(block)?.outputs.get(output)
        }
    };
    cost.input_bytes = bytes(&mut node.inputs.iter().filter_map(source));
    cost.output_bytes = bytes(&mut node.outputs.iter());
    (cost, known)
}

/// The bytes of a tensor; open dimensions count as one.
fn port_bytes(port: &TensorPort) -> Option<u64> {
    let dims = port.tensor_type.dims.as_ref()?;
    let shape: Vec<usize> = dims.iter().map(|dim| dim.fixed_size().unwrap_or(1)).collect();
    let count = tessera_core::element_count(&shape)?;
    Some(port.tensor_type.dtype.byte_len(count)? as u64)
}
