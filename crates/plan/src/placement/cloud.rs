//! `cloud`: everything on one node of the highest tier (Algorithm 6.5).
//!
//! How models are served where nothing is placed on purpose: the input goes all the way, however
//! far that is. Of the nodes that have room for the whole model, the one with the least latency is
//! taken. Several models are placed one after the other, the one with the largest weight first,
//! each in what is left; they need not end up on the same node.

use std::collections::BTreeSet;

use tessera_core::{Error, Result};

use super::cost_model::{OccupiedNodes, PlacementCostModel};
use super::first_fit::{by_weight, is_connected};
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use crate::Strategy;

/// Places all layers of a model on the best node of the highest tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloudOnly;

impl Strategy for CloudOnly {
    fn name(&self) -> &str {
        "cloud"
    }

    fn one_line_summary(&self) -> &str {
        "all layers of a model on the one node of the highest tier with the least latency"
    }
}

impl PlacementStrategy for CloudOnly {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        _: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let network = &cost_model.network;
        let highest = network.tiers.iter().max().copied().unwrap_or(0);
        let cloud: Vec<usize> =
            (0..network.nodes).filter(|&node| network.tiers[node] == highest).collect();
        let mut occupied = OccupiedNodes::empty(network.nodes);
        let mut nodes = vec![Vec::new(); cost_model.chains.len()];
        for model in by_weight(cost_model) {
            let chain = cost_model.chain_beside(model, &occupied);
            let with_room = cloud.iter().copied().filter(|&node| {
                is_connected(network, chain.input, node)
                    && chain.furthest_end(node, 0) == chain.layers
            });
            let best = with_room
                .map(|node| (chain.expected_latency(network, &vec![node; chain.layers]), node))
                .min_by(|(one, _), (other, _)| one.total_cmp(other));
            let Some((_, node)) = best else {
                return Err(does_not_fit(cost_model, model, &cloud, &occupied));
            };
            nodes[model] = vec![node; chain.layers];
            occupied.add_model(&cost_model.models[model], &nodes[model]);
        }
        Ok(PlacementProposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// Says what a model needs, and what each node of the highest tier has.
fn does_not_fit(
    cost_model: &PlacementCostModel<'_>,
    model: usize,
    cloud: &[usize],
    occupied: &OccupiedNodes,
) -> Error {
    /// Most nodes that are named.
    const NAMED: usize = 10;
    let (network, problem) = (&cost_model.network, cost_model.problem);
    let input = cost_model.chains[model].input;
    let model = &cost_model.models[model];
    let (mut memory, mut storage) = (0.0, 0.0);
    let mut blocks = BTreeSet::new();
    for layer in &model.layers {
        if layer.block.as_deref().is_none_or(|block| blocks.insert(block)) {
            memory += layer.memory_bytes;
            storage += layer.storage_bytes;
        }
    }
    let left = |there: Option<f64>, taken: f64| match there {
        Some(there) => (there - taken).max(0.0).to_string(),
        None => "enough".to_owned(),
    };
    let nodes = cloud.iter().take(NAMED).map(|&at| {
        let node = &problem.nodes[at];
        if is_connected(network, input, at) {
            format!(
                "{} has {} and {}",
                node.name,
                left(node.memory_bytes, occupied.memory[at]),
                left(node.storage_bytes, occupied.storage[at])
            )
        } else {
            format!("{} has no connection from {}", node.name, problem.nodes[input].name)
        }
    });
    let mut nodes = nodes.collect::<Vec<_>>().join(", ");
    if cloud.len() > NAMED {
        nodes = format!("{nodes}, and {} more", cloud.len() - NAMED);
    }
    Error::invalid(format!(
        "cloud: {} needs {memory} bytes of memory and {storage} of storage on one node of the highest tier; {nodes}",
        model.name
    ))
}
