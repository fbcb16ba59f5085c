//! Local search on schedules, by what they cost on the executor.
//!
//! Only what delays the end is worth changing: a block of the critical path goes to the other
//! device, alone or with some neighbours, or gets another turn. A change that makes things a little
//! worse is kept at first, and less and less so later on: that is how the search leaves a dead end.
//!
//! The search has a budget that is counted in blocks that are run again, so that the same problem
//! gives the same plan on every machine.

use tessera_core::Random;

use super::executor::DeviceTimelines;
use super::graph::{EdgeEnd, NO_BLOCK, OverflowGraph};
use super::list_scheduling::OverflowSchedule;
use super::problem::OverflowDevice;
use crate::SearchLimit;

/// Most changes that are tried, over all starts. Twice as many gain 0.1%.
const MOST_TRIES: usize = 3_000;
/// Most blocks that are run again, over all starts: a few milliseconds' worth.
const MOST_STEPS: usize = 300_000;
/// With fewer tries than this a large graph gains nothing, so that none is made.
const WORTHWHILE: usize = 100;
/// How much worse than the best the search may go at first, where it has all tries.
const SLACK: f64 = 0.05;
/// Most starts. Where a graph is so large that the steps don't suffice for all tries, the best
/// start gets them all.
const MOST_STARTS: usize = 3;

/// Improves the first of `starts`, and returns the best schedule with its makespan. None without
/// starts.
pub(super) fn refine_schedules(
    graph: &OverflowGraph,
    tails: &[[f64; 2]],
    starts: Vec<OverflowSchedule>,
    limit: &SearchLimit<'_>,
) -> Option<(f64, OverflowSchedule)> {
    let enough = MOST_STEPS / graph.len().max(1);
    let most = if enough >= MOST_TRIES { MOST_STARTS } else { 1 };
    let count = starts.len().min(most);
    let tries = if enough < WORTHWHILE { 0 } else { MOST_TRIES / count.max(1) };
    // With few tries, going where it is worse is a waste.
    let slack = SLACK * (enough as f64 / MOST_TRIES as f64).min(1.0).powi(2);
    let mut best: Option<(f64, OverflowSchedule)> = None;
    for start in starts.into_iter().take(count) {
        let mut search = LocalSearch::new(graph, tails, start, MOST_STEPS / count.max(1));
        let found = search.search_changes(tries, slack, limit);
        if best.as_ref().is_none_or(|(makespan_us, _)| found.0 < *makespan_us) {
            best = Some(found);
        }
    }
    best
}

struct LocalSearch<'a> {
    graph: &'a OverflowGraph,
    tails: &'a [[f64; 2]],
    schedule: OverflowSchedule,
    /// Per block, where it is in the order.
    places: Vec<u32>,
    ends: Vec<f64>,
    /// The devices before each place of the order, and after the last one.
    lines: Vec<DeviceTimelines<'a>>,
    makespan_us: f64,
    /// What delays the end, last first.
    critical: Vec<u32>,
    /// How many blocks may still be run again.
    steps: usize,
    random: Random,
}

/// A change of a schedule, which is its own opposite but for the direction of the move.
#[derive(Default)]
struct ScheduleChange {
    /// Blocks that go to the other device.
    flipped: Vec<u32>,
    /// A block that gets another turn: from a place to a place.
    moved: Option<(usize, usize)>,
}

impl<'a> LocalSearch<'a> {
    fn new(
        graph: &'a OverflowGraph,
        tails: &'a [[f64; 2]],
        schedule: OverflowSchedule,
        steps: usize,
    ) -> Self {
        let count = graph.len();
        let mut search = Self {
            graph,
            tails,
            schedule,
            places: vec![0; count],
            ends: vec![0.0; count],
            lines: vec![DeviceTimelines::new(graph); count + 1],
            makespan_us: 0.0,
            critical: Vec::new(),
            steps,
            random: Random::new(1),
        };
        search.execute_part(0, count, f64::INFINITY);
        search.accept_schedule();
        search
    }

    /// Tries changes, and returns the best schedule on the way, with its makespan.
    fn search_changes(
        &mut self,
        tries: usize,
        slack: f64,
        limit: &SearchLimit<'_>,
    ) -> (f64, OverflowSchedule) {
        let mut best = (self.makespan_us, self.schedule.clone());
        let steps = self.steps;
        for number in 0..tries {
            if self.steps == 0 || (number % 64 == 0 && limit.is_reached()) {
                break;
            }
            let left = (1.0 - number as f64 / tries as f64).min(self.steps as f64 / steps as f64);
            self.try_change(best.0 * (1.0 + slack * left.powi(2)));
            if self.makespan_us < best.0 {
                best = (self.makespan_us, self.schedule.clone());
            }
        }
        best
    }

    /// Tries one change, and keeps it if it costs at most `most`.
    fn try_change(&mut self, most: f64) {
        let Some(change) = self.propose_change() else { return };
        let count = self.graph.len();
        let flipped = change.flipped.iter().map(|&block| self.places[block as usize] as usize);
        let moved = change.moved.iter().map(|&(from, to)| from.min(to));
        let from = flipped.chain(moved).min().unwrap_or(count);
        self.apply_change(&change);
        let until = self.execute_part(from, count, most);
        if until == count && self.lines[count].makespan_us <= most {
            self.accept_schedule();
            return;
        }
        let back = ScheduleChange { moved: change.moved.map(|(from, to)| (to, from)), ..change };
        self.apply_change(&back);
        // A block that moved past where the run stopped has its old place again too.
        let far = back.moved.map_or(0, |(from, to)| from.max(to) + 1);
        self.execute_part(from, until.max(far), f64::INFINITY);
    }

