//! `exact`: the optimum, with proof.
//!
//! One model: [`relaxed`] finds it in one go wherever its answer has no node twice, which is nearly
//! always; else [`search`] goes on with it as the bound. Several models: [`joint`].

// Layers and nodes are numbers that index several tables at once.
#![allow(clippy::needless_range_loop)]

mod improve;
mod joint;
mod relaxed;
mod search;
mod settle;

use tessera_core::{Error, Result};

use super::landscape::{Chain, Landscape};
use super::strategy::{Options, Proposal, Strategy};
use crate::Limit;
use relaxed::Space;

/// Finds the optimum and proves it; or says how far from it the plan can be, where it was stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Strategy for Exact {
    fn name(&self) -> &str {
        "exact"
    }

    fn about(&self) -> &str {
        "the optimum, with proof; stopped before that, a plan and how far from the optimum it can be"
    }

    fn propose(&self, landscape: &Landscape<'_>, options: &Options<'_>) -> Result<Proposal> {
        let limit = &options.limit;
        let (nodes, bound) = if let [chain] = &landscape.chains[..] {
            let space = Space::new(chain, &landscape.network);
            let found = search::search(&space, limit);
            (found.runs.map(|runs| vec![space.spread(&runs)]), found.bound)
        } else {
            let found = joint::search(landscape, limit);
            (found.nodes, found.bound)
        };
        match nodes {
            Some(nodes) => Ok(Proposal { nodes, bound_seconds: Some(bound), front: Vec::new() }),
            None if bound.is_finite() => Err(Error::timed_out(
                "exact: no plan found in the time given, nor that there is none",
            )),
            None => Err(why_not(landscape, limit)),
        }
    }
}

/// Why there is no plan: the model and the first layer that can't be placed.
fn why_not(landscape: &Landscape<'_>, limit: &Limit<'_>) -> Error {
    for (model, chain) in landscape.chains.iter().enumerate() {
        let layers = placeable(landscape, chain, limit);
        if layers < chain.layers {
            return landscape.does_not_fit(model, layers);
        }
    }
    Error::invalid("models: each has room by itself, but there is no room for all of them together")
}

/// How many layers of a model, from the first on, can be placed.
fn placeable(landscape: &Landscape<'_>, chain: &Chain, limit: &Limit<'_>) -> usize {
    let space = Space::new(chain, &landscape.network);
    // As many as fit where nodes can be used twice is never too few.
    let (mut least, mut most) = (0, relaxed::placeable(&space));
    while least < most {
        let middle = (least + most).div_ceil(2);
        let first = chain.first(middle);
        let space = Space::new(&first, &landscape.network);
        match search::search(&space, limit).runs {
            Some(_) => least = middle,
            None => most = middle - 1,
        }
    }
    least
}
