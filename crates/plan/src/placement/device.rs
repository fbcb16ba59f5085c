//! `device`: everything where the inputs come from.
//!
//! Nothing is sent anywhere, which is what the other strategies are measured against on the near
//! side.

use tessera_core::{Error, Result};

use super::cost_model::PlacementCostModel;
use super::outcome::find_violation;
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use crate::Strategy;

/// Places all layers of all models on the input node.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOnly;

impl Strategy for DeviceOnly {
    fn name(&self) -> &str {
        "device"
    }

    fn one_line_summary(&self) -> &str {
        "all layers of a model on the node that its inputs come from"
    }
}

impl PlacementStrategy for DeviceOnly {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        _: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let chains = cost_model.chains.iter();
        let nodes: Vec<Vec<usize>> = chains.map(|chain| vec![chain.input; chain.layers]).collect();
        match find_violation(cost_model.problem, &cost_model.plan_with_nodes(nodes.clone())) {
            Some(broken) => Err(Error::invalid(format!("device: {broken}"))),
            None => Ok(PlacementProposal { nodes, bound_seconds: None, front: Vec::new() }),
        }
    }
}
