//! SD, section 4.2 of the paper: what is hardly slower on the CPU.
//!
//! It takes no account of copies, and is often worse than doing nothing, as the paper shows. It is
//! where `communication` starts.

use tessera_core::Result;

use super::graph::OverflowGraph;
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, Strategy};

/// To the CPU goes what takes less than the threshold longer there.
pub(super) struct Slowdown;

impl Strategy for Slowdown {
    fn name(&self) -> &str {
        "slowdown"
    }

    fn one_line_summary(&self) -> &str {
        "to the CPU goes what takes less than threshold_us longer there (SD)"
    }
}

impl Planner for Slowdown {
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
        let devices = light_on_cpu(&graph, problem.threshold_us);
        Ok(OverflowSolution::new(problem, &graph, OverflowPlan::first_come(devices), previous))
    }
}

/// On the CPU what takes less than `threshold_us` longer there, all else on the GPU.
pub(super) fn light_on_cpu(graph: &OverflowGraph, threshold_us: f64) -> Vec<OverflowDevice> {
    let device = |&[cpu, gpu]: &[f64; 2]| {
        if cpu - gpu < threshold_us { OverflowDevice::Cpu } else { OverflowDevice::Gpu }
    };
    graph.times.iter().map(device).collect()
}
