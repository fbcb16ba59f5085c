//! The optimum over placements and orders, for small graphs.
//!
//! The paper states it as a mixed integer programme; this searches instead. A partial plan is grown by
//! one block on one device at a time. Of two partial plans of the same blocks, one that is in no way
//! later than the other is all that is needed; and what can't beat the best plan so far is dropped.
//! Partial plans of the same size are grown together, so that each is compared with all that count.

use std::collections::HashMap;

use tessera_core::{Error, Result};

use super::Strategy;
use super::communication::Communication;
use super::graph::{Graph, Link, NONE};
use super::paths::{hand_over, tails};
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use crate::Limit;

/// Most blocks.
const MOST: usize = 24;

/// Most partial plans of one size. Where there are more, those that promise least are dropped, and the
/// plan is no longer proved; what was dropped counts in the bound.
const WIDEST: usize = 60_000;

/// How much better a plan must be to count.
const TOLERANCE: f64 = 1e-9;

/// The optimum, or the best plan so far with a bound where it takes too long.
pub(super) struct Exact;

impl Strategy for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn about(&self) -> &'static str {
        "the optimum over placements and orders, with proof; at most 24 blocks"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned> {
        let graph = Graph::new(problem)?;
        if graph.len() > MOST {
            let count = graph.len();
            let message = format!("exact: {count} blocks, expected at most {MOST}");
            return Err(Error::usage(message));
        }
        let start = Communication.plan(problem, None, limit)?;
        let mut search = Search::new(&graph, start.makespan_us);
        let (bound, is_through) = search.run(limit);
        let plan = match search.best_plan.take() {
            Some(steps) => {
                let mut devices = vec![Device::Gpu; graph.len()];
                for &(block, device) in &steps {
                    devices[block as usize] = device;
                }
                let order: Vec<u32> = steps.iter().map(|&(block, _)| block).collect();
                Plan::in_order(devices, &order)
            }
            None => start.plan,
        };
        let mut planned = Planned::new(problem, &graph, plan, previous);
        planned.bound_us = Some(bound.min(planned.makespan_us));
        planned.proved = is_through;
        Ok(planned)
    }
}

/// Blocks and devices in the order in which they were planned.
type Steps = Vec<(u32, Device)>;

