//! The strategies of queueing. To add one: its file, and a line here.

use super::problem::QueueingProblem;
use super::replicas::{FewestReplicas, ReplicaPlan, ReplicaSolution};
use crate::{Planner, StrategyRegistry};

/// A planner of replicas.
pub type ReplicaStrategy =
    dyn Planner<Problem = QueueingProblem, Plan = ReplicaPlan, Solution = ReplicaSolution>;

/// All strategies.
pub fn replica_strategies() -> StrategyRegistry<&'static ReplicaStrategy> {
    StrategyRegistry::new("strategy", &[&FewestReplicas])
}
