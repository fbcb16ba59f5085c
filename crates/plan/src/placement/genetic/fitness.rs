//! How good a chromosome is.

use std::collections::BTreeMap;

use super::super::cost_model::PlacementCostModel;
use super::super::first_fit::is_connected;

/// Tells how good chromosomes are, quickly: what it needs of the problem, as tables.
#[derive(Debug)]
pub(super) struct FitnessFunction<'a> {
    cost_model: &'a PlacementCostModel<'a>,
    /// Whether anything can be sent from one node (row) to another.
    connected: Vec<bool>,
    /// More than any valid plan costs (equation 6.14).
    penalty: f64,
    /// Whether the penalty grows with what is wrong.
    graded: bool,
    /// What several models need of nodes that they share.
    room: Option<NodeCapacity>,
    /// Where a node was seen last, for contiguity.
    seen: Vec<usize>,
    stamp: usize,
}

/// Memory and storage of layers and nodes, where several models share them.
#[derive(Debug)]
struct NodeCapacity {
    /// Memory, storage and block of each layer of the concatenated models.
    layers: Vec<(f64, f64, Option<usize>)>,
    /// Memory and storage of each node.
    nodes: Vec<(f64, f64)>,
    blocks: usize,
    /// In use, while a chromosome is evaluated.
    used: Vec<(f64, f64)>,
    /// The last chromosome that had a block on a node, node by node.
    there: Vec<usize>,
}

impl<'a> FitnessFunction<'a> {
    pub(super) fn new(cost_model: &'a PlacementCostModel<'a>, graded: bool) -> Self {
        let (network, nodes) = (&cost_model.network, cost_model.network.nodes);
        let links =
            (0..nodes * nodes).map(|link| is_connected(network, link / nodes, link % nodes));
        let connected: Vec<bool> = links.collect();
        let mut penalty = 0.0;
        for chain in &cost_model.chains {
            for layer in 0..chain.layers {
                let slowest = (0..nodes).map(|node| chain.run_seconds(node, layer, layer + 1));
                let farthest = (0..nodes * nodes)
                    .filter(|&link| connected[link] && link / nodes != link % nodes)
                    .map(|link| chain.entry_seconds(network, layer, link / nodes, link % nodes));
                penalty +=
                    chain.weight * (slowest.fold(0.0, f64::max) + farthest.fold(0.0, f64::max));
            }
        }
        // A plan that costs nothing must still be better than one that is not valid.
        let penalty = if penalty.is_finite() { penalty.max(1e-9) } else { f64::MAX / 1e6 };
        let room = (cost_model.chains.len() > 1).then(|| NodeCapacity::new(cost_model));
        let seen = vec![0; nodes];
        Self { cost_model, connected, penalty, graded, room, seen, stamp: 0 }
    }

    /// Whether a fitness is that of a valid plan.
    pub(super) fn is_valid_fitness(&self, fitness: f64) -> bool {
        fitness < self.penalty
    }

    /// The fitness of a chromosome (equation 6.16): its weighted latency, and a penalty where it
    /// breaks a constraint.
    pub(super) fn fitness_of(&mut self, genes: &[usize]) -> f64 {
        let network = &self.cost_model.network;
        let (mut total, mut broken) = (0.0, 0.0);
        let mut offset = 0;
        for chain in &self.cost_model.chains {
            self.stamp += 1;
            let genes = &genes[offset..offset + chain.layers];
            offset += chain.layers;
            let (mut first, mut at, mut latency) = (0, chain.input, 0.0);
            while first < chain.layers {
                let node = genes[first];
                let mut end = first + 1;
                while end < chain.layers && genes[end] == node {
                    end += 1;
                }
                if node != at {
                    if self.connected[at * network.nodes + node] {
                        latency += chain.entry_seconds(network, first, at, node);
                    } else {
                        broken += 1.0;
                    }
                }
                if first > 0 && !network.may_follow(at, node) {
                    broken += 1.0;
                }
                if self.seen[node] == self.stamp {
                    broken += 1.0;
                }
                self.seen[node] = self.stamp;
                let over = end.saturating_sub(chain.furthest_end(node, first));
                broken += over as f64 / chain.layers as f64;
                latency += chain.run_seconds(node, first, end);
                at = node;
                first = end;
            }
            total += chain.weight * latency;
        }
        // Runs that are too long by themselves say enough.
        if broken == 0.0
            && let Some(room) = &mut self.room
        {
            broken = room.overflow_share(genes, self.stamp);
        }
        if broken > 0.0 {
            let more = if self.graded { self.penalty * (1.0 + broken) } else { self.penalty };
            total.min(self.penalty) + more
        } else {
            total
        }
    }
}

impl NodeCapacity {
    fn new(cost_model: &PlacementCostModel<'_>) -> Self {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let all = cost_model.models.iter().flat_map(|model| &model.layers);
        let layers: Vec<_> = all
            .map(|layer| {
                let block = layer.block.as_deref().map(|block| {
                    let next = names.len();
                    *names.entry(block).or_insert(next)
                });
                (layer.memory_bytes, layer.storage_bytes, block)
            })
            .collect();
        let there = |bytes: Option<f64>| bytes.unwrap_or(f64::INFINITY);
        let nodes = cost_model.problem.nodes.iter();
        let nodes: Vec<_> =
            nodes.map(|node| (there(node.memory_bytes), there(node.storage_bytes))).collect();
        let (used, blocks) = (vec![(0.0, 0.0); nodes.len()], names.len());
        let there = vec![0; nodes.len() * blocks];
        Self { layers, nodes, blocks, used, there }
    }

    /// By how much nodes are too small for what is on them, as shares of their size, summed up.
    fn overflow_share(&mut self, genes: &[usize], stamp: usize) -> f64 {
        self.used.fill((0.0, 0.0));
        for (&(memory, storage, block), &node) in self.layers.iter().zip(genes) {
            if let Some(block) = block {
                let there = &mut self.there[node * self.blocks + block];
                if *there == stamp {
                    continue;
                }
                *there = stamp;
            }
            self.used[node].0 += memory;
            self.used[node].1 += storage;
        }
        let share = |used: f64, there: f64| {
            if used > there { ((used - there) / there.max(1.0)).min(1e6) } else { 0.0 }
        };
        let nodes = self.used.iter().zip(&self.nodes);
        nodes.map(|(used, there)| share(used.0, there.0) + share(used.1, there.1)).sum()
    }
}
