//! The strategies of residency. To add one: its file, and a line here.

use tessera_core::Result;

use super::direct_host_access::DirectHostAccess;
use super::exact::ExactResidency;
use super::load_then_run::LoadThenRun;
use super::parallel::ParallelTransmission;
use super::parallel_direct::ParallelDirectHostAccess;
use super::pipeline::PipelinedLoading;
use super::problem::ResidencyProblem;
use super::solution::ResidencySolution;
use super::timeline::ResidencyPlan;
use crate::{Planner, SearchLimit, StrategyRegistry};

/// A planner of residency.
pub type ResidencyStrategy =
    dyn Planner<Problem = ResidencyProblem, Plan = ResidencyPlan, Solution = ResidencySolution>;

/// All strategies, from the simplest on.
pub fn residency_strategies() -> StrategyRegistry<&'static ResidencyStrategy> {
    StrategyRegistry::new(
        "strategy",
        &[
            &LoadThenRun,
            &PipelinedLoading,
            &DirectHostAccess,
            &ParallelTransmission,
            &ParallelDirectHostAccess,
            &ExactResidency,
        ],
    )
}

/// The strategy of this name.
pub fn find_residency_strategy(name: &str) -> Result<&'static ResidencyStrategy> {
    residency_strategies().find_strategy(name)
}

/// How long pipelined loading takes: what plans are compared with.
pub fn pipeline_us(problem: &ResidencyProblem) -> Result<f64> {
    Ok(PipelinedLoading.find_plan(problem, None, &SearchLimit::none())?.total_us)
}
