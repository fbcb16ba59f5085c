//! Video memory that blocks take (figure 4.14 of the BlockFlow thesis).

use std::collections::BTreeSet;
use tessera_report::{Table, format_bytes, format_megabytes};

use serde::Serialize;
use tessera_core::{Device, Result};

use super::latency::Arm;
use super::{GpuBenchSetup, or_dash};

/// Requests before memory is looked at: what a run needs is there by then.
const WARM_UP: usize = 3;

/// A pipeline alone on the GPU.
#[derive(Serialize)]
pub(crate) struct PipelineMemory {
    pub(crate) name: String,
    /// Processes that use the GPU.
    pub(crate) processes: usize,
    /// All that it takes.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) blocks: Vec<BlockMemory>,
    /// What is neither weights nor buffers between units: contexts, and what the engine needs.
    pub(crate) rest_bytes: Option<i64>,
    pub(crate) rest_per_process_bytes: Option<f64>,
}

/// What is known of a block.
#[derive(Serialize)]
pub(crate) struct BlockMemory {
    pub(crate) weight_bytes: Option<u64>,
    /// Buffers for what it hands over.
    pub(crate) pool_bytes: Option<u64>,
}

/// Takes a pipeline that was just started, and what was in use before.
pub(crate) fn measure_memory(
    setup: &GpuBenchSetup,
    arm: &Arm,
    before: Option<u64>,
) -> Result<PipelineMemory> {
    let input = arm.pipeline.copy_input(&setup.random_input(1)?)?;
    for _ in 0..WARM_UP {
        arm.pipeline.infer_once(&input)?;
    }
    let after = setup.meter.stable_used_bytes();
    let is_gpu = setup.options.device != Device::Cpu;
    let blocks: Vec<BlockMemory> = arm
        .pipeline
        .gpu_usage()?
        .iter()
        .map(|found| BlockMemory {
            weight_bytes: is_gpu.then_some(found.weight_bytes),
            pool_bytes: is_gpu.then_some(found.pool_bytes),
        })
        .collect();
    let instances = arm.pipeline.instances();
    let own: BTreeSet<u32> = instances.iter().filter_map(|instance| instance.process).collect();
    // Those on threads are all in this one.
    let processes = own.len().max(1);
    let used_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let known = blocks.iter().flat_map(|block| [block.weight_bytes, block.pool_bytes]);
    let known: u64 = known.flatten().sum();
    let rest_bytes = used_bytes.map(|used| used as i64 - known as i64);
    Ok(PipelineMemory {
        name: arm.name.to_owned(),
        processes,
        used_bytes,
        blocks,
        rest_bytes,
        rest_per_process_bytes: rest_bytes.map(|rest| rest as f64 / processes as f64),
    })
}

pub(crate) fn memory_table(all: &[PipelineMemory]) -> Table {
    let mut table = Table::new(&["how", "what", ">weights", ">buffers", ">rest", ">all"]);
    let bytes = |bytes: Option<u64>| or_dash(bytes, format_bytes);
    let dash = || "–".to_owned();
    for memory in all {
        for (number, block) in memory.blocks.iter().enumerate() {
            let known = [bytes(block.weight_bytes), bytes(block.pool_bytes)];
            let rest = if memory.processes > 1 {
                or_dash(memory.rest_per_process_bytes, |rest| format_megabytes(rest, 1))
            } else {
                dash()
            };
            let [weights, pools] = known;
            let what = format!("block {number}");
            table.add_row([memory.name.clone(), what, weights, pools, rest, dash()]);
        }
        let sum = |of: fn(&BlockMemory) -> Option<u64>| -> Option<u64> {
            memory.blocks.iter().map(of).sum()
        };
        table.add_row([
            memory.name.clone(),
            match memory.processes {
                1 => "all, in one process".to_owned(),
                count => format!("all, in {count} processes"),
            },
            bytes(sum(|block| block.weight_bytes)),
            bytes(sum(|block| block.pool_bytes)),
            or_dash(memory.rest_bytes, |rest| format_megabytes(rest as f64, 1)),
            bytes(memory.used_bytes),
        ]);
    }
    table
}