/// A partial plan.
struct State {
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
struct Step {
    before: u32,
    block: u32,
    device: Device,
}

/// Partial plans of one size. Per plan and block, when all inputs that are made are on each device is
/// in one list.
#[derive(Default)]
struct Level {
    states: Vec<State>,
    ready: Vec<[f64; 2]>,
    known: HashMap<(u32, [u32; 2]), Vec<u32>>,
}

struct Search<'a> {
    graph: &'a Graph,
    tails: Vec<[f64; 2]>,
    /// Per block and device, how long it keeps the device busy at least.
    work: Vec<[f64; 2]>,
    /// The blocks, those first that gain most from the CPU.
    by_gain: Vec<usize>,
    steps: Vec<Step>,
    best_us: f64,
    best_plan: Option<Steps>,
    /// What no plan that was dropped for lack of room is better than.
    dropped: f64,
    /// Earliest ends, while a bound is found.
    ends: Vec<[f64; 2]>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, best_us: f64) -> Self {
        let work = |block: usize| {
            let is_chained = graph.chained_to[block] != NONE;
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
            tails: tails(graph),
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
    fn run(&mut self, limit: &Limit<'_>) -> (f64, bool) {
        let mut level = Level::default();
        let mut root = State {
            step: NONE,
            done: 0,
            free: [0.0; 2],
            open: [NONE; 2],
            through: 0.0,
            bound: 0.0,
            is_dominated: false,
        };
        root.bound = self.bound(&root, &self.graph.inputs);
        level.states.push(root);
        level.ready.extend_from_slice(&self.graph.inputs);
        let mut asked = 0u32;
        for size in 1..=self.graph.len() {
            let mut next = Level::default();
            let mut sorted: Vec<usize> =
                (0..level.states.len()).filter(|&at| !level.states[at].is_dominated).collect();
            sorted.sort_by(|&a, &b| level.states[a].bound.total_cmp(&level.states[b].bound));
            for (rank, &at) in sorted.iter().enumerate() {
                asked = asked.wrapping_add(1);
                if asked % 256 == 0 && limit.reached() {
                    let here = sorted[rank..].iter().map(|&at| level.states[at].bound);
                    let there = next.states.iter().map(|state| state.bound);
                    let open = here.chain(there).fold(self.dropped, f64::min);
                    return (open.min(self.best_us), false);
                }
                if self.can_improve(level.states[at].bound) {
                    self.grow(&level, at, &mut next, size == self.graph.len());
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
    fn grow(&mut self, level: &Level, at: usize, next: &mut Level, is_last: bool) {
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
            for device in Device::ALL.into_iter().filter(|&device| graph.can_run(block, device)) {
                let on = device as usize;
                let is_chained =
                    graph.chained_to[block] != NONE && graph.chained_to[block] == state.open[on];
                let dispatch = if is_chained { 0.0 } else { graph.dispatch_us };
                let end = ready[block][on].max(state.free[on]) + dispatch + graph.times[block][on];
                let mut child = State { done: state.done | 1 << block, ..*state };
                child.free[on] = end;
                child.through = state.through.max(end + graph.outputs[block][on]);
                let may_follow = graph.dispatch_us > 0.0 && graph.chained_by[block] != NONE;
                child.open[on] = if may_follow { block as u32 } else { NONE };
                let step = Step { before: state.step, block: block as u32, device };
                if is_last {
                    if self.can_improve(child.through) {
                        self.best_us = child.through;
                        self.best_plan = Some(self.steps_to(&step));
                    }
                    continue;
                }
                let from = next.ready.len();
                next.ready.extend_from_slice(ready);
                // What is done is never asked again, and must not tell two plans apart.
                next.ready[from + block] = [0.0; 2];
                for link in graph.successors(block) {
                    for to in Device::ALL {
                        let copy = if to == device { 0.0 } else { link.copy_us[to as usize] };
                        let known = &mut next.ready[from + link.block as usize][to as usize];
                        *known = known.max(end + copy);
                    }
                }
                // No block begins before its device is free.
                for known in &mut next.ready[from..] {
                    *known = [known[0].max(child.free[0]), known[1].max(child.free[1])];
                }
                next.ready[from + block] = [0.0; 2];
                child.bound = self.bound(&child, &next.ready[from..]);
                if self.can_improve(child.bound) && next.is_needed(&child, graph.len()) {
                    if next.states.len() < WIDEST {
                        child.step = self.steps.len() as u32;
                        self.steps.push(step);
                        next.add(child);
                        continue;
                    }
                    self.dropped = self.dropped.min(child.bound);
                }
                next.ready.truncate(from);
            }
        }
    }

    fn steps_to(&self, last: &Step) -> Steps {
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
    fn bound(&mut self, state: &State, ready: &[[f64; 2]]) -> f64 {
        let graph = self.graph;
        let is_made = |made: u32| state.done >> made & 1 == 1;
        let mut bound = state.through;
        // When the first block could begin on each device.
        let mut first = [f64::INFINITY; 2];
        for &block in graph.order.iter().filter(|&&block| !is_made(block)) {
            let number = block as usize;
            let before = graph.chained_to[number];
            let mut best = f64::INFINITY;
            for device in Device::ALL {
                let on = device as usize;
                let may_follow = before != NONE && (!is_made(before) || before == state.open[on]);
                let dispatch = if may_follow { 0.0 } else { graph.dispatch_us };
                let mut begin = ready[number][on].max(state.free[on]) + dispatch;
                for link in graph.predecessors(number).iter().filter(|link| !is_made(link.block)) {
                    let [cpu, gpu] = Device::ALL.map(|from| {
                        let back = Link { block, ..*link };
                        self.ends[link.block as usize][from as usize]
                            + hand_over(graph, link.block, from, &back, device)
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
        bound.max(self.load(state, first))
    }

    /// When both devices are through at the earliest if what is left could be shared out as one likes.
    fn load(&self, state: &State, first: [f64; 2]) -> f64 {
        let left = |block: &&usize| state.done >> **block & 1 == 0;
        let [mut cpu, mut gpu] = first;
        for &block in self.by_gain.iter().filter(left) {
            match self.work[block] {
                [work, other] if other.is_infinite() => cpu += work,
                [_, work] => gpu += work,
            }
        }
        // Nothing is left for a device that has none that it could begin with.
        if cpu.is_infinite() || gpu.is_infinite() {
            return [cpu, gpu].into_iter().filter(|time| time.is_finite()).fold(0.0, f64::max);
        }
        for &block in self.by_gain.iter().filter(left) {
            let [on_cpu, on_gpu] = self.work[block];
            if on_gpu.is_infinite() {
                continue;
            }
            if on_cpu.is_infinite() || cpu >= gpu {
                break;
            }
            if cpu + on_cpu >= gpu - on_gpu {
                // A share of this one levels them.
                let share = (gpu - cpu) / (on_cpu + on_gpu);
                return if share.is_finite() { cpu + share * on_cpu } else { cpu };
            }
            cpu += on_cpu;
            gpu -= on_gpu;
        }
        cpu.max(gpu)
    }
}

impl Level {
    /// Whether no known partial plan makes this one superfluous, whose times are the last of the list.
    /// Those that it makes superfluous are marked.
    fn is_needed(&mut self, state: &State, blocks: usize) -> bool {
        let Some(known) = self.known.get_mut(&(state.done, state.open)) else { return true };
        let from = self.ready.len() - blocks;
        let own = &self.ready[from..];
        let no_later = |a: &State, ready_a: &[[f64; 2]], b: &State, ready_b: &[[f64; 2]]| {
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

    fn add(&mut self, state: State) {
        let at = self.states.len() as u32;
        self.known.entry((state.done, state.open)).or_default().push(at);
        self.states.push(state);
    }
}