    /// Runs a part of the order while the whole may still cost at most `most`; returns where it
    /// stopped.
    fn execute_part(&mut self, from: usize, until: usize, most: f64) -> usize {
        let mut line = self.lines[from];
        for place in from..until {
            let block = self.schedule.order[place];
            let number = block as usize;
            self.places[number] = place as u32;
            line.run_next(&self.schedule.devices, &mut self.ends, block);
            self.lines[place + 1] = line;
            let after = self.tails[number][self.schedule.devices[number] as usize];
            if self.ends[number] + after > most {
                self.steps = self.steps.saturating_sub(place + 1 - from);
                return place + 1;
            }
        }
        self.steps = self.steps.saturating_sub(until - from);
        until
    }

    /// Takes the schedule as it was run, and finds what delays its end: from the last block back to
    /// what each had to wait for.
    fn accept_schedule(&mut self) {
        let graph = self.graph;
        let devices = &self.schedule.devices;
        self.makespan_us = self.lines[graph.len()].makespan_us;
        self.critical.clear();
        let through = |block: &u32| {
            let number = *block as usize;
            self.ends[number] + graph.outputs[number][devices[number] as usize]
        };
        let order = self.schedule.order.iter().copied();
        let mut next = order.max_by(|a, b| through(a).total_cmp(&through(b)));
        while let Some(block) = next {
            self.critical.push(block);
            let (number, device) = (block as usize, devices[block as usize]);
            let line = &self.lines[self.places[number] as usize];
            let mut cause = (graph.inputs[number][device as usize], NO_BLOCK);
            let mut consider = |at: f64, block: u32| {
                if block != NO_BLOCK && at >= cause.0 {
                    cause = (at, block);
                }
            };
            consider(line.free[device as usize], line.last[device as usize]);
            for link in graph.predecessors(number) {
                let from = link.block as usize;
                let copy =
                    if devices[from] == device { 0.0 } else { link.copy_us[device as usize] };
                consider(self.ends[from] + copy, link.block);
            }
            next = (cause.1 != NO_BLOCK).then_some(cause.1);
        }
    }

    /// A change of a block that delays the end; none where what was drawn changes nothing.
    fn propose_change(&mut self) -> Option<ScheduleChange> {
        let drawn = self.random.next_below(self.critical.len().max(1) as u64) as usize;
        let block = *self.critical.get(drawn)?;
        let mut change = ScheduleChange::default();
        // Of eight: two flip it alone, two with neighbours, one with neighbours and another turn,
        // and three give it another turn.
        let kind = self.random.next_below(8);
        if kind < 5 {
            if self.graph.has_choice(block as usize) {
                change.flipped.push(block);
            }
            if kind >= 2 {
                self.add_neighbours(block, &mut change.flipped);
            }
        }
        if kind >= 4 {
            change.moved = self.another_turn(block);
        }
        (!change.flipped.is_empty() || change.moved.is_some()).then_some(change)
    }

    /// Adds what a short random walk from a block meets on the same device.
    fn add_neighbours(&mut self, block: u32, flipped: &mut Vec<u32>) {
        let device = self.schedule.devices[block as usize];
        let mut at = block as usize;
        for _ in 0..1 + self.random.next_below(4) {
            let (inputs, users) = (self.graph.predecessors(at), self.graph.successors(at));
            let drawn = self.random.next_below((inputs.len() + users.len()).max(1) as u64) as usize;
            let Some(&EdgeEnd { block, .. }) = inputs.iter().chain(users).nth(drawn) else {
                return;
            };
            at = block as usize;
            let is_there = self.schedule.devices[at] == device;
            if is_there && self.graph.has_choice(at) && !flipped.contains(&block) {
                flipped.push(block);
            }
        }
    }

    /// Another place for a block, after all that it takes and before all that take from it.
    fn another_turn(&mut self, block: u32) -> Option<(usize, usize)> {
        let place = |link: &EdgeEnd| self.places[link.block as usize] as usize;
        let inputs = self.graph.predecessors(block as usize).iter().map(place);
        let users = self.graph.successors(block as usize).iter().map(place);
        let low = inputs.max().map_or(0, |last| last + 1);
        let high = users.min().unwrap_or(self.graph.len());
        let to = low + self.random.next_below((high - low).max(1) as u64) as usize;
        let from = self.places[block as usize] as usize;
        (from != to).then_some((from, to))
    }

    fn apply_change(&mut self, change: &ScheduleChange) {
        for &block in &change.flipped {
            let device: &mut OverflowDevice = &mut self.schedule.devices[block as usize];
            *device = device.other();
        }
        match change.moved {
            Some((from, to)) if from < to => self.schedule.order[from..=to].rotate_left(1),
            Some((from, to)) => self.schedule.order[to..=from].rotate_right(1),
            None => {}
        }
    }
}
