//! The order in which the nodes of a trunk run: what is cheap, and needs nothing but inputs of the
//! model, runs right before what needs it.
//!
//! Run as soon as it can, it would stay alive from the model's beginning to wherever it is used. But
//! the size of a large tensor is asked for at once: else that would have to stay.

use crate::model::{Graph, GraphNode, NodeId, ValueId};
use crate::operators::is_cheap;
use crate::size_estimate::SizeEstimates;

/// The computed nodes that are in `trunk`, in that order; constants are not among them.
pub(crate) fn order_trunk(
    graph: &Graph,
    sizes: &SizeEstimates,
    trunk: &dyn Fn(NodeId) -> bool,
) -> Vec<NodeId> {
    let nodes: Vec<NodeId> =
        graph.node_ids().filter(|&id| !graph.is_constant_node(id) && trunk(id)).collect();
    let mut is_light = vec![false; graph.nodes().len()];
    let mut can_wait = vec![false; graph.nodes().len()];
    for &id in &nodes {
        let node = graph.node(id);
        is_light[id.index()] = is_cheap(&node.domain, &node.op_type)
            && node.produced_values().all(|value| !graph.is_output(value))
            && node.used_values().all(|value| {
                graph.is_constant(value)
                    || graph.producer(value).is_none_or(|made| is_light[made.index()])
            });
        can_wait[id.index()] = is_light[id.index()] && !frees_memory(graph, sizes, node);
    }
    let mut order = Vec::with_capacity(nodes.len());
    let mut is_placed = vec![false; graph.nodes().len()];
    for &id in &nodes {
        if !can_wait[id.index()] {
            place_with_ancestors(graph, id, &can_wait, &mut is_placed, &mut order);
        }
    }
    order.extend(nodes.iter().copied().filter(|id| !is_placed[id.index()]));
    order
}

/// Whether a node takes something large and gives something smaller.
fn frees_memory(graph: &Graph, sizes: &SizeEstimates, node: &GraphNode) -> bool {
    let bytes = |value: ValueId| sizes.bytes_of(value).unwrap_or(u64::MAX);
    let made = node.produced_values().map(bytes).fold(0, u64::saturating_add);
    let mut used = node.used_values().filter(|&value| !graph.is_constant(value)).map(bytes);
    used.any(|used| used > sizes.small_input.max(made))
}

/// Places a node after those that waited for it.
fn place_with_ancestors(
    graph: &Graph,
    id: NodeId,
    can_wait: &[bool],
    is_placed: &mut [bool],
    order: &mut Vec<NodeId>,
) {
    let mut steps = vec![(id, false)];
    while let Some((id, is_ready)) = steps.pop() {
        if is_placed[id.index()] {
            continue;
        }
        if is_ready {
            is_placed[id.index()] = true;
            order.push(id);
            continue;
        }
        steps.push((id, true));
        let mut needed: Vec<NodeId> =
            graph.node(id).used_values().filter_map(|value| graph.producer(value)).collect();
        needed.retain(|made| can_wait[made.index()] && !is_placed[made.index()]);
        steps.extend(needed.into_iter().rev().map(|made| (made, false)));
    }
}
