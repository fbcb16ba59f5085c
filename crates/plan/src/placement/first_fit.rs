//! `first-fit`: from the input node on, each node filled before the next (Algorithm 6.4).
//!
//! The algorithm as it is printed takes the next node from a list sorted by compute power whenever a
//! layer finds no room. It would give a layer to a node that is too small for it, come back to the input
//! node, which is in the list as well, go back to a lower tier, and send where there is no connection.
//! Here a node is passed over if it has layers already, is in a lower tier than the current one, can't
//! be reached from there, or has no room for the layer at hand; one that was passed over may still take
//! a later layer. Where no node is left, the layer is named: there may be a plan all the same, as this
//! never takes back what it placed.
//!
//! Compute power is how long the whole model takes on a node, exits aside: which is the order of
//! `flops_per_second` where no times are measured. Storage counts like memory. Several models are
//! placed one after the other, the one with the largest weight first, each in what is left.

use tessera_core::Result;

use super::landscape::{Chain, Landscape, Network, Occupied};
use super::strategy::{Options, Proposal, Strategy};

/// Fills the input node, then the most powerful nodes one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl Strategy for FirstFit {
    fn name(&self) -> &str {
        "first-fit"
    }

    fn about(&self) -> &str {
        "fills the input node, then the most powerful nodes one after the other"
    }

    fn propose(&self, landscape: &Landscape<'_>, _: &Options<'_>) -> Result<Proposal> {
        let mut occupied = Occupied::nothing(landscape.network.nodes);
        let mut nodes = vec![Vec::new(); landscape.chains.len()];
        for model in by_weight(landscape) {
            let chain = landscape.beside(model, &occupied);
            let order = by_power(landscape, model);
            nodes[model] = fill(&chain, &landscape.network, &order)
                .map_err(|placed| landscape.does_not_fit(model, placed).within("first-fit"))?;
            occupied.add(&landscape.models[model], &nodes[model]);
        }
        Ok(Proposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// The nodes of a model's layers; or how many could be placed.
fn fill(chain: &Chain, network: &Network, order: &[usize]) -> Result<Vec<usize>, usize> {
    let mut nodes = Vec::with_capacity(chain.layers);
    let mut used = vec![false; network.nodes];
    let mut current = None;
    while nodes.len() < chain.layers {
        let first = nodes.len();
        let from = current.unwrap_or(network.input);
        let start = current.is_none().then_some(network.input);
        let next = start.iter().chain(order).copied().find(|&node| {
            !used[node]
                && current.is_none_or(|current| network.may_follow(current, node))
                && connected(network, from, node)
                && chain.furthest(node, first) > first
        });
        let node = next.ok_or(first)?;
        used[node] = true;
        current = Some(node);
        nodes.resize(chain.furthest(node, first), node);
    }
    Ok(nodes)
}

/// Whether anything can be sent from one node to another.
pub(super) fn connected(network: &Network, from: usize, to: usize) -> bool {
    from == to || network.transfer(0.0, from, to).is_finite()
}

/// The models, the one with the largest weight first.
pub(super) fn by_weight(landscape: &Landscape<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..landscape.chains.len()).collect();
    order.sort_by(|&one, &other| {
        landscape.chains[other].weight.total_cmp(&landscape.chains[one].weight)
    });
    order
}

/// The nodes, the one that runs a model in the least time first.
fn by_power(landscape: &Landscape<'_>, model: usize) -> Vec<usize> {
    let nodes = &landscape.problem.nodes;
    // Not the landscape's times: what moving costs says nothing about power.
    let time = |node: &usize| -> f64 {
        let layers = landscape.models[model].layers.iter();
        layers.map(|layer| layer.time_on(&nodes[*node]).unwrap_or(f64::INFINITY)).sum()
    };
    let speed = |node: &usize| nodes[*node].flops_per_second.unwrap_or(0.0);
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|one, other| {
        time(one).total_cmp(&time(other)).then(speed(other).total_cmp(&speed(one)))
    });
    order
}
