//! SD, section 4.2 of the paper: what is hardly slower on the CPU.
//!
//! It takes no account of copies, and is often worse than doing nothing, as the paper shows. It is where
//! `communication` starts.

use tessera_core::Result;

use super::Strategy;
use super::graph::Graph;
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use crate::Limit;

/// To the CPU goes what takes less than the threshold longer there.
pub(super) struct Slowdown;

impl Strategy for Slowdown {
    fn name(&self) -> &'static str {
        "slowdown"
    }

    fn about(&self) -> &'static str {
        "to the CPU goes what takes less than threshold_us longer there (SD)"
    }

    fn plan(&self, problem: &Problem, previous: Option<&Plan>, _: &Limit<'_>) -> Result<Planned> {
        let graph = Graph::new(problem)?;
        let devices = light_on_cpu(&graph, problem.threshold_us);
        Ok(Planned::new(problem, &graph, Plan::first_come(devices), previous))
    }
}

/// On the CPU what takes less than `threshold_us` longer there, all else on the GPU.
pub(super) fn light_on_cpu(graph: &Graph, threshold_us: f64) -> Vec<Device> {
    let device = |&[cpu, gpu]: &[f64; 2]| match cpu - gpu < threshold_us {
        true => Device::Cpu,
        false => Device::Gpu,
    };
    graph.times.iter().map(device).collect()
}
