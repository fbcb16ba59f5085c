//! A plan, and what makes one that can be run.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::graph::OverflowGraph;
use super::problem::{OverflowDevice, OverflowProblem};

/// Which block runs where, and when it is its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverflowPlan {
    /// Per block, its device.
    pub devices: Vec<OverflowDevice>,
    /// All blocks by number, in the order in which the devices take them, each after those whose
    /// outputs it takes. Without it, first come is first served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<usize>>,
    /// Whether blocks run one after the other, also those of different devices.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sequential: bool,
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl OverflowPlan {
    /// An error where a block can't run where the plan has it, or not when.
    pub fn check_against(&self, problem: &OverflowProblem) -> Result<()> {
        self.check_on_graph(&OverflowGraph::new(problem)?, problem)
    }

    /// How many blocks are on `device`.
    pub fn count_on(&self, device: OverflowDevice) -> usize {
        self.devices.iter().filter(|&&planned| planned == device).count()
    }

    /// First come, first served.
    pub(super) fn first_come(devices: Vec<OverflowDevice>) -> Self {
        Self { devices, order: None, sequential: false }
    }

    /// In this order.
    pub(super) fn in_order(devices: Vec<OverflowDevice>, order: &[u32]) -> Self {
        let order = order.iter().map(|&block| block as usize).collect();
        Self { devices, order: Some(order), sequential: false }
    }

    pub(super) fn check_on_graph(
        &self,
        graph: &OverflowGraph,
        problem: &OverflowProblem,
    ) -> Result<()> {
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
