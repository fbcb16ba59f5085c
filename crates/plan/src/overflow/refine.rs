//! Local search on a schedule, by what it costs on the executor.
//!
//! Only what delays the end is worth changing: a block of the critical path goes to the other device,
//! alone or with the neighbours that it hands over to, or gets another turn.

use tessera_core::Random;

use super::executor::Line;
use super::graph::{Graph, NONE};
use super::list::Schedule;
use crate::Limit;

/// Most blocks that are run again, over all that is tried: a few milliseconds' worth.
fn block_steps() -> usize {
    std::env::var("STEPS").map_or(300_000, |v| v.parse().unwrap())
}
/// Most that is tried.
fn tries() -> usize {
    std::env::var("TRIES").map_or(3_000, |v| v.parse().unwrap())
}
/// How much worse than the best the search may go at first.
fn slack0() -> f64 {
    std::env::var("SLACK").map_or(0.05, |v| v.parse().unwrap())
}

pub(super) fn refine(
    graph: &Graph,
    schedule: Schedule,
    limit: &Limit<'_>,
    share: usize,
) -> Schedule {
    let mut search = Search::new(graph, schedule);
    let mut random = Random::new(1);
    let mut best = search.schedule.clone();
    let mut best_us = search.makespan_us;
    let mut left = block_steps() / share;
    let most = (tries() / share).min(left / graph.len().max(1)).max(1);
    for number in 0..most {
        if left < graph.len() || (number % 64 == 0 && limit.reached()) {
            break;
        }
        let slack = slack0() * (1.0 - number as f64 / most as f64).powi(2);
        search.step(&mut random, best_us * (1.0 + slack), &mut left);
        if search.makespan_us < best_us {
            best_us = search.makespan_us;
            best = search.schedule.clone();
        }
    }
    best
}

struct Search<'a> {
    graph: &'a Graph,
    schedule: Schedule,
    /// Per block, where it is in the order.
    at: Vec<u32>,
    ends: Vec<f64>,
    /// The devices before each place of the order.
    lines: Vec<Line<'a>>,
    makespan_us: f64,
    /// What delays the end, last first.
    critical: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, schedule: Schedule) -> Self {
        let count = graph.len();
        let mut search = Self {
            graph,
            schedule,
            at: vec![0; count],
            ends: vec![0.0; count],
            lines: vec![Line::new(graph); count + 1],
            makespan_us: 0.0,
            critical: Vec::new(),
        };
        search.run(0, f64::INFINITY);
        search.makespan_us = search.lines[count].makespan_us;
        search.trace();
        search
    }

    /// Runs the order from a place on, while it may still cost at most `most`; returns how far it came.
    fn run(&mut self, from: usize, most: f64) -> usize {
        let mut line = self.lines[from];
        for place in from..self.schedule.order.len() {
            let block = self.schedule.order[place];
            self.at[block as usize] = place as u32;
            line.add(&self.schedule.devices, &mut self.ends, block);
            self.lines[place + 1] = line;
            if line.makespan_us > most {
                return place + 1;
            }
        }
        self.schedule.order.len()
    }

    /// Finds what delays the end.
    fn trace(&mut self) {
        let graph = self.graph;
        self.critical.clear();
        let devices = &self.schedule.devices;
        let end = |block: u32| {
            self.ends[block as usize]
                + graph.outputs[block as usize][devices[block as usize] as usize]
        };
        let mut at =
            *self.schedule.order.iter().max_by(|a, b| end(**a).total_cmp(&end(**b))).unwrap();
        loop {
            self.critical.push(at);
            let device = devices[at as usize];
            let place = self.at[at as usize] as usize;
            let line = &self.lines[place];
            let mut cause = (graph.inputs[at as usize][device as usize], NONE);
            if line.last[device as usize] != NONE && line.free[device as usize] >= cause.0 {
                cause = (line.free[device as usize], line.last[device as usize]);
            }
            for link in graph.predecessors(at as usize) {
                let copy = if devices[link.block as usize] == device {
                    0.0
                } else {
                    link.copy_us[device as usize]
                };
                let arrival = self.ends[link.block as usize] + copy;
                if arrival >= cause.0 {
                    cause = (arrival, link.block);
                }
            }
            if cause.1 == NONE {
                break;
            }
            at = cause.1;
        }
    }

    fn step(&mut self, random: &mut Random, most: f64, left: &mut usize) {
        let graph = self.graph;
        let count = graph.len();
        let pick = random.below(self.critical.len() as u64) as usize;
        let block = self.critical[pick];
        let kind = random.below(8);
        let mut flipped: Vec<u32> = Vec::new();
        let mut moved: Option<(usize, usize)> = None;
        if kind < 5 {
            // flip, maybe with neighbours
            let device = self.schedule.devices[block as usize];
            if graph.has_choice(block as usize) {
                flipped.push(block);
            }
            if kind >= 2 {
                let size = 1 + random.below(4) as usize;
                let mut at = block;
                for _ in 0..size {
                    let p = graph.predecessors(at as usize);
                    let s = graph.successors(at as usize);
                    let k = random.below((p.len() + s.len()).max(1) as u64) as usize;
                    let Some(l) = p.get(k).or_else(|| s.get(k - p.len().min(k))) else { break };
                    if self.schedule.devices[l.block as usize] == device
                        && graph.has_choice(l.block as usize)
                        && !flipped.contains(&l.block)
                    {
                        flipped.push(l.block);
                    }
                    at = l.block;
                }
            }
            if flipped.is_empty() {
                return;
            }
        }
        if kind >= 4 {
            let place = self.at[block as usize] as usize;
            let low = graph
                .predecessors(block as usize)
                .iter()
                .map(|l| self.at[l.block as usize] as usize + 1)
                .max()
                .unwrap_or(0);
            let high = graph
                .successors(block as usize)
                .iter()
                .map(|l| self.at[l.block as usize] as usize)
                .min()
                .unwrap_or(count);
            let to = low + random.below((high - low) as u64) as usize;
            if to == place && flipped.is_empty() {
                return;
            }
            if to != place {
                moved = Some((place, to));
            }
        }
        let mut from = flipped.iter().map(|b| self.at[*b as usize] as usize).min().unwrap_or(count);
        for &b in &flipped {
            let d = &mut self.schedule.devices[b as usize];
            *d = d.other();
        }
        if let Some((a, b)) = moved {
            from = from.min(a.min(b));
            shift(&mut self.schedule.order, a, b);
        }
        let to = self.run(from, most);
        *left = left.saturating_sub(to - from);
        if to == count && self.lines[count].makespan_us <= most {
            self.makespan_us = self.lines[count].makespan_us;
            self.trace();
            return;
        }
        for &b in &flipped {
            let d = &mut self.schedule.devices[b as usize];
            *d = d.other();
        }
        if let Some((a, b)) = moved {
            shift(&mut self.schedule.order, b, a);
        }
        self.run(from, f64::INFINITY);
        *left = left.saturating_sub(count - from);
    }
}

/// Moves what is at `from` to `to`.
fn shift(order: &mut [u32], from: usize, to: usize) {
    match from < to {
        true => order[from..=to].rotate_left(1),
        false => order[to..=from].rotate_right(1),
    }
}
