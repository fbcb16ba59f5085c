//! `parallel`: several GPUs load layers, and hand them over (parallel transmission).
//!
//! The paper divides the layers, in order, into parts of about the same bytes: the first for the GPU that
//! runs the model, the others for GPUs below other PCIe switches with a link to it (section 4.3.3). Layers
//! can also be dealt out one by one, which is mostly quicker (see [`super::dealing`]). Both are tried, with
//! every number of GPUs; where links are too slow to gain anything, none helps.

use tessera_core::Result;

use super::dealing::Dealing;
use super::memory::{all_fit, load_what_fits};
use super::problem::{Layer, Problem};
use super::timeline::{Plan, Residency};
use super::topology::Server;
use super::{Planned, Strategy};
use crate::Limit;

/// Lets several GPUs load parts of the model.
pub struct Parallel;

impl Strategy for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn about(&self) -> &'static str {
        "a pipeline that loads through several GPUs (parallel transmission)"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        _limit: &Limit<'_>,
    ) -> Result<Planned> {
        let base = load_what_fits(problem, true);
        let mut best = Planned::of(problem, base.clone())?;
        let server = problem.server();
        for loaders in groups(&server) {
            let parts = in_parts(problem, &base, &base, &loaders);
            let dealt = Dealing::new(problem, &server, &loaders).plan(&base);
            // What a helper's memory does not hold is no plan.
            let found = [parts, dealt].map(|plan| Planned::of(problem, plan));
            best = found.into_iter().flatten().fold(best, Planned::or_quicker);
        }
        let is_such =
            |plan: &Plan| plan.pipelined && (plan.direct_layers() == 0 || !all_fit(problem));
        Ok(best.or_previous(problem, previous, is_such))
    }
}

/// The groups of GPUs that may load together: the target with the first helper, the first two, and so on.
pub(super) fn groups(server: &Server) -> Vec<Vec<usize>> {
    let mut group = vec![server.target];
    let add = |helper| {
        group.push(helper);
        group.clone()
    };
    server.helpers().into_iter().map(add).collect()
}

/// The plan with what it loads in equal parts through `loaders`, in this order. Layers beyond the first
/// part that `base` loads are loaded, too: by another GPU they come soon enough.
pub(super) fn in_parts(problem: &Problem, base: &Plan, plan: &Plan, loaders: &[usize]) -> Plan {
    let loaded = |(layer, residency): (&Layer, &Residency)| match residency {
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
