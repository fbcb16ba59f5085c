//! Today's runtimes: everything on the GPU that can run there, one block after the other.

use tessera_core::Result;

use super::graph::OverflowGraph;
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, Strategy};

/// One block after the other, on the GPU where it can run there: what the others are compared with.
pub(super) struct SequentialExecution;

impl Strategy for SequentialExecution {
    fn name(&self) -> &str {
        "sequential"
    }

    fn one_line_summary(&self) -> &str {
        "one block after the other, on the GPU where it can run there"
    }
}

impl Planner for SequentialExecution {
    type Problem = OverflowProblem;
    type Plan = OverflowPlan;
    type Solution = OverflowSolution;

    /// There is one such plan, so that it doesn't depend on the previous one.
    fn find_plan(
        &self,
        problem: &OverflowProblem,
        _: Option<&OverflowPlan>,
        _: &SearchLimit<'_>,
    ) -> Result<OverflowSolution> {
        let graph = OverflowGraph::new(problem)?;
        Ok(OverflowSolution::new(problem, &graph, sequential_plan(&graph), None))
    }
}

/// The plan of today's runtimes.
pub(super) fn sequential_plan(graph: &OverflowGraph) -> OverflowPlan {
    OverflowPlan { devices: all_on_gpu(graph), order: None, sequential: true }
}

/// Every block on the GPU that can run there.
pub(super) fn all_on_gpu(graph: &OverflowGraph) -> Vec<OverflowDevice> {
    let device = |block: usize| {
        if graph.can_run(block, OverflowDevice::Gpu) {
            OverflowDevice::Gpu
        } else {
            OverflowDevice::Cpu
        }
    };
    (0..graph.len()).map(device).collect()
}
