//! `load-then-run`: load the whole model, then run it.

use tessera_core::Result;

use super::memory::{all_fit, load_what_fits};
use super::problem::Problem;
use super::timeline::Plan;
use super::{Planned, Strategy};
use crate::Limit;

/// Loads the whole model, then runs it.
pub struct LoadThenRun;

impl Strategy for LoadThenRun {
    fn name(&self) -> &'static str {
        "load-then-run"
    }

    fn about(&self) -> &'static str {
        "load the whole model, then run it"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        _limit: &Limit<'_>,
    ) -> Result<Planned> {
        let planned = Planned::of(problem, load_what_fits(problem, false))?;
        let is_such = |plan: &Plan| {
            !plan.pipelined
                && plan.gpus(problem) == 1
                && (plan.direct_layers() == 0 || !all_fit(problem))
        };
        Ok(planned.or_previous(problem, previous, is_such))
    }
}
