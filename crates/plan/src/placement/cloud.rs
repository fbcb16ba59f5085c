//! `cloud`: everything on one node of the highest tier (Algorithm 6.5).
//!
//! How models are served where nothing is placed on purpose: the input goes all the way, however far that
//! is. Of the nodes that have room for the whole model, the one with the least latency is taken.
//! Several models are placed one after the other, the one with the largest weight first, each in what
//! is left; they need not end up on the same node.

use std::collections::BTreeSet;

use tessera_core::{Error, Result};

use super::first_fit::{by_weight, connected};
use super::landscape::{Landscape, Occupied};
use super::strategy::{Options, Proposal, Strategy};

/// Places all layers of a model on the best node of the highest tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloud;

impl Strategy for Cloud {
    fn name(&self) -> &str {
        "cloud"
    }

    fn about(&self) -> &str {
        "all layers of a model on the one node of the highest tier with the least latency"
    }

    fn propose(&self, landscape: &Landscape<'_>, _: &Options<'_>) -> Result<Proposal> {
        let network = &landscape.network;
        let highest = network.tiers.iter().max().copied().unwrap_or(0);
        let cloud: Vec<usize> =
            (0..network.nodes).filter(|&node| network.tiers[node] == highest).collect();
        let mut occupied = Occupied::nothing(network.nodes);
        let mut nodes = vec![Vec::new(); landscape.chains.len()];
        for model in by_weight(landscape) {
            let chain = landscape.beside(model, &occupied);
            let with_room = cloud.iter().copied().filter(|&node| {
                connected(network, network.input, node) && chain.furthest(node, 0) == chain.layers
            });
            let best = with_room
                .map(|node| (chain.latency(network, &vec![node; chain.layers]), node))
                .min_by(|(one, _), (other, _)| one.total_cmp(other));
            let Some((_, node)) = best else {
                return Err(does_not_fit(landscape, model, &cloud, &occupied));
            };
            nodes[model] = vec![node; chain.layers];
            occupied.add(&landscape.models[model], &nodes[model]);
        }
        Ok(Proposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// Says what a model needs, and what each node of the highest tier has.
fn does_not_fit(
    landscape: &Landscape<'_>,
    model: usize,
    cloud: &[usize],
    occupied: &Occupied,
) -> Error {
    /// Most nodes that are named.
    const NAMED: usize = 10;
    let (network, problem) = (&landscape.network, landscape.problem);
    let model = &landscape.models[model];
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
        match connected(network, network.input, at) {
            true => format!(
                "{} has {} and {}",
                node.name,
                left(node.memory_bytes, occupied.memory[at]),
                left(node.storage_bytes, occupied.storage[at])
            ),
            false => {
                format!(
                    "{} has no connection from {}",
                    node.name, problem.nodes[network.input].name
                )
            }
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
