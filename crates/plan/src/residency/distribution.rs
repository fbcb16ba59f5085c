//! Layers distributed to GPUs one by one: each comes through the one that has it there first.
//!
//! The paper gives each GPU one part of the model, so that the first part, which is needed first,
//! comes no sooner than with one GPU. Links between GPUs are several times faster than PCIe, and so
//! a layer is as welcome from another GPU; distributed in the order in which they run, all of them
//! come sooner.

use super::problem::{ResidencyLayer, ResidencyProblem, exceeds_memory};
use super::timeline::{Residency, ResidencyPlan};
use super::topology::ServerTopology;

/// How often all layers are gone through at most; after three or four times nothing changes any
/// more.
const ROUNDS: usize = 8;

/// Some GPUs of a server, and layers to distribute to them.
pub(super) struct LayerDistribution<'a> {
    problem: &'a ResidencyProblem,
    server: &'a ServerTopology,
    /// The GPUs that load; the first is the target.
    loaders: &'a [usize],
}

impl<'a> LayerDistribution<'a> {
    pub(super) fn new(
        problem: &'a ResidencyProblem,
        server: &'a ServerTopology,
        loaders: &'a [usize],
    ) -> Self {
        Self { problem, server, loaders }
    }

    /// The plan that distributes what `plan` loads.
    pub(super) fn distributed_plan(&self, plan: &ResidencyPlan) -> ResidencyPlan {
        self.plan_of(&left_on_host(plan))
    }

    /// The plan that distributes what `plan` loads, with layers changed one by one between being
    /// loaded and staying on the host as long as that gains time.
    pub(super) fn improved_plan(&self, plan: &ResidencyPlan) -> ResidencyPlan {
        let mut direct = left_on_host(plan);
        let layers = self.problem.layers.iter().zip(&direct);
        let mut bytes: f64 = layers.filter(|(_, direct)| !**direct).map(|(one, _)| one.bytes).sum();
        let memory = self.problem.target_memory().unwrap_or(f64::INFINITY);
        let mut total = self.total_us(&direct);
        let quickest =
            |one: &ResidencyLayer| one.in_memory_us.min(one.direct_time().unwrap_or(f64::INFINITY));
        let running: f64 = self.problem.layers.iter().map(quickest).sum();
        for _ in 0..ROUNDS {
            let before = total;
            for (number, layer) in self.problem.layers.iter().enumerate() {
                let Some(penalty) = layer.direct_penalty() else { continue };
                let change = if direct[number] { layer.bytes } else { -layer.bytes };
                // The result is no sooner than all layers have run.
                let is_too_slow = !direct[number] && running + penalty >= total;
                if is_too_slow || exceeds_memory(bytes + change, memory) {
                    continue;
                }
                direct[number] = !direct[number];
                let changed = self.total_us(&direct);
                if changed < total * (1.0 - 1e-12) {
                    (total, bytes) = (changed, bytes + change);
                } else {
                    direct[number] = !direct[number];
                }
            }
            if total >= before {
                break;
            }
        }
        self.plan_of(&direct)
    }

    fn plan_of(&self, direct: &[bool]) -> ResidencyPlan {
        let mut plan = ResidencyPlan::loading_all(self.problem, true);
        self.distribute_layers(direct, |layer, residency| plan.layers[layer] = residency);
        plan
    }

    fn total_us(&self, direct: &[bool]) -> f64 {
        self.distribute_layers(direct, |_, _| {})
    }

    /// Distributes all layers but those that stay on the host, and says when the result is there.
    fn distribute_layers(&self, direct: &[bool], mut assign: impl FnMut(usize, Residency)) -> f64 {
        // Per GPU, when its load stream and its link are free.
        let mut free = vec![(0.0_f64, 0.0_f64); self.loaders.len()];
        let mut clock = 0.0_f64;
        for (number, layer) in self.problem.layers.iter().enumerate() {
            if direct[number] {
                assign(number, Residency::Direct);
                clock += layer.direct_time().unwrap_or(layer.in_memory_us);
                continue;
            }
            if layer.bytes > 0.0 {
                let arrival = |loader: usize| {
                    let (load, link) = free[loader];
                    let loaded = load + layer.load_us;
                    match self.server.links[self.loaders[loader]] {
                        Some(rate) if loader > 0 => loaded.max(link) + layer.bytes * rate,
                        _ => loaded,
                    }
                };
                let (mut first, mut soonest) = (0, arrival(0));
                for loader in 1..self.loaders.len() {
                    let there = arrival(loader);
                    if there < soonest {
                        (first, soonest) = (loader, there);
                    }
                }
                free[first] = (free[first].0 + layer.load_us, soonest);
                assign(number, Residency::Loaded { through: self.loaders[first] });
                clock = clock.max(soonest);
            }
            clock += layer.in_memory_us;
        }
        clock
    }
}

/// Per layer, whether it is left on the host.
fn left_on_host(plan: &ResidencyPlan) -> Vec<bool> {
    plan.layers.iter().map(|layer| *layer == Residency::Direct).collect()
}
