//! `exact`: the quickest plan, with proof.
//!
//! Layer by layer, all ways to bring its weights are tried on all partial plans that may still become the
//! best. Of a partial plan only its clocks matter: when its layers have run, when each stream is free, and
//! how many bytes are loaded where memory is limited. One whose clocks are all no earlier than those of
//! another is dropped, and so is one whose bound (see [`super::relaxation`]) is no better than a plan that
//! is known.
//!
//! Where they become too many, or time is up, only the most promising are followed, and the best bound of
//! the others is the bound of the whole. It is the quickest of the plans in which at most one GPU per PCIe
//! switch loads (see [`super::topology`]). Memory of GPUs that help is left out of the search; a plan that
//! does not keep to it is no answer, but still a bound.

use tessera_core::Result;

use super::labels::search;
use super::parallel_direct::ParallelDirect;
use super::problem::Problem;
use super::relaxation::bound;
use super::timeline::{Plan, Residency};
use super::{Planned, Strategy};
use crate::Limit;

/// Plans closer than this count as equally quick.
pub(super) const TOLERANCE: f64 = 1e-10;

/// Finds the quickest plan.
pub struct Exact;

impl Strategy for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn about(&self) -> &'static str {
        "the quickest plan, with proof; or the best until the time limit, with a bound"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned> {
        // A previous plan that is better comes back from here, and is kept where none is better still.
        let mut best = ParallelDirect.plan(problem, previous, limit)?;
        let model = Model::of(problem);
        let is_better = |total: f64, best: &Planned| total < best.total_us * (1.0 - TOLERANCE);
        let bound = bound(&model, best.total_us, |chosen| {
            match Planned::of(problem, model.plan(chosen)) {
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
        let found = search(&model, &bound, best.total_us, limit);
        let mut bound_us = found.bound_us;
        if let Some(chosen) = &found.chosen {
            match Planned::of(problem, model.plan(chosen)) {
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

/// A way to bring the weights of a layer.
pub(super) struct Way {
    pub(super) residency: Residency,
    /// Time to run.
    pub(super) running: f64,
    /// The streams that it takes: which, for how long, and how much later the weights are there.
    pub(super) streams: Vec<(usize, f64, f64)>,
    /// Bytes in the target's memory.
    pub(super) bytes: f64,
}

/// The problem, as the search sees it. Stream 0 is the target's load stream; each helper has two more, one
/// to load and one to forward.
pub(super) struct Model {
    /// Per layer, the ways there are.
    pub(super) layers: Vec<Vec<Way>>,
    pub(super) streams: usize,
    /// Bytes that the target holds; infinite without a limit.
    pub(super) memory: f64,
}

impl Model {
    fn of(problem: &Problem) -> Self {
        let server = problem.server();
        let helpers = server.helpers();
        let ways = |layer: &super::Layer| {
            let loaded = |through: usize, streams: Vec<(usize, f64, f64)>| Way {
                residency: Residency::Loaded { through },
                running: layer.in_memory_us,
                streams,
                bytes: layer.bytes,
            };
            if layer.bytes <= 0.0 {
                return vec![loaded(server.target, Vec::new())];
            }
            let mut ways = vec![loaded(server.target, vec![(0, layer.load_us, 0.0)])];
            for (number, &helper) in helpers.iter().enumerate() {
                let forward = layer.bytes * server.links[helper].unwrap_or(0.0);
                let (load, migrate) = (1 + 2 * number, 2 + 2 * number);
                let streams = vec![(load, layer.load_us, forward), (migrate, forward, 0.0)];
                ways.push(loaded(helper, streams));
            }
            if let Some(running) = layer.direct() {
                let residency = Residency::Direct;
                ways.push(Way { residency, running, streams: Vec::new(), bytes: 0.0 });
            }
            ways
        };
        let bytes: f64 = problem.layers.iter().map(|layer| layer.bytes).sum();
        let memory = problem.memory().filter(|&memory| memory < bytes);
        Self {
            layers: problem.layers.iter().map(ways).collect(),
            streams: 1 + 2 * helpers.len(),
            memory: memory.unwrap_or(f64::INFINITY),
        }
    }

    fn plan(&self, chosen: &[usize]) -> Plan {
        let residency = |(ways, &way): (&Vec<Way>, &usize)| ways[way].residency;
        Plan { layers: self.layers.iter().zip(chosen).map(residency).collect(), pipelined: true }
    }
}
