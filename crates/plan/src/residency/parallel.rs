//! `parallel`: several GPUs load layers, and hand them over (parallel transmission).
//!
//! The paper divides the layers, in order, into parts of about the same bytes: the first for the
//! GPU that runs the model, the others for GPUs below other PCIe switches with a link to it
//! (section 4.3.3). Layers can also be distributed one by one, which is mostly quicker (see
//! [`super::distribution`]). Both are tried, with every number of GPUs; where links are too slow to
//! gain anything, none helps.

use tessera_core::Result;

use super::distribution::LayerDistribution;
use super::memory::{all_fit, load_what_fits};
use super::problem::{ResidencyLayer, ResidencyProblem};
use super::solution::ResidencySolution;
use super::timeline::{Residency, ResidencyPlan};
use super::topology::ServerTopology;
use crate::{Planner, SearchLimit, Strategy};

/// Lets several GPUs load parts of the model.
pub struct ParallelTransmission;

impl Strategy for ParallelTransmission {
    fn name(&self) -> &str {
        "parallel"
    }

    fn one_line_summary(&self) -> &str {
        "a pipeline that loads through several GPUs (parallel transmission)"
    }
}

impl Planner for ParallelTransmission {
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
        let mut best = ResidencySolution::from_plan(problem, base.clone())?;
        let server = ServerTopology::from_problem(problem);
        for loaders in loader_groups(&server) {
            let parts = in_parts(problem, &base, &base, &loaders);
            let distributed =
                LayerDistribution::new(problem, &server, &loaders).distributed_plan(&base);
            // What a helper's memory does not hold is no plan.
            let found =
                [parts, distributed].map(|plan| ResidencySolution::from_plan(problem, plan));
            best = found.into_iter().flatten().fold(best, ResidencySolution::or_quicker);
        }
        let is_such = |plan: &ResidencyPlan| {
            plan.pipelined && (plan.direct_layers() == 0 || !all_fit(problem))
        };
        Ok(best.or_previous(problem, previous, is_such))
    }
}

/// The groups of GPUs that may load together: the target with the first helper, the first two, and
/// so on.
pub(super) fn loader_groups(server: &ServerTopology) -> Vec<Vec<usize>> {
    let mut group = vec![server.target];
    let add = |helper| {
        group.push(helper);
        group.clone()
    };
    server.helper_gpus().into_iter().map(add).collect()
}

/// The plan with what it loads in equal parts through `loaders`, in this order. Layers beyond the
/// first part that `base` loads are loaded, too: by another GPU they come soon enough.
pub(super) fn in_parts(
    problem: &ResidencyProblem,
    base: &ResidencyPlan,
    plan: &ResidencyPlan,
    loaders: &[usize],
) -> ResidencyPlan {
    let loaded = |(layer, residency): (&ResidencyLayer, &Residency)| match residency {
        Residency::Direct => 0.0,
        Residency::Loaded { .. } => layer.bytes,
    };
    let bytes: Vec<f64> = problem.layers.iter().zip(&plan.layers).map(loaded).collect();
    let total: f64 = bytes.iter().sum();
    let mut before = 0.0;
    let mut made = plan.clone();
    for (number, residency) in made.layers.iter_mut().enumerate() {
        // A layer belongs to the part that its middle lies in.
        let middle = (before + bytes[number] / 2.0) / total.max(1.0) * loaders.len() as f64;
        let part = (middle as usize).min(loaders.len() - 1);
        before += bytes[number];
        let stays = *residency == Residency::Direct
            && (part == 0 || base.layers[number] == Residency::Direct);
        if problem.layers[number].bytes > 0.0 && !stays {
            *residency = Residency::Loaded { through: loaders[part] };
        }
    }
    made
}
