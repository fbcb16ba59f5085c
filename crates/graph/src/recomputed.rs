//! What blocks compute again, each for itself, instead of having it handed on.
//!
//! Masks, positions and sizes follow from a model's inputs by a few cheap operators, and are used by
//! layer after layer. Handed on, they would lie beside the tensor that matters at every cut; so each
//! block that needs them computes them from the model's inputs, which are smaller.

use std::collections::BTreeSet;

use crate::block::INLINE_BYTES;
use crate::model::{Graph, NodeId, ValueId};
use crate::operators::is_cheap;
use crate::size_estimate::SizeEstimates;

/// What is computed again costs at most this share of the bytes that a model moves.
const MOST_SHARE: u64 = 16;

/// What is computed again needs at most this many inputs of the model.
const MOST_INPUTS: usize = 16;

/// At most this many nodes are computed again in all, were there a block for each of the others.
const MOST_WORK: usize = 4 << 20;

/// The nodes that every block which needs them computes for itself.
#[derive(Clone, Debug)]
pub(crate) struct RecomputedNodes {
    /// Per node, whether it is one of them.
    is_recomputed: Vec<bool>,
    /// Per value, the inputs of the model that it is computed from; empty for all others.
    inputs_of: Vec<Vec<ValueId>>,
}

impl RecomputedNodes {
    /// No nodes at all.
    pub(crate) fn none(graph: &Graph) -> Self {
        Self {
            is_recomputed: vec![false; graph.nodes().len()],
            inputs_of: vec![Vec::new(); graph.value_count()],
        }
    }

    /// Finds them among the nodes of the trunk, which run in this order.
    pub(crate) fn find(graph: &Graph, sizes: &SizeEstimates, order: &[NodeId]) -> Self {
        let mut found = Self::none(graph);
        let light = LightNodes::find(graph, sizes, order);
        for value in light.long_lived_values(graph, order) {
            found.insert_with_ancestors(graph, value);
        }
        let again = found.is_recomputed.iter().filter(|&&is_recomputed| is_recomputed).count();
        if again.saturating_mul(order.len().saturating_sub(again)) > MOST_WORK {
            return Self::none(graph);
        }
        for (value, inputs) in light.inputs_of.into_iter().enumerate() {
            let made = graph.producer(ValueId(value as u32));
            if made.is_some_and(|node| found.is_recomputed[node.index()]) {
                found.inputs_of[value] = inputs;
            }
        }
        found
    }

    /// Whether a node is one of them.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.is_recomputed.get(node.index()).copied().unwrap_or(false)
    }

    /// What must be handed on for a value that is needed: itself, or what it is computed from.
    pub(crate) fn handed_on<'a>(&'a self, graph: &Graph, value: &'a ValueId) -> &'a [ValueId] {
        match graph.producer(*value) {
            Some(node) if self.contains(node) => &self.inputs_of[value.index()],
            _ => std::slice::from_ref(value),
        }
    }

    fn insert_with_ancestors(&mut self, graph: &Graph, value: ValueId) {
        let mut wanted = vec![value];
        while let Some(value) = wanted.pop() {
            let Some(node) = graph.producer(value).filter(|&node| !graph.is_constant_node(node))
            else {
                continue;
            };
            if !std::mem::replace(&mut self.is_recomputed[node.index()], true) {
                wanted.extend(graph.node(node).used_values());
            }
        }
    }
}

/// Nodes that are cheap, and need nothing but inputs of the model and small constants.
struct LightNodes {
    is_light: Vec<bool>,
    /// Nodes that are not cheap, and all that follows from them.
    is_heavy: Vec<bool>,
    /// Per value, the inputs of the model that it is computed from.
    inputs_of: Vec<Vec<ValueId>>,
}

