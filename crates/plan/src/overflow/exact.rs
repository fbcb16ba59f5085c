//! The optimum over placements and orders, for small graphs.
//!
//! The paper states it as a mixed integer programme; this searches instead. A partial plan is grown
//! by one block on one device at a time. Of two partial plans of the same blocks, one that is in no
//! way later than the other is all that is needed; and what can't beat the best plan so far is
//! dropped. Partial plans of the same size are grown together, so that each is compared with all
//! that count.
//!
//! The optimum is that of the concurrent executor, over all placements and all orders. Where
//! dispatch costs so much that today's sequential plan, which pays none, beats them all, that one
//! is returned.

use std::collections::HashMap;

use tessera_core::{Error, Result};

use super::communication::CommunicationSlowdown;
use super::graph::{EdgeEnd, NO_BLOCK, OverflowGraph};
use super::paths::{hand_over_time, tail_bounds};
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, Strategy};

/// Most blocks.
const MOST_BLOCKS: usize = 24;

/// Most partial plans of one size. Where there are more, those that promise least are dropped, and
/// the plan is no longer proved; what was dropped counts in the bound.
const MOST_PARTIAL_PLANS: usize = 60_000;

/// How much better a plan must be to count.
const TOLERANCE: f64 = 1e-9;

/// The optimum, or the best plan so far with a bound where it takes too long.
pub(super) struct ExactOverflow;

impl Strategy for ExactOverflow {
    fn name(&self) -> &str {
        "exact"
    }

    fn one_line_summary(&self) -> &str {
        "the optimum over placements and orders, with proof; at most 24 blocks"
    }
}

impl Planner for ExactOverflow {
    type Problem = OverflowProblem;
    type Plan = OverflowPlan;
    type Solution = OverflowSolution;

    fn find_plan(
        &self,
        problem: &OverflowProblem,
        previous: Option<&OverflowPlan>,
        limit: &SearchLimit<'_>,
    ) -> Result<OverflowSolution> {
        let graph = OverflowGraph::new(problem)?;
        if graph.len() > MOST_BLOCKS {
            let count = graph.len();
            let message = format!("exact: {count} blocks, expected at most {MOST_BLOCKS}");
            return Err(Error::usage(message));
        }
        let start = CommunicationSlowdown.find_plan(problem, None, limit)?;
        let mut search = PartialPlanSearch::new(&graph, start.makespan_us);
        let (bound, is_through) = search.search_levels(limit);
        let plan = match search.best_plan.take() {
            Some(steps) => {
                let mut devices = vec![OverflowDevice::Gpu; graph.len()];
                for &(block, device) in &steps {
                    devices[block as usize] = device;
                }
                let order: Vec<u32> = steps.iter().map(|&(block, _)| block).collect();
                OverflowPlan::in_order(devices, &order)
            }
            None => start.plan,
        };
        let mut planned = OverflowSolution::new(problem, &graph, plan, previous);
        planned.bound_us = Some(bound.min(planned.makespan_us));
        planned.proved = is_through;
        Ok(planned)
    }
}

/// Blocks and devices in the order in which they were planned.
type PlannedSteps = Vec<(u32, OverflowDevice)>;

/// A partial plan.
struct PartialPlan {
    /// Its last step: where it is in the list of all steps.
    step: u32,
    /// The blocks that it has.
    done: u32,
    /// When each device is free.
    free: [f64; 2],
    /// The last block of each device, where the next of its chain may follow.
    open: [u32; 2],
    /// When what it has is through.
    through: f64,
    /// What no plan that it grows into is better than.
    bound: f64,
    /// Whether another one makes it superfluous.
    is_dominated: bool,
}

/// A block that was added to a partial plan.
struct PartialPlanStep {
    before: u32,
    block: u32,
    device: OverflowDevice,
}

/// Partial plans of one size. Per plan and block, when all inputs that are made are on each device
/// is in one list.
#[derive(Default)]
struct PartialPlanLevel {
    states: Vec<PartialPlan>,
    ready: Vec<[f64; 2]>,
    known: HashMap<(u32, [u32; 2]), Vec<u32>>,
}

struct PartialPlanSearch<'a> {
    graph: &'a OverflowGraph,
    tails: Vec<[f64; 2]>,
    /// Per block and device, how long it keeps the device busy at least.
    work: Vec<[f64; 2]>,
    /// The blocks, those first that gain most from the CPU.
    by_gain: Vec<usize>,
    steps: Vec<PartialPlanStep>,
    best_us: f64,
    best_plan: Option<PlannedSteps>,
    /// What no plan that was dropped for lack of room is better than.
    dropped: f64,
    /// Earliest ends, while a bound is found.
    ends: Vec<[f64; 2]>,
}

