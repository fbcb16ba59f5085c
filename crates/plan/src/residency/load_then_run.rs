//! `load-then-run`: load the whole model, then run it.

use tessera_core::Result;

use super::memory::{all_fit, load_what_fits};
use super::problem::ResidencyProblem;
use super::solution::ResidencySolution;
use super::timeline::ResidencyPlan;
use crate::{Planner, SearchLimit, Strategy};

/// Loads the whole model, then runs it.
pub struct LoadThenRun;

impl Strategy for LoadThenRun {
    fn name(&self) -> &str {
        "load-then-run"
    }

    fn one_line_summary(&self) -> &str {
        "load the whole model, then run it"
    }
}

impl Planner for LoadThenRun {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Solution = ResidencySolution;

    fn find_plan(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        _limit: &SearchLimit<'_>,
    ) -> Result<ResidencySolution> {
        let planned = ResidencySolution::from_plan(problem, load_what_fits(problem, false))?;
        let is_such = |plan: &ResidencyPlan| {
            !plan.pipelined
                && plan.loading_gpus(problem) == 1
                && (plan.direct_layers() == 0 || !all_fit(problem))
        };
        Ok(planned.or_previous(problem, previous, is_such))
    }
}
