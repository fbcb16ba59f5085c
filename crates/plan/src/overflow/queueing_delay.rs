//! QD, section 4.1 of the paper: what would have been through on the CPU while it waited for the
//! GPU.
//!
//! The paper shows that it makes things worse as often as not: each block is looked at as if the
//! others stayed, and so the queue moves to the CPU. It is here to be compared with.

use tessera_core::Result;

use super::executor::execute_plan;
use super::graph::OverflowGraph;
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};
use super::sequential::sequential_plan;
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, Strategy};

/// To the CPU goes what takes less there than it waited for the GPU and took on it in a sequential
/// run.
pub(super) struct QueueingDelay;

impl Strategy for QueueingDelay {
    fn name(&self) -> &str {
        "queueing-delay"
    }

    fn one_line_summary(&self) -> &str {
        "to the CPU goes what takes less there than it waits for the GPU and takes there (QD)"
    }
}

impl Planner for QueueingDelay {
    type Problem = OverflowProblem;
    type Plan = OverflowPlan;
    type Solution = OverflowSolution;

    fn find_plan(
        &self,
        problem: &OverflowProblem,
        previous: Option<&OverflowPlan>,
        _: &SearchLimit<'_>,
    ) -> Result<OverflowSolution> {
        let graph = OverflowGraph::new(problem)?;
        let before = sequential_plan(&graph);
        let times = execute_plan(&graph, &before);
        let mut devices = before.devices;
        for (block, device) in devices.iter_mut().enumerate() {
            let [cpu, gpu] = graph.times[block];
            if cpu < times.waited[block] + gpu {
                *device = OverflowDevice::Cpu;
            }
        }
        Ok(OverflowSolution::new(problem, &graph, OverflowPlan::first_come(devices), previous))
    }
}