impl<'a> PartialPlanSearch<'a> {
    fn new(graph: &'a OverflowGraph, best_us: f64) -> Self {
        let work = |block: usize| {
            let is_chained = graph.chained_to[block] != NO_BLOCK;
            let dispatch = if is_chained { 0.0 } else { graph.dispatch_us };
            graph.times[block].map(|time| time + dispatch)
        };
        let work: Vec<[f64; 2]> = (0..graph.len()).map(work).collect();
        let mut by_gain: Vec<usize> = (0..graph.len()).collect();
        let ratio = |&block: &usize| match work[block] {
            [cpu, gpu] if cpu.is_finite() && gpu > 0.0 => cpu / gpu,
            _ => f64::INFINITY,
        };
        by_gain.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        Self {
            graph,
            tails: tail_bounds(graph),
            work,
            by_gain,
            steps: Vec::new(),
            best_us,
            best_plan: None,
            dropped: f64::INFINITY,
            ends: vec![[0.0; 2]; graph.len()],
        }
    }

    /// Searches, and returns what no plan is better than, and whether that is proved to be reached.
    fn search_levels(&mut self, limit: &SearchLimit<'_>) -> (f64, bool) {
        let mut level = PartialPlanLevel::default();
        let mut root = PartialPlan {
            step: NO_BLOCK,
            done: 0,
            free: [0.0; 2],
            open: [NO_BLOCK; 2],
            through: 0.0,
            bound: 0.0,
            is_dominated: false,
        };
        root.bound = self.lower_bound(&root, &self.graph.inputs);
        level.states.push(root);
        level.ready.extend_from_slice(&self.graph.inputs);
        let mut asked = 0u32;
        for size in 1..=self.graph.len() {
            let mut next = PartialPlanLevel::default();
            let mut sorted: Vec<usize> =
                (0..level.states.len()).filter(|&at| !level.states[at].is_dominated).collect();
            sorted.sort_by(|&a, &b| level.states[a].bound.total_cmp(&level.states[b].bound));
            for (rank, &at) in sorted.iter().enumerate() {
                let is_time = asked.is_multiple_of(256) && limit.is_reached();
                asked = asked.wrapping_add(1);
                if is_time {
                    let here = sorted[rank..].iter().map(|&at| level.states[at].bound);
                    let there = next.states.iter().map(|state| state.bound);
                    let open = here.chain(there).fold(self.dropped, f64::min);
                    return (open.min(self.best_us), false);
                }
                if self.can_improve(level.states[at].bound) {
                    self.grow_plan(&level, at, &mut next, size == self.graph.len());
                }
            }
            level = next;
        }
        let bound = self.dropped.min(self.best_us);
        (bound, !self.can_improve(bound))
    }

    fn can_improve(&self, bound: f64) -> bool {
        bound < self.best_us * (1.0 - TOLERANCE)
    }

    /// Adds all that `state` can grow into by one block.
    fn grow_plan(
        &mut self,
        level: &PartialPlanLevel,
        at: usize,
        next: &mut PartialPlanLevel,
        is_last: bool,
    ) {
        let graph = self.graph;
        let state = &level.states[at];
        let ready = &level.ready[at * graph.len()..(at + 1) * graph.len()];
        for block in 0..graph.len() {
            let is_made = |made: u32| state.done >> made & 1 == 1;
            if is_made(block as u32)
                || !graph.predecessors(block).iter().all(|link| is_made(link.block))
            {
                continue;
            }
            for device in
                OverflowDevice::ALL.into_iter().filter(|&device| graph.can_run(block, device))
            {
                let on = device as usize;
                let is_chained = graph.chained_to[block] != NO_BLOCK
                    && graph.chained_to[block] == state.open[on];
                let dispatch = if is_chained { 0.0 } else { graph.dispatch_us };
                let end = ready[block][on].max(state.free[on]) + dispatch + graph.times[block][on];
                let mut child = PartialPlan { done: state.done | 1 << block, ..*state };
                child.free[on] = end;
                child.through = state.through.max(end + graph.outputs[block][on]);
                let may_follow = graph.dispatch_us > 0.0 && graph.chained_by[block] != NO_BLOCK;
                child.open[on] = if may_follow { block as u32 } else { NO_BLOCK };
                let step = PartialPlanStep { before: state.step, block: block as u32, device };
                if is_last {
                    if self.can_improve(child.through) {
                        self.best_us = child.through;
                        self.best_plan = Some(self.steps_to(&step));
                    }
                    continue;
                }
                let from = next.ready.len();
                next.ready.extend_from_slice(ready);
                for link in graph.successors(block) {
                    for to in OverflowDevice::ALL {
                        let copy = if to == device { 0.0 } else { link.copy_us[to as usize] };
                        let known = &mut next.ready[from + link.block as usize][to as usize];
                        *known = known.max(end + copy);
                    }
                }
                // No block begins before its device is free.
                for known in &mut next.ready[from..] {
                    *known = [known[0].max(child.free[0]), known[1].max(child.free[1])];
                }
                // What is done is never asked again, and must not tell two plans apart.
                next.ready[from + block] = [0.0; 2];
                child.bound = self.lower_bound(&child, &next.ready[from..]);
                if self.can_improve(child.bound) {
                    if next.states.len() == MOST_PARTIAL_PLANS {
                        self.dropped = self.dropped.min(child.bound);
                    } else if next.is_needed(&child, graph.len()) {
                        child.step = self.steps.len() as u32;
                        self.steps.push(step);
                        next.add_plan(child);
                        continue;
                    }
                }
                next.ready.truncate(from);
            }
        }
    }

