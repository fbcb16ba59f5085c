//! `parallel-direct`: several GPUs load the model, and layers stay on the host where that gains time.
//!
//! Loading in parallel does nothing for the stalls of the first part; leaving layers on the host does. The
//! paper divides the whole model into equal parts and then leaves layers of the first part on the host,
//! which leaves the GPU that runs the model with less to load than the others. To divide only what is
//! loaded evens that out, and to deal layers out one by one (see [`super::dealing`]) does most. All are
//! tried, with every number of GPUs, and with all of them single layers are moved in the end (see
//! [`super::reassign`]).

use tessera_core::Result;

use super::dealing::Dealing;
use super::direct_host_access::leave_layers;
use super::memory::load_what_fits;
use super::parallel::{groups, in_parts};
use super::problem::Problem;
use super::reassign::reassign;
use super::timeline::Plan;
use super::{Planned, Strategy};
use crate::Limit;

/// Lets several GPUs load, and leaves layers on the host.
pub struct ParallelDirect;

impl Strategy for ParallelDirect {
    fn name(&self) -> &'static str {
        "parallel-direct"
    }

    fn about(&self) -> &'static str {
        "parallel, with layers left on the host where that gains time"
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
        let server = problem.server();
        for loaders in groups(&server) {
            let dealing = Dealing::new(problem, &server, &loaders);
            // What `parallel` does is among them, so that this is never slower.
            let mut found = vec![Planned::of(problem, dealing.plan(&base))];
            for first in [&base, &alone.plan] {
                found.push(leave_layers(problem, in_parts(problem, &base, first, &loaders)));
                found.push(Planned::of(problem, dealing.improved(first)));
            }
            // What a helper's memory does not hold is no plan.
            let mut found: Vec<Planned> = found.into_iter().flatten().collect();
            found.sort_by(|one, other| one.total_us.total_cmp(&other.total_us));
            if loaders.len() > server.helpers().len() {
                let plans = found.iter().map(|planned| &planned.plan);
                let moved = reassign(problem, &server, &loaders, plans);
                found.extend(moved.into_iter().filter_map(|plan| Planned::of(problem, plan).ok()));
            }
            best = found.into_iter().fold(best, Planned::or_quicker);
        }
        let is_such = |plan: &Plan| plan.pipelined;
        Ok(best.or_previous(problem, previous, is_such))
    }
}
