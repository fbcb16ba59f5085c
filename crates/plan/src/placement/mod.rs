//! Placement: which node each layer runs on, from the device to the cloud.
//!
//! The model is that of the addnn thesis (chapter 6): layers in a row, nodes in tiers, and the
//! expected latency of a request as what is to be small. A layer that is reached with probability
//! `r` costs `r` times what it computes and `r` times what it takes to bring it its input; so exits
//! are part of it.
//!
//! [`PlacementPlanner`] is the way in: it checks the problem, chooses thresholds where an accuracy
//! is asked for, lets a strategy propose, keeps the previous plan where changing it does not pay,
//! and believes no proposal that breaks a constraint.
//!
//! So a strategy here is less than a [`Planner`](crate::Planner): it proposes nodes for one choice
//! of thresholds, and may draw lots, for which it gets a seed. It need not be built in either: a
//! program of the user's proposes as well, and is trusted as little. And one of them, `pareto`,
//! proposes a front of plans beside its own.

mod cloud;
mod cost_model;
mod device;
mod exact;
mod first_fit;
mod front;
mod genetic;
mod instances;
mod outcome;
mod pareto;
mod plan;
mod planner;
mod problem;
mod scenario;
mod strategies;
mod strategy;
mod thresholds;

pub use cloud::CloudOnly;
pub use cost_model::{LayerChain, PlacementCostModel, PlacementNetwork};
pub use device::DeviceOnly;
pub use exact::ExactPlacement;
pub use first_fit::FirstFit;
pub use front::FrontPoint;
pub use genetic::GeneticPlacement;
pub use instances::{PlacementInstance, PlacementInstances};
pub use outcome::{
    ModelOutcome, NodeOutcome, PlacementOutcome, evaluate_placement, find_violation, moving_cost,
};
pub use pareto::ParetoPlacement;
pub use plan::{ModelPlan, ModelPlanFile, PlacementPlan, PlacementPlanFile};
pub use planner::{PlacementPlanner, PlacementSolution, plan_placement};
pub use problem::{
    ExitSetting, MigrationCost, PlacementLayer, PlacementModel, PlacementNode, PlacementProblem,
};
pub use scenario::{HierarchyScenario, iot_edge_cloud, resnet152_model, vgg13_model};
pub use strategies::{find_placement_strategy, placement_strategies};
pub use strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