    fn steps_to(&self, last: &PartialPlanStep) -> PlannedSteps {
        let mut found = vec![(last.block, last.device)];
        let mut at = last.before;
        while let Some(step) = self.steps.get(at as usize) {
            found.push((step.block, step.device));
            at = step.before;
        }
        found.reverse();
        found
    }

    /// What no plan that `state` grows into is better than.
    fn lower_bound(&mut self, state: &PartialPlan, ready: &[[f64; 2]]) -> f64 {
        let graph = self.graph;
        let is_made = |made: u32| state.done >> made & 1 == 1;
        let mut bound = state.through;
        // When the first block could begin on each device.
        let mut first = [f64::INFINITY; 2];
        for &block in graph.order.iter().filter(|&&block| !is_made(block)) {
            let number = block as usize;
            let before = graph.chained_to[number];
            let mut best = f64::INFINITY;
            for device in OverflowDevice::ALL {
                let on = device as usize;
                let may_follow =
                    before != NO_BLOCK && (!is_made(before) || before == state.open[on]);
                let dispatch = if may_follow { 0.0 } else { graph.dispatch_us };
                let mut begin = ready[number][on].max(state.free[on]) + dispatch;
                for link in graph.predecessors(number).iter().filter(|link| !is_made(link.block)) {
                    let [cpu, gpu] = OverflowDevice::ALL.map(|from| {
                        let back = EdgeEnd { block, ..*link };
                        self.ends[link.block as usize][from as usize]
                            + hand_over_time(graph, link.block, from, &back, device)
                    });
                    begin = begin.max(cpu.min(gpu));
                }
                if graph.can_run(number, device) {
                    first[on] = first[on].min(begin - dispatch);
                }
                let end = begin + graph.times[number][on];
                self.ends[number][on] = end;
                best = best.min(end + self.tails[number][on]);
            }
            bound = bound.max(best);
        }
        bound.max(self.workload_bound(state, first))
    }

    /// When both devices are through at the earliest if what is left could be shared out as one
    /// likes. When a device could begin counts only where something is left for it.
    fn workload_bound(&self, state: &PartialPlan, first: [f64; 2]) -> f64 {
        let left = |block: &&usize| state.done >> **block & 1 == 0;
        let [mut cpu, mut gpu] = first;
        let [mut on_cpu, mut on_gpu] = [0usize; 2];
        // All on the GPU that can run there.
        for &block in self.by_gain.iter().filter(left) {
            match self.work[block] {
                [work, other] if other.is_infinite() => {
                    cpu += work;
                    on_cpu += 1;
                }
                [_, work] => {
                    gpu += work;
                    on_gpu += 1;
                }
            }
        }
        // Then to the CPU what gains most, as long as that is through earlier.
        for &block in self.by_gain.iter().filter(left) {
            let [cpu_work, gpu_work] = self.work[block];
            if gpu_work.is_infinite() {
                continue;
            }
            if cpu_work.is_infinite() || cpu >= gpu {
                break;
            }
            if cpu + cpu_work >= gpu - gpu_work {
                // A share of this one levels them.
                let share = (gpu - cpu) / (cpu_work + gpu_work);
                return if share.is_finite() { cpu + share * cpu_work } else { cpu };
            }
            cpu += cpu_work;
            gpu -= gpu_work;
            on_cpu += 1;
            on_gpu -= 1;
        }
        let of = |count: usize, time: f64| if count > 0 { time } else { 0.0 };
        of(on_cpu, cpu).max(of(on_gpu, gpu))
    }
}

