//! `parallel-direct`: several GPUs load parts of the model, and layers of the first part stay on the host.
//!
//! Loading in parallel does nothing for the stalls of the first part; leaving layers on the host does. The
//! paper divides the whole model into equal parts and then leaves layers of the first part on the host,
//! which leaves the GPU that runs the model with less to load than the others. The other order, to divide
//! only what is loaded, evens that out. Both are tried, with every number of GPUs.

use tessera_core::Result;

use super::direct_host_access::leave_layers;
use super::memory::load_what_fits;
use super::parallel::{groups, in_parts};
use super::problem::Problem;
use super::timeline::Plan;
use super::{Planned, Strategy};
use crate::Limit;

/// Lets several GPUs load, and leaves layers of the first part on the host.
pub struct ParallelDirect;

impl Strategy for ParallelDirect {
    fn name(&self) -> &'static str {
        "parallel-direct"
    }

    fn about(&self) -> &'static str {
        "parallel, with layers of the first part left on the host"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        _limit: &Limit<'_>,
    ) -> Result<Planned> {
        let base = load_what_fits(problem, true);
        let alone = leave_layers(problem, base.clone())?;
        let mut best = alone.clone();
        for loaders in groups(problem) {
            for first in [&base, &alone.plan] {
                let parts = in_parts(problem, &base, first, &loaders);
                // Parts that a helper's memory does not hold are no plan.
                if let Ok(planned) = leave_layers(problem, parts) {
                    best = best.or_quicker(planned);
                }
            }
        }
        let is_such = |plan: &Plan| plan.pipelined;
        Ok(best.or_previous(problem, previous, is_such))
    }
}
