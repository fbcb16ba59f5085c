//! Video memory that blocks take (figure 4.14 of the BlockFlow thesis).

use std::collections::BTreeSet;

use serde::Serialize;
use tessera_core::{Device, Result};

use super::latency::Arm;
use super::{Setup, shown};
use crate::output;

/// Requests before memory is looked at: what a run needs is there by then.
const WARM_UP: usize = 3;

/// A pipeline alone on the GPU.
#[derive(Serialize)]
pub(super) struct Memory {
    pub(super) name: String,
    /// Processes that use the GPU.
    pub(super) processes: usize,
    /// All that it takes.
    pub(super) used_bytes: Option<u64>,
    pub(super) blocks: Vec<BlockMemory>,
    /// What is neither weights nor buffers between blocks: contexts, and what the engine needs.
    pub(super) rest_bytes: Option<i64>,
    pub(super) rest_per_process_bytes: Option<f64>,
}

/// What is known of a block.
#[derive(Serialize)]
pub(super) struct BlockMemory {
    pub(super) weight_bytes: Option<u64>,
    /// Buffers for what it hands over.
    pub(super) pool_bytes: Option<u64>,
}

/// Takes a pipeline that was just started, and what was in use before.
pub(super) fn measure(setup: &Setup, arm: &Arm, before: Option<u64>) -> Result<Memory> {
    let input = arm.pipeline.input(&setup.input(1)?)?;
    for _ in 0..WARM_UP {
        arm.pipeline.ask(&input)?;
    }
    let after = setup.meter.settled_bytes();
    let is_gpu = setup.options.device != Device::Cpu;
    let blocks: Vec<BlockMemory> = arm
        .pipeline
        .gpu_use()?
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
    Ok(Memory {
        name: arm.name.to_owned(),
        processes,
        used_bytes,
        blocks,
        rest_bytes,
        rest_per_process_bytes: rest_bytes.map(|rest| rest as f64 / processes as f64),
    })
}

pub(super) fn table(all: &[Memory]) -> output::Table {
    let mut table = output::Table::new(&["how", "what", ">weights", ">buffers", ">rest", ">all"]);
    let bytes = |bytes: Option<u64>| shown(bytes, output::bytes);
    let dash = || "–".to_owned();
    for memory in all {
        for (number, block) in memory.blocks.iter().enumerate() {
            let known = [bytes(block.weight_bytes), bytes(block.pool_bytes)];
            let rest = match memory.processes > 1 {
                true => shown(memory.rest_per_process_bytes, megabytes),
                false => dash(),
            };
            let [weights, pools] = known;
            let what = format!("block {number}");
            table.row([memory.name.clone(), what, weights, pools, rest, dash()]);
        }
        let sum = |of: fn(&BlockMemory) -> Option<u64>| -> Option<u64> {
            memory.blocks.iter().map(of).sum()
        };
        table.row([
            memory.name.clone(),
            match memory.processes {
                1 => "all, in one process".to_owned(),
                count => format!("all, in {count} processes"),
            },
            bytes(sum(|block| block.weight_bytes)),
            bytes(sum(|block| block.pool_bytes)),
            shown(memory.rest_bytes, |rest| megabytes(rest as f64)),
            bytes(memory.used_bytes),
        ]);
    }
    table
}

/// A size that may be below zero, where something else gave memory back meanwhile.
fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}