impl LightNodes {
    fn find(graph: &Graph, sizes: &SizeEstimates, order: &[NodeId]) -> Self {
        let bytes = |value: ValueId| sizes.bytes_of(value);
        let made = |&id: &NodeId| graph.node(id).produced_values().filter_map(bytes);
        let moved = order.iter().flat_map(made).fold(0, u64::saturating_add);
        let most_cost = moved.saturating_add(graph.weight_bytes() as u64) / MOST_SHARE;
        let mut light = Self {
            is_light: vec![false; graph.nodes().len()],
            is_heavy: vec![false; graph.nodes().len()],
            inputs_of: vec![Vec::new(); graph.value_count()],
        };
        for &input in graph.inputs() {
            light.inputs_of[input.index()] = vec![input];
        }
        let small_constants = SmallConstants::find(graph);
        // Per value, what the longest way to it costs; what joins from the side is not counted.
        let mut cost_of = vec![0u64; graph.value_count()];
        for &id in order {
            let node = graph.node(id);
            let used = || node.used_values();
            let is_heavy = |value: ValueId| match graph.producer(value) {
                _ if graph.is_constant(value) => !small_constants.contains(value),
                Some(made) => light.is_heavy[made.index()],
                None => false,
            };
            let is_cheap = is_cheap(&node.domain, &node.op_type);
            light.is_heavy[id.index()] = !is_cheap || used().any(is_heavy);
            let is_ready = used().all(|value| match graph.producer(value) {
                Some(made) if !graph.is_constant(value) => light.is_light[made.index()],
                _ => true,
            });
            if light.is_heavy[id.index()] || !is_ready {
                continue;
            }
            let inputs: BTreeSet<ValueId> =
                used().flat_map(|value| &light.inputs_of[value.index()]).copied().collect();
            let own = node
                .produced_values()
                .map(bytes)
                .try_fold(0u64, |sum, bytes| bytes.map(|bytes| sum.saturating_add(bytes)));
            let before = used().map(|value| cost_of[value.index()]).max().unwrap_or(0);
            let cost = own.map_or(u64::MAX, |own| before.saturating_add(own));
            let needed = inputs
                .iter()
                .copied()
                .map(bytes)
                .try_fold(0u64, |sum, bytes| bytes.map(|bytes| sum.saturating_add(bytes)));
            let is_small =
                needed.is_some_and(|needed| needed <= sizes.small_input.max(own.unwrap_or(0)));
            let leaves = node.produced_values().any(|value| graph.is_output(value));
            if inputs.is_empty()
                || inputs.len() > MOST_INPUTS
                || cost > most_cost
                || !is_small
                || leaves
            {
                continue;
            }
            light.is_light[id.index()] = true;
            for value in node.produced_values() {
                light.inputs_of[value.index()] = inputs.iter().copied().collect();
                cost_of[value.index()] = cost;
            }
        }
        light
    }

    /// Light values that are alive while something heavy is alive too.
    fn long_lived_values(&self, graph: &Graph, order: &[NodeId]) -> Vec<ValueId> {
        let mut last_use = vec![None; graph.value_count()];
        for (position, &id) in order.iter().enumerate() {
            for value in graph.node(id).used_values() {
                last_use[value.index()] = Some(position);
            }
        }
        // After how many of the positions before each one something heavy was alive.
        let mut heavy_alive = vec![0i64; order.len() + 1];
        for (position, &id) in order.iter().enumerate() {
            for value in graph.node(id).produced_values() {
                if let (true, Some(last)) = (self.is_heavy[id.index()], last_use[value.index()]) {
                    heavy_alive[position] += 1;
                    heavy_alive[last] -= 1;
                }
            }
        }
        let (mut alive, mut count) = (0, 0);
        let mut positions_before = vec![0];
        for change in heavy_alive {
            alive += change;
            count += u64::from(alive > 0);
            positions_before.push(count);
        }
        let is_long_lived = |position: usize, value: ValueId| {
            last_use[value.index()]
                .is_some_and(|last| positions_before[last] > positions_before[position])
        };
        order
            .iter()
            .enumerate()
            .filter(|(_, id)| self.is_light[id.index()])
            .flat_map(|(position, &id)| {
                let values = graph.node(id).produced_values();
                values.map(move |value| (position, value))
            })
            .filter(|&(position, value)| is_long_lived(position, value))
            .map(|(_, value)| value)
            .collect()
    }
}

/// Constants that take no more room than their names.
pub(crate) struct SmallConstants(Vec<bool>);

impl SmallConstants {
    pub(crate) fn find(graph: &Graph) -> Self {
        let mut is_small = vec![false; graph.value_count()];
        for (id, weight) in graph.weights() {
            is_small[id.index()] = weight.byte_len() <= INLINE_BYTES;
        }
        for id in graph.node_ids().filter(|&id| graph.is_constant_node(id)) {
            let node = graph.node(id);
            if node.used_values().all(|value| is_small[value.index()])
                && is_cheap(&node.domain, &node.op_type)
            {
                node.produced_values().for_each(|value| is_small[value.index()] = true);
            }
        }
        Self(is_small)
    }

    pub(crate) fn contains(&self, value: ValueId) -> bool {
        self.0[value.index()]
    }
}
