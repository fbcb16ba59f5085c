//! `pipeline`: load all layers in order, and run each as soon as it is there (PipeSwitch).

use tessera_core::Result;

use super::memory::{all_fit, load_what_fits};
use super::problem::ResidencyProblem;
use super::solution::ResidencySolution;
use super::timeline::ResidencyPlan;
use crate::{Planner, SearchLimit, Strategy};

/// Runs each layer as soon as it is loaded.
pub struct PipelinedLoading;

impl Strategy for PipelinedLoading {
    fn name(&self) -> &str {
        "pipeline"
    }

    fn one_line_summary(&self) -> &str {
        "run each layer as soon as it is loaded (PipeSwitch)"
    }
}

impl Planner for PipelinedLoading {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Solution = ResidencySolution;

    fn find_plan(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        _limit: &SearchLimit<'_>,
    ) -> Result<ResidencySolution> {
        let planned = ResidencySolution::from_plan(problem, load_what_fits(problem, true))?;
        let is_such = |plan: &ResidencyPlan| {
            plan.pipelined
                && plan.loading_gpus(problem) == 1
                && (plan.direct_layers() == 0 || !all_fit(problem))
        };
        Ok(planned.or_previous(problem, previous, is_such))
    }
}
