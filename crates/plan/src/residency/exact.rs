//! `exact`: the quickest plan, with proof.
//!
//! Layer by layer, all ways to bring its weights are tried on all partial plans that may still
//! become the best. Of a partial plan only its clocks matter: when its layers have run, when each
//! stream is free, and how many bytes are loaded where memory is limited. One whose clocks are all
//! no earlier than those of another is dropped, and so is one whose bound (see
//! [`super::relaxation`]) is no better than a plan that is known.
//!
//! Where they become too many, or time is up, only the most promising are followed, and the best
//! bound of the others is the bound of the whole. It is the quickest of the plans in which at most
//! one GPU per PCIe switch loads (see [`super::topology`]). Memory of GPUs that help is left out of
//! the search; a plan that does not keep to it is no answer, but still a bound. What layers that are
//! read from the host take of the bus is left out, too: plans are compared with it, and bounded
//! without.

use tessera_core::Result;

use super::labels::search_labels;
use super::parallel_direct::ParallelDirectHostAccess;
use super::problem::ResidencyProblem;
use super::relaxation::best_bound;
use super::search_model::{ResidencySearchModel, TOLERANCE};
use super::solution::ResidencySolution;
use super::timeline::ResidencyPlan;
use crate::{Planner, SearchLimit, Strategy};

/// Finds the quickest plan.
pub struct ExactResidency;

impl Strategy for ExactResidency {
    fn name(&self) -> &str {
        "exact"
    }

    fn one_line_summary(&self) -> &str {
        "the quickest plan, with proof; or the best until the time limit, with a bound"
    }
}

impl Planner for ExactResidency {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Solution = ResidencySolution;

    fn find_plan(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        limit: &SearchLimit<'_>,
    ) -> Result<ResidencySolution> {
        // A previous plan that is better comes back from here, and is kept where none is better
        // still.
        let mut best = ParallelDirectHostAccess.find_plan(problem, previous, limit)?;
        let model = ResidencySearchModel::from_problem(problem);
        let is_better =
            |total: f64, best: &ResidencySolution| total < best.total_us * (1.0 - TOLERANCE);
        let bound = best_bound(&model, best.total_us, |chosen| {
            match ResidencySolution::from_plan(problem, model.chosen_plan(chosen)) {
                Ok(candidate) => {
                    let total = candidate.total_us;
                    if is_better(total, &best) {
                        best = candidate;
                    }
                    total
                }
                // More than memory holds.
                Err(_) => f64::INFINITY,
            }
        });
        let found = search_labels(&model, &bound, best.total_us, limit);
        let mut bound_us = found.bound_us;
        if let Some(chosen) = &found.chosen {
            match ResidencySolution::from_plan(problem, model.chosen_plan(chosen)) {
                Ok(candidate) if is_better(candidate.total_us, &best) => best = candidate,
                Ok(_) => {}
                // It does not fit through a helper's memory.
                Err(_) => bound_us = bound_us.min(found.total_us),
            }
        }
        best.proved = bound_us >= best.total_us * (1.0 - 1e-9);
        best.bound_us = Some(bound_us.min(best.total_us));
        Ok(best)
    }
}