impl PartialPlanLevel {
    /// Whether no known partial plan makes this one superfluous, whose times are the last of the
    /// list. Those that it makes superfluous are marked.
    fn is_needed(&mut self, state: &PartialPlan, blocks: usize) -> bool {
        let Some(known) = self.known.get_mut(&(state.done, state.open)) else { return true };
        let from = self.ready.len() - blocks;
        let own = &self.ready[from..];
        let no_later =
            |a: &PartialPlan, ready_a: &[[f64; 2]], b: &PartialPlan, ready_b: &[[f64; 2]]| {
                let pairs = ready_a.as_flattened().iter().zip(ready_b.as_flattened());
                a.free[0] <= b.free[0]
                    && a.free[1] <= b.free[1]
                    && a.through <= b.through
                    && pairs.into_iter().all(|(a, b)| a <= b)
            };
        for &at in known.iter() {
            let other = &self.states[at as usize];
            let ready = &self.ready[at as usize * blocks..(at as usize + 1) * blocks];
            if no_later(other, ready, state, own) {
                return false;
            }
        }
        let states = &mut self.states;
        let ready = &self.ready;
        known.retain(|&at| {
            let other = &mut states[at as usize];
            let theirs = &ready[at as usize * blocks..(at as usize + 1) * blocks];
            other.is_dominated = no_later(state, own, other, theirs);
            !other.is_dominated
        });
        true
    }

    fn add_plan(&mut self, state: PartialPlan) {
        let at = self.states.len() as u32;
        self.known.entry((state.done, state.open)).or_default().push(at);
        self.states.push(state);
    }
}

/// Plans that `communication` finds hide what the search gets wrong: here it has none to start
/// from, or one that is hardly worse than the optimum, which an unsound bound would keep.
#[cfg(test)]
mod tests {
    use super::super::executor::DeviceTimelines;
    use super::super::random_overflow_problem;
    use super::*;

    /// The best of all placements in all orders, by trying.
    fn try_all(
        graph: &OverflowGraph,
        line: DeviceTimelines<'_>,
        devices: &mut [OverflowDevice],
        ends: &mut [f64],
        done: u32,
    ) -> f64 {
        if done.count_ones() as usize == graph.len() {
            return line.makespan_us;
        }
        let mut best = f64::INFINITY;
        for block in 0..graph.len() {
            let is_made = |made: u32| done >> made & 1 == 1;
            let inputs = graph.predecessors(block);
            if is_made(block as u32) || !inputs.iter().all(|link| is_made(link.block)) {
                continue;
            }
            for device in
                OverflowDevice::ALL.into_iter().filter(|&device| graph.can_run(block, device))
            {
                let mut next = line;
                devices[block] = device;
                next.run_next(devices, ends, block as u32);
                best = best.min(try_all(graph, next, devices, ends, done | 1 << block));
            }
        }
        best
    }

    fn search(graph: &OverflowGraph, start_us: f64) -> f64 {
        let mut search = PartialPlanSearch::new(graph, start_us);
        let (bound, is_through) = search.search_levels(&SearchLimit::none());
        assert!(is_through && bound <= search.best_us);
        search.best_us
    }

    /// Small graphs, with copies and dispatch from free to dear.
    fn graphs() -> impl Iterator<Item = OverflowGraph> {
        (0..240u64).map(|seed| {
            let mut problem = random_overflow_problem(2 + seed as usize % 5, seed);
            problem.dispatch_us = [0.0, 1.0, 20.0][seed as usize / 5 % 3];
            let slower = [1.0, 20.0, 200.0][seed as usize / 15 % 3];
            problem.rates.gpu_to_cpu_bytes_per_second /= slower;
            for block in &mut problem.blocks {
                block.output_bytes += 2e4;
            }
            OverflowGraph::new(&problem).unwrap()
        })
    }

    fn optimum(graph: &OverflowGraph) -> f64 {
        let (mut devices, mut ends) =
            (vec![OverflowDevice::Gpu; graph.len()], vec![0.0; graph.len()]);
        try_all(graph, DeviceTimelines::new(graph), &mut devices, &mut ends, 0)
    }

    #[test]
    fn without_a_start_the_search_finds_what_trying_everything_finds() {
        for (number, graph) in graphs().enumerate() {
            let (found, best) = (search(&graph, f64::INFINITY), optimum(&graph));
            assert!((found - best).abs() <= 1e-9 * best, "{number}: {found}, best {best}");
        }
    }

    #[test]
    fn no_bound_hides_the_optimum() {
        for (number, graph) in graphs().enumerate() {
            let best = optimum(&graph);
            let found = search(&graph, best * (1.0 + 1e-6));
            assert!((found - best).abs() <= 1e-9 * best, "{number}: {found}, best {best}");
        }
    }
}
