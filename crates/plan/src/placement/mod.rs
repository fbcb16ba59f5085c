//! Placement: which node each layer runs on, from the device to the cloud.
//!
//! The model is that of the addnn thesis (chapter 6): layers in a row, nodes in tiers, and the expected
//! latency of a request as what is to be small. A layer that is reached with probability `r` costs `r`
//! times what it computes and `r` times what it takes to bring it its input; so exits are part of it.
//!
//! [`plan`] is the way in: it checks the problem, chooses thresholds where an accuracy is asked for,
//! lets a strategy propose, keeps the previous plan where changing it does not pay, and believes no
//! proposal that breaks a constraint.

mod cloud;
mod device;
mod exact;
mod first_fit;
mod genetic;
mod instances;
mod landscape;
mod outcome;
mod pareto;
mod plan;
mod problem;
mod scenario;
mod strategy;
mod thresholds;

pub use cloud::Cloud;
pub use device::DeviceOnly;
pub use exact::Exact;
pub use first_fit::FirstFit;
pub use genetic::Genetic;
pub use instances::{Instance, Instances};
pub use landscape::{Chain, Landscape, Network};
pub use outcome::{ModelOutcome, NodeOutcome, Outcome, evaluate, moved, violation};
pub use pareto::{FrontPoint, Pareto};
pub use plan::{ModelPlan, ModelPlanFile, Plan, PlanFile};
pub use problem::{ExitSetting, Layer, Model, Moving, Node, Problem};
pub use scenario::{Scenario, iot_edge_cloud, resnet152, vgg13};
pub use strategy::{Options, Planned, Proposal, Strategy, plan, strategies, strategy};
