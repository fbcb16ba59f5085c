//! List scheduling: blocks by how much comes after them, each where it is through first.
//!
//! This is what HEFT and PEFT do, for two devices. It looks at what the paper's rule leaves out:
//! that a device is busy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::executor::DeviceTimelines;
use super::graph::{EdgeEnd, NO_BLOCK, OverflowGraph};
use super::problem::OverflowDevice;

/// Where blocks run, and the order in which the devices take them.
#[derive(Clone)]
pub(super) struct OverflowSchedule {
    pub(super) devices: Vec<OverflowDevice>,
    pub(super) order: Vec<u32>,
}

impl OverflowSchedule {
    /// What it costs on the executor.
    pub(super) fn makespan(&self, graph: &OverflowGraph, ends: &mut [f64]) -> f64 {
        let mut line = DeviceTimelines::new(graph);
        for &block in &self.order {
            line.run_next(&self.devices, ends, block);
        }
        line.makespan_us
    }
}

/// How urgent blocks are: with what devices the work after them is counted.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum RankMode {
    /// The mean of both devices, also for copies.
    Mean,
    /// The best choice.
    Best,
}

/// Per block, the work from its start to the end of the run.
pub(super) fn upward_ranks(graph: &OverflowGraph, tails: &[[f64; 2]], rank: RankMode) -> Vec<f64> {
    let mut ranks = vec![0.0f64; graph.len()];
    for &block in graph.order.iter().rev() {
        let number = block as usize;
        let [cpu, gpu] = graph.times[number];
        ranks[number] = match rank {
            RankMode::Best => (cpu + tails[number][0]).min(gpu + tails[number][1]),
            RankMode::Mean => {
                let own = match (cpu.is_finite(), gpu.is_finite()) {
                    (true, true) => (cpu + gpu) / 2.0,
                    (true, false) => cpu,
                    _ => gpu,
                };
                let after = |link: &EdgeEnd| {
                    // Half of the pairs of devices need a copy.
                    ranks[link.block as usize] + (link.copy_us[0] + link.copy_us[1]) / 4.0
                };
                own + graph.successors(number).iter().map(after).fold(0.0, f64::max)
            }
        };
    }
    ranks
}

/// When a device is idle: gaps by time, of which the last one has no end.
struct IdleGaps(Vec<(f64, f64)>);

impl IdleGaps {
    /// The first gap from `ready` on that has room for `work`, by number, and when it would begin.
    fn find_gap(&self, ready: f64, work: f64) -> (usize, f64) {
        let mut at = self.0.partition_point(|&(_, end)| end < ready + work);
        loop {
            let (start, end) = self.0[at];
            let begin = start.max(ready);
            if begin + work <= end {
                return (at, begin);
            }
            at += 1;
        }
    }

    /// Uses a part of a gap.
    fn fill_gap(&mut self, at: usize, begin: f64, end: f64) {
        let (start, stop) = self.0[at];
        match (begin > start, end < stop) {
            (true, true) => {
                self.0[at].1 = begin;
                self.0.insert(at + 1, (end, stop));
            }
            (true, false) => self.0[at].1 = begin,
            (false, true) => self.0[at].0 = end,
            (false, false) => {
                self.0.remove(at);
            }
        }
    }
}

/// Takes blocks by rank, and puts each where it ends first; with `lookahead`, where what comes
/// after it would end first too. Blocks of which `fixed` says where they are stay there.
pub(super) fn list_schedule(
    graph: &OverflowGraph,
    ranks: &[f64],
    lookahead: Option<&[[f64; 2]]>,
    fixed: Option<&[OverflowDevice]>,
) -> OverflowSchedule {
    let mut missing: Vec<usize> =
        (0..graph.len()).map(|block| graph.predecessors(block).len()).collect();
    let key = |block: u32| (ranks[block as usize].to_bits(), Reverse(graph.places[block as usize]));
    let sources = graph.order.iter().filter(|&&block| missing[block as usize] == 0);
    let mut ready: BinaryHeap<(u64, Reverse<u32>)> = sources.map(|&block| key(block)).collect();
    let mut devices = vec![OverflowDevice::Gpu; graph.len()];
    let mut starts = vec![0.0; graph.len()];
    let mut ends = vec![0.0f64; graph.len()];
    let mut idle = [IdleGaps(vec![(0.0, f64::INFINITY)]), IdleGaps(vec![(0.0, f64::INFINITY)])];
    let mut taken = Vec::with_capacity(graph.len());
    while let Some((_, Reverse(place))) = ready.pop() {
        let block = graph.order[place as usize];
        let number = block as usize;
        let mut best = (f64::INFINITY, OverflowDevice::Gpu, 0, 0.0, 0.0);
        for device in OverflowDevice::ALL {
            let on = device as usize;
            if fixed.map_or(!graph.can_run(number, device), |fixed| fixed[number] != device) {
                continue;
            }
            let mut ready = graph.inputs[number][on];
            for link in graph.predecessors(number) {
                let from = link.block as usize;
                let copy = if devices[from] == device { 0.0 } else { link.copy_us[on] };
                ready = ready.max(ends[from] + copy);
            }
            let before = graph.chained_to[number];
            let is_chained = before != NO_BLOCK && devices[before as usize] == device;
            let dispatch = if is_chained { 0.0 } else { graph.dispatch_us };
            let work = dispatch + graph.times[number][on];
            let (gap, begin) = idle[on].find_gap(ready, work);
            let cost = begin + work + lookahead.map_or(0.0, |tails| tails[number][on]);
            // Of two that are as good, the GPU.
            if cost <= best.0 {
                best = (cost, device, gap, begin, begin + work);
            }
        }
        let (_, device, gap, begin, end) = best;
        idle[device as usize].fill_gap(gap, begin, end);
        devices[number] = device;
        starts[number] = begin;
        ends[number] = end;
        taken.push(block);
        for link in graph.successors(number) {
            missing[link.block as usize] -= 1;
            if missing[link.block as usize] == 0 {
                ready.push(key(link.block));
            }
        }
    }
    taken.sort_by(|a, b| starts[*a as usize].total_cmp(&starts[*b as usize]));
    OverflowSchedule { devices, order: taken }
}
