//! Orders the nodes of a graph, leaves out what no output needs, and links values with the nodes
//! that make and use them.

use tessera_core::{Error, Result};

use crate::model::{Graph, GraphNode, NodeId, ValueId};
use crate::{constants, topological_order};

/// Makes everything that follows from a graph's nodes anew; fails where they have a cycle.
pub(crate) fn link_graph(graph: &mut Graph) -> Result<()> {
    let mut maker = vec![None; graph.names.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in node.produced_values() {
            maker[value.index()] = Some(index as u32);
        }
    }
    let mut successors = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in node.used_values() {
            if let Some(made_by) = maker[value.index()] {
                successors[made_by as usize].push(index as u32);
            }
        }
    }
    let order = topological_order::sort_topologically(&successors).map_err(|cycle| {
        let labels: Vec<String> =
            cycle.iter().take(4).map(|&node| graph.nodes[node as usize].label()).collect();
        Error::invalid(format!(
            "the graph has a cycle of {} nodes, expected none: {}",
            cycle.len(),
            labels.join(" → ")
        ))
    })?;
    let mut slots: Vec<Option<GraphNode>> =
        std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    let live = live_nodes(&order, &slots, &maker, graph.outputs());
    graph.nodes = order
        .iter()
        .filter(|&&node| live[node as usize])
        .filter_map(|&node| slots[node as usize].take())
        .collect();
    graph.producer = vec![None; graph.names.len()];
    graph.consumers = vec![Vec::new(); graph.names.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index as u32);
        for value in node.produced_values() {
            graph.producer[value.index()] = Some(id);
        }
        for value in node.used_values() {
            let consumers = &mut graph.consumers[value.index()];
            if consumers.last() != Some(&id) {
                consumers.push(id);
            }
        }
    }
    graph.constant = constants::constant_nodes(graph);
    Ok(())
}

/// Per node, whether an output needs it; the others are never run and are left out.
fn live_nodes(
    order: &[u32],
    nodes: &[Option<GraphNode>],
    maker: &[Option<u32>],
    outputs: &[ValueId],
) -> Vec<bool> {
    let mut live = vec![false; nodes.len()];
    for made_by in outputs.iter().filter_map(|value| maker[value.index()]) {
        live[made_by as usize] = true;
    }
    for &index in order.iter().rev() {
        if !live[index as usize] {
            continue;
        }
        for value in nodes[index as usize].iter().flat_map(GraphNode::used_values) {
            if let Some(made_by) = maker[value.index()] {
                live[made_by as usize] = true;
            }
        }
    }
    live
}
