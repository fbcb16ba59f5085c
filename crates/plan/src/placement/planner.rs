//! Planning with a strategy, and what is done with what it proposes.

use tessera_core::{Error, Result};

use super::cost_model::{self, PlacementCostModel};
use super::front::{FrontPoint, MOST_POINTS, merge_point, thin_front};
use super::outcome::{evaluate_placement, find_violation, moving_cost};
use super::plan::PlacementPlan;
use super::problem::PlacementProblem;
use super::strategy::{PlacementOptions, PlacementStrategy};
use super::thresholds;
use crate::{Planner, SearchLimit, Strategy};

/// A plan, and what is known about it.
#[derive(Clone, Debug)]
pub struct PlacementSolution {
    /// Where the layers go.
    pub plan: PlacementPlan,
    /// Its weighted latency.
    pub latency_seconds: f64,
    /// What moving to it costs a request, shared by those until the next plan.
    pub moving_seconds: f64,
    /// Whether it is the previous plan.
    pub kept: bool,
    /// No plan is better than this, latency and moving together, where the strategy can tell.
    pub bound_seconds: Option<f64>,
    /// Whether it is proved that no plan is better.
    pub proved: bool,
    /// Plans to choose from, where the strategy has several objectives.
    pub front: Vec<FrontPoint>,
}

impl PlacementSolution {
    /// How far the plan may be from the optimum, as a share of its cost; none where nothing is
    /// known.
    pub fn optimality_gap(&self) -> Option<f64> {
        let cost = self.latency_seconds + self.moving_seconds;
        let bound = self.bound_seconds?;
        Some(if cost > 0.0 { ((cost - bound) / cost).max(0.0) } else { 0.0 })
    }
}

/// How far apart costs are that count as equal: sums are rounded.
const SAME: f64 = 1e-12;

/// Plans with a strategy: the problem is checked, thresholds are chosen where an accuracy is asked
/// for, the previous plan is kept unless changing pays, and the proposal is checked.
#[derive(Clone, Copy)]
pub struct PlacementPlanner<'a> {
    /// What proposes.
    pub strategy: &'a dyn PlacementStrategy,
    /// For strategies that draw lots.
    pub seed: u64,
}

impl Strategy for PlacementPlanner<'_> {
    fn name(&self) -> &str {
        self.strategy.name()
    }

    fn one_line_summary(&self) -> &str {
        self.strategy.one_line_summary()
    }
}

impl Planner for PlacementPlanner<'_> {
    type Problem = PlacementProblem;
    type Plan = PlacementPlan;
    type Solution = PlacementSolution;

    fn find_plan(
        &self,
        problem: &PlacementProblem,
        previous: Option<&PlacementPlan>,
        limit: &SearchLimit<'_>,
    ) -> Result<PlacementSolution> {
        problem.check_consistency()?;
        let models = problem.all_models();
        // Moving costs something even where the previous plan can't stay as it is.
        let options = PlacementOptions { previous, seed: self.seed, limit: *limit };
        let mut best: Option<(f64, PlacementPlan)> = None;
        let mut front = Vec::new();
        let mut bound = Some(f64::INFINITY);
        let mut refused = None;
        for settings in thresholds::threshold_choices(&models)? {
            cost_model::check_settings(&models, &settings)?;
            let cost_model = PlacementCostModel::new(problem, settings, previous);
            let proposal = match self.strategy.propose_placement(&cost_model, &options) {
                Ok(proposal) => proposal,
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            };
            bound = bound.and_then(|bound| Some(bound.min(proposal.bound_seconds?)));
            let proposed = cost_model.plan_with_nodes(proposal.nodes);
            if let Some(broken) = find_violation(problem, &proposed) {
                return Err(Error::invalid(format!("{}: {broken}", self.name())));
            }
            let cost = cost_with_moving(problem, previous, &proposed);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, proposed));
            }
            proposal.front.into_iter().for_each(|point| merge_point(&mut front, point));
        }
        let Some((cost, mut plan)) = best else {
            return Err(refused.unwrap_or_else(|| {
                Error::invalid(format!("{}: nothing to propose", self.name()))
            }));
        };
        let mut kept = false;
        if let Some(previous) = previous.filter(|plan| find_violation(problem, plan).is_none()) {
            let stays = evaluate_placement(problem, previous).latency_seconds;
            if cost >= stays * (1.0 - problem.moving.least_gain) - SAME * stays {
                plan = previous.clone();
                kept = true;
            }
        }
        let latency_seconds = evaluate_placement(problem, &plan).latency_seconds;
        let moving_seconds =
            previous.map_or(0.0, |previous| moving_cost(problem, previous, &plan).1);
        let total = latency_seconds + moving_seconds;
        let front = thin_front(front, MOST_POINTS);
        // A bound is summed up in another order than the plan.
        let proved = bound.is_some_and(|bound| total <= bound * (1.0 + SAME));
        Ok(PlacementSolution {
            plan,
            latency_seconds,
            moving_seconds,
            kept,
            bound_seconds: bound,
            proved,
            front,
        })
    }
}

/// Plans with a strategy; see [`PlacementPlanner`].
pub fn plan_placement(
    strategy: &dyn PlacementStrategy,
    problem: &PlacementProblem,
    options: &PlacementOptions<'_>,
) -> Result<PlacementSolution> {
    let planner = PlacementPlanner { strategy, seed: options.seed };
    planner.find_plan(problem, options.previous, &options.limit)
}

fn cost_with_moving(
    problem: &PlacementProblem,
    previous: Option<&PlacementPlan>,
    plan: &PlacementPlan,
) -> f64 {
    let moving = previous.map_or(0.0, |previous| moving_cost(problem, previous, plan).1);
    evaluate_placement(problem, plan).latency_seconds + moving
}
