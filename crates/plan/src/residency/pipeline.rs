//! `pipeline`: load all layers in order, and run each as soon as it is there (PipeSwitch).

use tessera_core::Result;

use super::memory::{all_fit, load_what_fits};
use super::problem::Problem;
use super::timeline::Plan;
use super::{Planned, Strategy};
use crate::Limit;

/// Runs each layer as soon as it is loaded.
pub struct Pipeline;

impl Strategy for Pipeline {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn about(&self) -> &'static str {
        "run each layer as soon as it is loaded (PipeSwitch)"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        _limit: &Limit<'_>,
    ) -> Result<Planned> {
        let planned = Planned::of(problem, load_what_fits(problem, true))?;
        let is_such = |plan: &Plan| {
            plan.pipelined
                && plan.gpus(problem) == 1
                && (plan.direct_layers() == 0 || !all_fit(problem))
        };
        Ok(planned.or_previous(problem, previous, is_such))
    }
}
