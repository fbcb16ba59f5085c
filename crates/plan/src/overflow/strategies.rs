//! The strategies of overflow. To add one: its file, and a line here.

use tessera_core::Result;

use super::communication::CommunicationSlowdown;
use super::exact::ExactOverflow;
use super::plan::OverflowPlan;
use super::problem::OverflowProblem;
use super::queueing_delay::QueueingDelay;
use super::sequential::SequentialExecution;
use super::slowdown::Slowdown;
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, StrategyRegistry};

/// A planner of overflow.
pub type OverflowStrategy =
    dyn Planner<Problem = OverflowProblem, Plan = OverflowPlan, Solution = OverflowSolution>;

/// All strategies, from the simplest on.
pub fn overflow_strategies() -> StrategyRegistry<&'static OverflowStrategy> {
    StrategyRegistry::new(
        "strategy",
        &[&SequentialExecution, &QueueingDelay, &Slowdown, &CommunicationSlowdown, &ExactOverflow],
    )
}

/// The strategy of this name.
pub fn find_overflow_strategy(name: &str) -> Result<&'static OverflowStrategy> {
    overflow_strategies().find_strategy(name)
}

/// How long one block after the other takes: what plans are compared with.
pub fn sequential_us(problem: &OverflowProblem) -> Result<f64> {
    Ok(SequentialExecution.find_plan(problem, None, &SearchLimit::none())?.makespan_us)
}
