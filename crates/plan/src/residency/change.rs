//! What the time to the result would be if one layer's residency changed, in constant time.
//!
//! A run ends as late as the layer allows that holds it up most: with `A` the time at which the
//! weights of a layer are there and `X` the time that it and all later layers run, the run ends at
//! the largest `A + X`, or at the sum of all times where nothing is waited for. A layer that is no
//! longer loaded makes `A` of all later layers of its stream smaller by its load time, less what it
//! holds them up by taking the bus, and `X` of all earlier ones larger by its penalty. So the largest `A + X` before and after each layer is
//! all that has to be known.

use tessera_core::Result;

use super::problem::{ResidencyProblem, exceeds_memory};
use super::timeline::{Residency, ResidencyPlan, simulate_residency};

/// A pipelined plan under change. The target has its PCIe switch to itself.
#[derive(Clone)]
pub(super) struct ResidencyChange<'a> {
    problem: &'a ResidencyProblem,
    target: usize,
    plan: ResidencyPlan,
    /// Per layer that comes through another GPU, when it is there; these don't change.
    forwarded: Vec<Option<f64>>,
    /// Bytes that are loaded.
    bytes: f64,
    /// Time to the result.
    total: f64,
    /// Time that the layers run.
    running: f64,
    /// Per layer, how long it waits for its weights.
    stalls: Vec<f64>,
    /// Per layer, load times of the layers before it that come through the target.
    loaded_before: Vec<f64>,
    /// Per layer, the time that the later ones run.
    running_after: Vec<f64>,
    /// Per layer, the largest `A + X` of those before it.
    before: Vec<f64>,
    /// Per layer, the largest `A + X` of it and those after it that come through the target.
    after: Vec<f64>,
    /// The same of those that come through other GPUs.
    after_forwarded: Vec<f64>,
}

impl<'a> ResidencyChange<'a> {
    pub(super) fn new(problem: &'a ResidencyProblem, plan: ResidencyPlan) -> Result<Self> {
        let target = problem.target_index();
        let through_other = |layer: &Residency| matches!(layer, Residency::Loaded { through } if *through != target);
        let count = plan.layers.len();
        let forwarded = if plan.layers.iter().any(through_other) {
            let run = simulate_residency(problem, &plan)?;
            run.layers.iter().map(|layer| layer.forward.map(|span| span.end_us)).collect()
        } else {
            vec![None; count]
        };
        let mut made = Self {
            problem,
            target,
            plan,
            forwarded,
            bytes: 0.0,
            total: 0.0,
            running: 0.0,
            stalls: vec![0.0; count],
            loaded_before: vec![0.0; count],
            running_after: vec![0.0; count],
            before: vec![0.0; count],
            after: vec![0.0; count + 1],
            after_forwarded: vec![0.0; count + 1],
        };
        made.recompute_times();
        Ok(made)
    }

    pub(super) fn into_plan(self) -> ResidencyPlan {
        self.plan
    }

    /// How many layers there are.
    pub(super) fn layer_count(&self) -> usize {
        self.plan.layers.len()
    }

    pub(super) fn total_us(&self) -> f64 {
        self.total
    }

    pub(super) fn stall_us(&self, layer: usize) -> f64 {
        self.stalls[layer]
    }

    /// Whether a layer has weights that come through the target.
    pub(super) fn is_loaded_here(&self, layer: usize) -> bool {
        self.problem.layers[layer].bytes > 0.0
            && self.plan.layers[layer] == Residency::Loaded { through: self.target }
    }

    /// Whether the weights of a layer are left on the host.
    pub(super) fn is_direct(&self, layer: usize) -> bool {
        self.plan.layers[layer] == Residency::Direct
    }

    /// Whether the target's memory holds a layer that is left on the host now, too.
    pub(super) fn fits_memory(&self, layer: usize) -> bool {
        let bytes = self.bytes + self.problem.layers[layer].bytes;
        self.problem.target_memory().is_none_or(|memory| !exceeds_memory(bytes, memory))
    }

    /// The total if a layer that comes through the target were left on the host; none where it
    /// can't.
    pub(super) fn total_if_direct(&self, layer: usize) -> Option<f64> {
        let known = &self.problem.layers[layer];
        let penalty = known.direct_penalty()?;
        let load = known.load_us - self.problem.hold_up_us(known);
        let earlier = self.running.max(self.before[layer]) + penalty;
        let later = (self.after[layer + 1] - load).max(self.after_forwarded[layer + 1]);
        Some(earlier.max(later))
    }

    /// The total if a layer that is left on the host came through the target.
    pub(super) fn total_if_loaded(&self, layer: usize) -> Option<f64> {
        let known = &self.problem.layers[layer];
        let earlier = self.running.max(self.before[layer]) - known.direct_penalty()?;
        let arrival = self.loaded_before[layer] + known.load_us;
        let own = arrival + known.in_memory_us + self.running_after[layer];
        let load = known.load_us - self.problem.hold_up_us(known);
        let later = (self.after[layer + 1] + load).max(self.after_forwarded[layer + 1]);
        Some(earlier.max(own).max(later))
    }

    /// Leaves a layer on the host.
    pub(super) fn leave_on_host(&mut self, layer: usize) {
        self.plan.layers[layer] = Residency::Direct;
        self.recompute_times();
    }

    /// Loads a layer through the target.
    pub(super) fn load_layer(&mut self, layer: usize) {
        self.plan.layers[layer] = Residency::Loaded { through: self.target };
        self.recompute_times();
    }

    fn recompute_times(&mut self) {
        let (mut clock, mut loaded) = (0.0_f64, 0.0);
        (self.bytes, self.running) = (0.0, 0.0);
        let mut arrivals = vec![None; self.plan.layers.len()];
        for (number, layer) in self.problem.layers.iter().enumerate() {
            self.loaded_before[number] = loaded;
            let time = match self.plan.layers[number] {
                Residency::Direct => {
                    loaded += self.problem.hold_up_us(layer);
                    layer.direct_time().unwrap_or(layer.in_memory_us)
                }
                Residency::Loaded { through } => {
                    self.bytes += layer.bytes;
                    if layer.bytes > 0.0 && through == self.target {
                        loaded += layer.load_us;
                        arrivals[number] = Some(loaded);
                    } else {
                        arrivals[number] = self.forwarded[number];
                    }
                    layer.in_memory_us
                }
            };
            let start = clock.max(arrivals[number].unwrap_or(0.0));
            self.stalls[number] = start - clock;
            clock = start + time;
            self.running += time;
        }
        self.total = clock;
        let mut running = 0.0;
        for number in (0..self.plan.layers.len()).rev() {
            self.running_after[number] = running;
            running += self.running_time(number);
            let own = arrivals[number].map_or(0.0, |arrival| arrival + running);
            let is_here = self.is_loaded_here(number);
            let (here, other) = if is_here { (own, 0.0) } else { (0.0, own) };
            self.before[number] = own;
            self.after[number] = self.after[number + 1].max(here);
            self.after_forwarded[number] = self.after_forwarded[number + 1].max(other);
        }
        let mut most = 0.0_f64;
        for before in &mut self.before {
            let own = *before;
            *before = most;
            most = most.max(own);
        }
    }

    fn running_time(&self, layer: usize) -> f64 {
        let known = &self.problem.layers[layer];
        match self.plan.layers[layer] {
            Residency::Direct => known.direct_time().unwrap_or(known.in_memory_us),
            Residency::Loaded { .. } => known.in_memory_us,
        }
    }
}
