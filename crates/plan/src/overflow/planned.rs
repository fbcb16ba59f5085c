//! A plan, and what makes one that can be run.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::executor::execute;
use super::graph::Graph;
use super::problem::{Device, Problem};

/// Which block runs where, and when it is its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Per block, its device.
    pub devices: Vec<Device>,
    /// All blocks by number, in the order in which the devices take them, each after those whose outputs
    /// it takes. Without it, first come is first served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<usize>>,
    /// Whether blocks run one after the other, also those of different devices.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sequential: bool,
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl Plan {
    /// An error where a block can't run where the plan has it, or not when.
    pub fn check(&self, problem: &Problem) -> Result<()> {
        self.fits(&Graph::new(problem)?, problem)
    }

    /// How many blocks are on `device`.
    pub fn count(&self, device: Device) -> usize {
        self.devices.iter().filter(|&&planned| planned == device).count()
    }

    /// First come, first served.
    pub(super) fn first_come(devices: Vec<Device>) -> Self {
        Self { devices, order: None, sequential: false }
    }

    /// In this order.
    pub(super) fn in_order(devices: Vec<Device>, order: &[u32]) -> Self {
        let order = order.iter().map(|&block| block as usize).collect();
        Self { devices, order: Some(order), sequential: false }
    }

    pub(super) fn fits(&self, graph: &Graph, problem: &Problem) -> Result<()> {
        let count = graph.len();
        let name = |block: usize| &problem.blocks[block].name;
        if self.devices.len() != count {
            let given = self.devices.len();
            let message = format!("devices: {given}, expected one for each of {count} blocks");
            return Err(Error::invalid(message));
        }
        for (block, &device) in self.devices.iter().enumerate() {
            if !graph.can_run(block, device) {
                let name = name(block);
                let message = format!("devices[{block}]: \"{name}\" can't run on the {device}");
                return Err(Error::invalid(message));
            }
        }
        let Some(order) = &self.order else { return Ok(()) };
        if order.len() != count {
            let given = order.len();
            return Err(Error::invalid(format!("order: {given} blocks, expected all {count}")));
        }
        let mut seen = vec![false; count];
        for (place, &block) in order.iter().enumerate() {
            let wrong = match seen.get(block) {
                None => Some(format!("{block}, expected a number below {count}")),
                Some(true) => Some(format!("\"{}\" is there twice", name(block))),
                Some(false) => {
                    seen[block] = true;
                    let mut inputs = graph.predecessors(block).iter();
                    let late = inputs.find(|link| !seen[link.block as usize]);
                    late.map(|link| {
                        let maker = name(link.block as usize);
                        format!("\"{}\" takes what \"{maker}\" makes later", name(block))
                    })
                }
            };
            if let Some(wrong) = wrong {
                return Err(Error::invalid(format!("order[{place}]: {wrong}")));
            }
        }
        Ok(())
    }
}

/// What a strategy returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// What it costs, see [`simulate`](super::simulate).
    pub makespan_us: f64,
    /// What no plan is better than; `exact` alone knows it.
    pub bound_us: Option<f64>,
    /// Whether there is no better plan.
    pub proved: bool,
}

/// How much better, in relation, a new plan must be to replace the previous one.
const NOTICEABLE: f64 = 1e-9;

impl Planned {
    /// `plan` with what it costs; or the previous one, where that still fits and is no worse.
    pub(super) fn new(
        problem: &Problem,
        graph: &Graph,
        plan: Plan,
        previous: Option<&Plan>,
    ) -> Self {
        let makespan_us = execute(graph, &plan).makespan_us;
        let still = previous.filter(|previous| previous.fits(graph, problem).is_ok());
        let kept = still.map(|previous| (previous, execute(graph, previous).makespan_us));
        let kept = kept.filter(|(_, kept_us)| *kept_us <= makespan_us * (1.0 + NOTICEABLE));
        let (plan, makespan_us) = match kept {
            Some((previous, kept_us)) => (previous.clone(), kept_us),
            None => (plan, makespan_us),
        };
        Self { plan, makespan_us, bound_us: None, proved: false }
    }

    /// How far from the optimum it may be, as a share of it; none where that isn't known.
    pub fn gap(&self) -> Option<f64> {
        let bound = self.bound_us?;
        match bound > 0.0 {
            true => Some((self.makespan_us / bound - 1.0).max(0.0)),
            false => (self.makespan_us <= 0.0).then_some(0.0),
        }
    }
}
