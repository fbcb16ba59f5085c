//! What a strategy of placement is: it proposes, and the planner decides.

use tessera_core::Result;

use super::cost_model::PlacementCostModel;
use super::front::FrontPoint;
use super::plan::PlacementPlan;
use crate::{SearchLimit, Strategy};

/// A way to find a placement.
pub trait PlacementStrategy: Strategy {
    /// Proposes where the layers go. The cost model knows what moving away from the previous plan
    /// costs.
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal>;
}

impl<S: PlacementStrategy + ?Sized> PlacementStrategy for &S {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        (**self).propose_placement(cost_model, options)
    }
}

/// What planning depends on beside the problem.
#[derive(Clone, Copy, Debug)]
pub struct PlacementOptions<'a> {
    /// Where the layers are today.
    pub previous: Option<&'a PlacementPlan>,
    /// For strategies that draw lots.
    pub seed: u64,
    /// When to stop searching.
    pub limit: SearchLimit<'a>,
}

impl Default for PlacementOptions<'_> {
    fn default() -> Self {
        Self { previous: None, seed: 0, limit: SearchLimit::none() }
    }
}

/// What a strategy proposes.
#[derive(Clone, Debug)]
pub struct PlacementProposal {
    /// For each model, the node of each layer.
    pub nodes: Vec<Vec<usize>>,
    /// No plan has a lower weighted latency (with what moving costs), where the strategy can tell.
    pub bound_seconds: Option<f64>,
    /// Plans to choose from, where the strategy has several objectives.
    pub front: Vec<FrontPoint>,
}
