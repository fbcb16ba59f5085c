//! `parallel-direct`: several GPUs load the model, and layers stay on the host where that gains
//! time.
//!
//! Loading in parallel does nothing for the stalls of the first part; leaving layers on the host
//! does. The paper divides the whole model into equal parts and then leaves layers of the first
//! part on the host, which leaves the GPU that runs the model with less to load than the others. To
//! divide only what is loaded evens that out, and to distribute layers one by one (see
//! [`super::distribution`]) does most. All are tried, with every number of GPUs, and with all of
//! them single layers are moved in the end (see [`super::reassign`]).

use tessera_core::Result;

use super::direct_host_access::leave_layers;
use super::distribution::LayerDistribution;
use super::memory::load_what_fits;
use super::parallel::{in_parts, loader_groups};
use super::problem::ResidencyProblem;
use super::reassign::reassign_layers;
use super::solution::ResidencySolution;
use super::timeline::ResidencyPlan;
use super::topology::ServerTopology;
use crate::{Planner, SearchLimit, Strategy};

/// Lets several GPUs load, and leaves layers on the host.
pub struct ParallelDirectHostAccess;

impl Strategy for ParallelDirectHostAccess {
    fn name(&self) -> &str {
        "parallel-direct"
    }

    fn one_line_summary(&self) -> &str {
        "parallel, with layers left on the host where that gains time"
    }
}

impl Planner for ParallelDirectHostAccess {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Solution = ResidencySolution;

    fn find_plan(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        _limit: &SearchLimit<'_>,
    ) -> Result<ResidencySolution> {
        let base = load_what_fits(problem, true);
        let alone = leave_layers(problem, base.clone())?;
        let mut best = alone.clone();
        let server = ServerTopology::from_problem(problem);
        for loaders in loader_groups(&server) {
            let distribution = LayerDistribution::new(problem, &server, &loaders);
            // What `parallel` does is among them, so that this is never slower.
            let mut found =
                vec![ResidencySolution::from_plan(problem, distribution.distributed_plan(&base))];
            for first in [&base, &alone.plan] {
                found.push(leave_layers(problem, in_parts(problem, &base, first, &loaders)));
                found
                    .push(ResidencySolution::from_plan(problem, distribution.improved_plan(first)));
            }
            // What a helper's memory does not hold is no plan.
            let mut found: Vec<ResidencySolution> = found.into_iter().flatten().collect();
            found.sort_by(|one, other| one.total_us.total_cmp(&other.total_us));
            if loaders.len() > server.helper_gpus().len() {
                let plans = found.iter().map(|planned| &planned.plan);
                let moved = reassign_layers(problem, &server, &loaders, plans);
                found.extend(
                    moved
                        .into_iter()
                        .filter_map(|plan| ResidencySolution::from_plan(problem, plan).ok()),
                );
            }
            best = found.into_iter().fold(best, ResidencySolution::or_quicker);
        }
        let is_such = |plan: &ResidencyPlan| plan.pipelined;
        Ok(best.or_previous(problem, previous, is_such))
    }
}
