//! `exact`: the optimum, with proof.
//!
//! One model: [`relaxed`] finds it in one go wherever its answer has no node twice, which is nearly
//! always; else [`search`] goes on with it as the bound. Several models: [`joint`].

// Layers and nodes are numbers that index several tables at once.
#![allow(clippy::needless_range_loop)]

mod improve;
mod joint;
mod propagation;
mod relaxed;
mod search;

use tessera_core::{Error, Result};

use super::cost_model::{LayerChain, PlacementCostModel};
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use crate::{SearchLimit, Strategy};
use relaxed::RunSpace;

/// Finds the optimum and proves it; or says how far from it the plan can be, where it was stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactPlacement;

impl Strategy for ExactPlacement {
    fn name(&self) -> &str {
        "exact"
    }

    fn one_line_summary(&self) -> &str {
        "the optimum, with proof; stopped before that, a plan and how far from the optimum it can be"
    }
}

impl PlacementStrategy for ExactPlacement {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let limit = &options.limit;
        let (nodes, bound) = if let [chain] = &cost_model.chains[..] {
            let space = RunSpace::new(chain, &cost_model.network);
            let found = search::search_runs(&space, limit);
            (found.runs.map(|runs| vec![space.layer_nodes(&runs)]), found.bound)
        } else {
            let found = joint::search_joint_placement(cost_model, limit);
            (found.nodes, found.bound)
        };
        match nodes {
            Some(nodes) => {
                Ok(PlacementProposal { nodes, bound_seconds: Some(bound), front: Vec::new() })
            }
            None if bound.is_finite() => Err(Error::timed_out(
                "exact: no plan found in the time given, nor that there is none",
            )),
            None => Err(infeasibility_error(cost_model, limit)),
        }
    }
}

/// Why there is no plan: the model and the first layer that can't be placed.
fn infeasibility_error(cost_model: &PlacementCostModel<'_>, limit: &SearchLimit<'_>) -> Error {
    for (model, chain) in cost_model.chains.iter().enumerate() {
        let layers = placeable_layers(cost_model, chain, limit);
        if layers < chain.layers {
            return cost_model.does_not_fit(model, layers);
        }
    }
    Error::invalid("models: each has room by itself, but there is no room for all of them together")
}

/// How many layers of a model, from the first on, can be placed.
fn placeable_layers(
    cost_model: &PlacementCostModel<'_>,
    chain: &LayerChain,
    limit: &SearchLimit<'_>,
) -> usize {
    let space = RunSpace::new(chain, &cost_model.network);
    // As many as fit where nodes can be used twice is never too few.
    let (mut least, mut most) = (0, relaxed::relaxed_placeable_layers(&space));
    while least < most {
        let middle = (least + most).div_ceil(2);
        let first = chain.first_layers(middle);
        let space = RunSpace::new(&first, &cost_model.network);
        match search::search_runs(&space, limit).runs {
            Some(_) => least = middle,
            None => most = middle - 1,
        }
    }
    least
}
