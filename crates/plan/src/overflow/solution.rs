//! A plan with what it costs, and when the previous one is kept instead.

use super::executor::execute_plan;
use super::graph::OverflowGraph;
use super::plan::OverflowPlan;
use super::problem::OverflowProblem;

/// What a strategy returns.
#[derive(Clone, Debug, PartialEq)]
pub struct OverflowSolution {
    /// The plan.
    pub plan: OverflowPlan,
    /// What it costs, see [`simulate_overflow`](super::simulate_overflow).
    pub makespan_us: f64,
    /// What no plan is better than; `exact` alone knows it.
    pub bound_us: Option<f64>,
    /// Whether there is no better plan.
    pub proved: bool,
}

/// How much better, in relation, a new plan must be to replace the previous one.
const NOTICEABLE: f64 = 1e-9;

impl OverflowSolution {
    /// `plan` with what it costs; or the previous one, where that still fits and is no worse.
    pub(super) fn new(
        problem: &OverflowProblem,
        graph: &OverflowGraph,
        plan: OverflowPlan,
        previous: Option<&OverflowPlan>,
    ) -> Self {
        let makespan_us = execute_plan(graph, &plan).makespan_us;
        let still = previous.filter(|previous| previous.check_on_graph(graph, problem).is_ok());
        let kept = still.map(|previous| (previous, execute_plan(graph, previous).makespan_us));
        let kept = kept.filter(|(_, kept_us)| *kept_us <= makespan_us * (1.0 + NOTICEABLE));
        let (plan, makespan_us) = match kept {
            Some((previous, kept_us)) => (previous.clone(), kept_us),
            None => (plan, makespan_us),
        };
        Self { plan, makespan_us, bound_us: None, proved: false }
    }

    /// How far from the optimum it may be, as a share of it; none where that isn't known.
    pub fn optimality_gap(&self) -> Option<f64> {
        let bound = self.bound_us?;
        if bound > 0.0 {
            Some((self.makespan_us / bound - 1.0).max(0.0))
        } else {
            (self.makespan_us <= 0.0).then_some(0.0)
        }
    }
}
