//! What a plan would cost.

use serde::Serialize;
use tessera_core::Result;

use super::executor::{DeviceTransfer, ExecutionTimes, execute_plan};
use super::graph::{NO_BLOCK, OverflowGraph};
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};

/// A block as it was run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutedBlock {
    /// Where.
    pub device: OverflowDevice,
    /// When all that it takes was there. In a sequential run, when it was made.
    pub ready_us: f64,
    /// When its device took it.
    pub start_us: f64,
    /// When it was through.
    pub end_us: f64,
    /// How long it waited for its device; copies of its own in a sequential run are not counted.
    pub waited_us: f64,
}

/// A copy between the devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutedCopy {
    /// The block that made it; none for an input of the model.
    pub from: Option<usize>,
    /// The block that takes it; none for a result of the model.
    pub to: Option<usize>,
    /// The device that it is copied to.
    pub device: OverflowDevice,
    /// When it began.
    pub start_us: f64,
    /// When it was there.
    pub end_us: f64,
    /// Its size.
    pub bytes: f64,
}

/// What a plan costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverflowRun {
    /// From the start until the last block is through and all results are with the host.
    pub makespan_us: f64,
    /// The blocks, as the problem lists them.
    pub blocks: Vec<ExecutedBlock>,
    /// The copies, by when they began.
    pub copies: Vec<ExecutedCopy>,
    /// Share of the time that the CPU was busy.
    pub cpu_utilisation: f64,
    /// Share of the time that the GPU was busy.
    pub gpu_utilisation: f64,
    /// Mean time that a block waited for the CPU.
    pub mean_wait_cpu_us: f64,
    /// Mean time that a block waited for the GPU.
    pub mean_wait_gpu_us: f64,
    /// All that was copied.
    pub copied_bytes: f64,
    /// Time of all copies together, which may overlap.
    pub copy_us: f64,
}

/// Runs a plan on the executor: the module says how it works.
pub fn simulate_overflow(problem: &OverflowProblem, plan: &OverflowPlan) -> Result<OverflowRun> {
    let graph = OverflowGraph::new(problem)?;
    plan.check_on_graph(&graph, problem)?;
    let times = execute_plan(&graph, plan);
    let mut copies: Vec<ExecutedCopy> =
        times.transfers.iter().map(|made| executed_copy(problem, made)).collect();
    copies.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    let device = |wanted: OverflowDevice| DeviceLoad::from_times(&times, &plan.devices, wanted);
    let (cpu, gpu) = (device(OverflowDevice::Cpu), device(OverflowDevice::Gpu));
    let block = |(number, &device): (usize, &OverflowDevice)| ExecutedBlock {
        device,
        ready_us: times.ready[number],
        start_us: times.start[number],
        end_us: times.end[number],
        waited_us: times.waited[number],
    };
    Ok(OverflowRun {
        makespan_us: times.makespan_us,
        blocks: plan.devices.iter().enumerate().map(block).collect(),
        cpu_utilisation: cpu.utilisation,
        gpu_utilisation: gpu.utilisation,
        mean_wait_cpu_us: cpu.mean_wait_us,
        mean_wait_gpu_us: gpu.mean_wait_us,
        copied_bytes: copies.iter().map(|copy| copy.bytes).sum(),
        copy_us: copies.iter().map(|copy| copy.end_us - copy.start_us).sum(),
        copies,
    })
}

fn executed_copy(problem: &OverflowProblem, made: &DeviceTransfer) -> ExecutedCopy {
    let block = |number: u32| (number != NO_BLOCK).then_some(number as usize);
    let (from, to) = (block(made.from), block(made.to));
    let bytes = match (from, to) {
        (None, Some(to)) => problem.blocks[to].input_bytes,
        (Some(from), None) => problem.blocks[from].output_bytes,
        _ => problem.edges.get(made.edge as usize).map_or(0.0, |edge| edge.bytes),
    };
    ExecutedCopy { from, to, device: made.device, start_us: made.start, end_us: made.end, bytes }
}

/// How a device did.
struct DeviceLoad {
    utilisation: f64,
    mean_wait_us: f64,
}

impl DeviceLoad {
    fn from_times(
        times: &ExecutionTimes,
        devices: &[OverflowDevice],
        wanted: OverflowDevice,
    ) -> Self {
        let (mut count, mut busy, mut waited) = (0u32, 0.0, 0.0);
        for block in (0..devices.len()).filter(|&block| devices[block] == wanted) {
            count += 1;
            busy += times.end[block] - times.start[block];
            waited += times.waited[block];
        }
        let over = |sum: f64, by: f64| if by > 0.0 { sum / by } else { 0.0 };
        Self {
            utilisation: over(busy, times.makespan_us),
            mean_wait_us: over(waited, f64::from(count)),
        }
    }
}
