//! `first-fit`: from the input node on, each node filled before the next (Algorithm 6.4).
//!
//! The algorithm as it is printed takes the next node from a list sorted by compute power whenever
//! a layer finds no room. It would give a layer to a node that is too small for it, come back to
//! the input node, which is in the list as well, go back to a lower tier, and send where there is
//! no connection. Here a node is passed over if it has layers already, is in a lower tier than the
//! current one, can't be reached from there, or has no room for the layer at hand; one that was
//! passed over may still take a later layer. Where no node is left, the layer is named: there may
//! be a plan all the same, as this never takes back what it placed.
//!
//! Compute power is how long the whole model takes on a node, exits aside: which is the order of
//! `flops_per_second` where no times are measured. Storage counts like memory. Several models are
//! placed one after the other, the one with the largest weight first, each in what is left.

use tessera_core::Result;

use super::cost_model::{LayerChain, OccupiedNodes, PlacementCostModel, PlacementNetwork};
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use crate::Strategy;

/// Fills the input node, then the most powerful nodes one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl Strategy for FirstFit {
    fn name(&self) -> &str {
        "first-fit"
    }

    fn one_line_summary(&self) -> &str {
        "fills the input node, then the most powerful nodes one after the other"
    }
}

impl PlacementStrategy for FirstFit {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        _: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let mut occupied = OccupiedNodes::empty(cost_model.network.nodes);
        let mut nodes = vec![Vec::new(); cost_model.chains.len()];
        for model in by_weight(cost_model) {
            let chain = cost_model.chain_beside(model, &occupied);
            let order = by_power(cost_model, model);
            nodes[model] = fill_nodes(&chain, &cost_model.network, &order).map_err(|placed| {
                cost_model.does_not_fit(model, placed).with_context("first-fit")
            })?;
            occupied.add_model(&cost_model.models[model], &nodes[model]);
        }
        Ok(PlacementProposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// The nodes of a model's layers; or how many could be placed.
fn fill_nodes(
    chain: &LayerChain,
    network: &PlacementNetwork,
    order: &[usize],
) -> Result<Vec<usize>, usize> {
    let mut nodes = Vec::with_capacity(chain.layers);
    let mut used = vec![false; network.nodes];
    let mut current = None;
    while nodes.len() < chain.layers {
        let first = nodes.len();
        let from = current.unwrap_or(chain.input);
        let start = current.is_none().then_some(chain.input);
        let next = start.iter().chain(order).copied().find(|&node| {
            !used[node]
                && current.is_none_or(|current| network.may_follow(current, node))
                && is_connected(network, from, node)
                && chain.furthest_end(node, first) > first
        });
        let node = next.ok_or(first)?;
        used[node] = true;
        current = Some(node);
        nodes.resize(chain.furthest_end(node, first), node);
    }
    Ok(nodes)
}

/// Whether anything can be sent from one node to another.
pub(super) fn is_connected(network: &PlacementNetwork, from: usize, to: usize) -> bool {
    from == to || network.transfer_seconds(0.0, from, to).is_finite()
}

/// The models, the one with the largest weight first.
pub(super) fn by_weight(cost_model: &PlacementCostModel<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cost_model.chains.len()).collect();
    order.sort_by(|&one, &other| {
        cost_model.chains[other].weight.total_cmp(&cost_model.chains[one].weight)
    });
    order
}

/// The nodes, the one that runs a model in the least time first.
fn by_power(cost_model: &PlacementCostModel<'_>, model: usize) -> Vec<usize> {
    let nodes = &cost_model.problem.nodes;
    // Not the cost model's times: what moving costs says nothing about power.
    let time = |node: &usize| -> f64 {
        let layers = cost_model.models[model].layers.iter();
        layers.map(|layer| layer.time_on(&nodes[*node]).unwrap_or(f64::INFINITY)).sum()
    };
    let speed = |node: &usize| nodes[*node].flops_per_second.unwrap_or(0.0);
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|one, other| {
        time(one).total_cmp(&time(other)).then(speed(other).total_cmp(&speed(one)))
    });
    order
}
