//! QD, section 4.1 of the paper: what would have been through on the CPU while it waited for the GPU.
//!
//! The paper shows that it makes things worse as often as not: each block is looked at as if the others
//! stayed, and so the queue moves to the CPU. It is here to be compared with.

use tessera_core::Result;

use super::Strategy;
use super::executor::execute;
use super::graph::Graph;
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use super::sequential::baseline;
use crate::Limit;

/// To the CPU goes what takes less there than it waited for the GPU and took on it in a sequential run.
pub(super) struct QueueingDelay;

impl Strategy for QueueingDelay {
    fn name(&self) -> &'static str {
        "queueing-delay"
    }

    fn about(&self) -> &'static str {
        "to the CPU goes what takes less there than it waits for the GPU and takes there (QD)"
    }

    fn plan(&self, problem: &Problem, previous: Option<&Plan>, _: &Limit<'_>) -> Result<Planned> {
        let graph = Graph::new(problem)?;
        let before = baseline(&graph);
        let times = execute(&graph, &before);
        let mut devices = before.devices;
        for (block, device) in devices.iter_mut().enumerate() {
            let [cpu, gpu] = graph.times[block];
            if cpu < times.waited[block] + gpu {
                *device = Device::Cpu;
            }
        }
        Ok(Planned::new(problem, &graph, Plan::first_come(devices), previous))
    }
}
