//! Today's runtimes: everything on the GPU that can run there, one block after the other.

use tessera_core::Result;

use super::Strategy;
use super::graph::Graph;
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use crate::Limit;

/// One block after the other, on the GPU where it can run there: what the others are compared with.
pub(super) struct Sequential;

impl Strategy for Sequential {
    fn name(&self) -> &'static str {
        "sequential"
    }

    fn about(&self) -> &'static str {
        "one block after the other, on the GPU where it can run there"
    }

    /// There is one such plan, so that it doesn't depend on the previous one.
    fn plan(&self, problem: &Problem, _: Option<&Plan>, _: &Limit<'_>) -> Result<Planned> {
        let graph = Graph::new(problem)?;
        Ok(Planned::new(problem, &graph, baseline(&graph), None))
    }
}

/// The plan of today's runtimes.
pub(super) fn baseline(graph: &Graph) -> Plan {
    Plan { devices: all_on_gpu(graph), order: None, sequential: true }
}

/// Every block on the GPU that can run there.
pub(super) fn all_on_gpu(graph: &Graph) -> Vec<Device> {
    let device = |block: usize| match graph.can_run(block, Device::Gpu) {
        true => Device::Gpu,
        false => Device::Cpu,
    };
    (0..graph.len()).map(device).collect()
}
