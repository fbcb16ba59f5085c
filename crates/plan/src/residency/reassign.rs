//! Layers moved between GPUs and the host, or exchanged between GPUs, as long as that gains time.
//!
//! Who distributes layers one by one does not see what a later one needs: a large layer may have to
//! wait for a GPU that a small one before it could have left free. So single layers are moved in
//! the end, and neighbours change places.

use super::problem::{ResidencyProblem, exceeds_memory};
use super::timeline::{Residency, ResidencyPlan};
use super::topology::ServerTopology;

/// How many layers are simulated at most for all plans together, which takes about a millisecond.
/// It bounds the time for large models; small ones are through long before.
const MOST_STEPS: usize = 100_000;

/// With how many of the next loaded layers one changes places.
const NEIGHBOURS: usize = 3;

/// The plans, with layers moved as long as that gains time, one after the other until the time for
/// it is used up. `loaders` are below different PCIe switches.
pub(super) fn reassign_layers<'a>(
    problem: &'a ResidencyProblem,
    server: &'a ServerTopology,
    loaders: &[usize],
    plans: impl Iterator<Item = &'a ResidencyPlan>,
) -> Vec<ResidencyPlan> {
    let mut left = MOST_STEPS;
    let mut moved = Vec::new();
    for plan in plans {
        let mut state = LayerReassignment { problem, server, plan: plan.clone(), total: 0.0, left };
        state.total = state.simulate_total();
        state.improve_plan(loaders);
        left = state.left;
        moved.push(state.plan);
    }
    moved
}

struct LayerReassignment<'a> {
    problem: &'a ResidencyProblem,
    server: &'a ServerTopology,
    plan: ResidencyPlan,
    total: f64,
    /// How many layers may still be simulated.
    left: usize,
}

impl LayerReassignment<'_> {
    fn improve_plan(&mut self, loaders: &[usize]) {
        let mut before = f64::INFINITY;
        while self.total < before && self.left > 0 {
            before = self.total;
            for layer in 0..self.plan.layers.len() {
                if self.problem.layers[layer].bytes <= 0.0 {
                    continue;
                }
                for &through in loaders {
                    self.try_with(&[(layer, Residency::Loaded { through })]);
                }
                if self.problem.layers[layer].direct_time().is_some() {
                    self.try_with(&[(layer, Residency::Direct)]);
                }
                self.exchange_neighbours(layer);
            }
        }
    }

    /// Lets a layer change places with some of the next ones that come through other GPUs.
    fn exchange_neighbours(&mut self, layer: usize) {
        let mut neighbours = 0;
        for other in layer + 1..self.plan.layers.len() {
            let (one, two) = (self.plan.layers[layer], self.plan.layers[other]);
            if one == Residency::Direct || neighbours == NEIGHBOURS {
                return;
            }
            if two != Residency::Direct && self.problem.layers[other].bytes > 0.0 {
                neighbours += 1;
                self.try_with(&[(layer, two), (other, one)]);
            }
        }
    }

    /// Makes changes where they gain time.
    fn try_with(&mut self, changes: &[(usize, Residency)]) {
        let is_change =
            |&(layer, residency): &(usize, Residency)| self.plan.layers[layer] != residency;
        if self.left == 0 || !changes.iter().any(is_change) {
            return;
        }
        let before: Vec<(usize, Residency)> =
            changes.iter().map(|&(layer, _)| (layer, self.plan.layers[layer])).collect();
        self.set_residencies(changes);
        let total = self.simulate_total();
        if total < self.total * (1.0 - 1e-12) {
            self.total = total;
        } else {
            self.set_residencies(&before);
        }
    }

    fn set_residencies(&mut self, changes: &[(usize, Residency)]) {
        for &(layer, residency) in changes {
            self.plan.layers[layer] = residency;
        }
    }

    /// When the result is there; infinite where the target's memory does not hold what is loaded.
    fn simulate_total(&mut self) -> f64 {
        self.left = self.left.saturating_sub(self.plan.layers.len());
        // Per GPU, when its load stream and its link are free.
        let mut free = vec![(0.0_f64, 0.0_f64); self.problem.gpus.len()];
        let (mut clock, mut bytes) = (0.0_f64, 0.0);
        for (layer, residency) in self.problem.layers.iter().zip(&self.plan.layers) {
            let Residency::Loaded { through } = *residency else {
                clock += layer.direct_time().unwrap_or(layer.in_memory_us);
                continue;
            };
            if layer.bytes > 0.0 {
                bytes += layer.bytes;
                let (load, link) = &mut free[through];
                *load += layer.load_us;
                let arrival = match self.server.links[through] {
                    Some(rate) if through != self.server.target => {
                        *link = link.max(*load) + layer.bytes * rate;
                        *link
                    }
                    _ => *load,
                };
                clock = clock.max(arrival);
            }
            clock += layer.in_memory_us;
        }
        match self.problem.target_memory() {
            Some(memory) if exceeds_memory(bytes, memory) => f64::INFINITY,
            _ => clock,
        }
    }
}
