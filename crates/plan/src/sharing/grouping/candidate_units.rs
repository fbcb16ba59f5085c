//! All units that there could be, and what they cost.

use std::collections::HashMap;
use std::ops::Range;

use super::super::paths::{PathGroups, SharingPath, UnitKey, UnitSize};
use super::super::problem::SharingProblem;
use super::cost_tolerance;

/// Most work for making ties into fewer hops: pairs of units times steps.
const MOST_MERGING: usize = 2_000_000;

/// A unit that a path could use.
#[derive(Clone, Copy)]
enum UnitCandidate {
    /// Paid by this task alone.
    Own(f64),
    /// Shared: its number, and which contribution is this task's.
    Shared { unit: usize, slot: usize },
}

/// Runs of shared blocks, each found by the run before its last block; with price and users.
#[derive(Default)]
struct SharedRuns {
    numbers: HashMap<(Option<usize>, usize), usize>,
    found: Vec<(f64, Vec<usize>)>,
}

impl SharedRuns {
    fn find_run(&mut self, follows: (Option<usize>, usize), price: f64, user: usize) -> usize {
        let number = *self.numbers.entry(follows).or_insert(self.found.len());
        if number == self.found.len() {
            self.found.push((price, Vec::new()));
        }
        let users = &mut self.found[number].1;
        if users.last() != Some(&user) {
            users.push(user);
        }
        number
    }
}

/// A unit that several tasks could use.
pub(super) struct SharedUnit {
    pub(super) price: f64,
    /// Its contributions.
    pub(super) slots: Range<usize>,
}

/// All units that there could be, and what they cost.
pub(super) struct CandidateUnits<'a> {
    pub(super) paths: &'a [SharingPath],
    /// Per path, by start and end of the run of steps.
    candidates: Vec<Vec<UnitCandidate>>,
    pub(super) shared: Vec<SharedUnit>,
    /// How many contributions there are.
    pub(super) slots: usize,
}

impl<'a> CandidateUnits<'a> {
    pub(super) fn new(problem: &SharingProblem, paths: &'a [SharingPath], context: f64) -> Self {
        let mut runs = SharedRuns::default();
        let mut candidates: Vec<Vec<UnitCandidate>> = Vec::with_capacity(paths.len());
        for (number, path) in paths.iter().enumerate() {
            let length = path.steps.len();
            let mut own_candidates = vec![UnitCandidate::Own(f64::INFINITY); length * length];
            for start in 0..length {
                let (mut run, mut own, mut size) = (None, false, UnitSize::default());
                for end in start + 1..=length {
                    let (block, is_own) = path.steps[end - 1];
                    own |= is_own;
                    size = size.with_block(&problem.blocks[block]);
                    let (mut price, mut follows) = (context + size.total_bytes(), (run, block));
                    if let Some(whole) = path.whole.filter(|_| end - start == length) {
                        price = context
                            + UnitSize::default().with_block(&problem.blocks[whole]).total_bytes();
                        follows = (None, whole);
                    }
                    own_candidates[start * length + end - 1] = if own {
                        UnitCandidate::Own(price * path.count)
                    } else {
                        let unit = runs.find_run(follows, price, number);
                        run = Some(unit);
                        UnitCandidate::Shared { unit, slot: 0 }
                    };
                }
            }
            candidates.push(own_candidates);
        }
        let (mut slots, mut shared) = (0, Vec::new());
        let numbers: Vec<usize> = runs
            .found
            .iter()
            .map(|(price, users)| {
                if users.len() > 1 {
                    shared.push(SharedUnit { price: *price, slots: slots..slots + users.len() });
                    slots += users.len();
                }
                shared.len().saturating_sub(1)
            })
            .collect();
        for (number, candidates) in candidates.iter_mut().enumerate() {
            for candidate in candidates {
                if let UnitCandidate::Shared { unit: run, .. } = *candidate {
                    let (price, users) = &runs.found[run];
                    let place = users.partition_point(|&user| user < number);
                    let unit = numbers[run];
                    // What one task alone can use is paid by it alone.
                    *candidate = if users.len() > 1 {
                        UnitCandidate::Shared { unit, slot: shared[unit].slots.start + place }
                    } else {
                        UnitCandidate::Own(*price)
                    };
                }
            }
        }
        Self { paths, candidates, shared, slots }
    }

    /// The cheapest units for one path, where a shared one costs what `charge` says.
    pub(super) fn cheapest_groups(
        &self,
        number: usize,
        charge: &impl Fn(usize, usize) -> f64,
    ) -> (f64, PathGroups) {
        let (path, candidates) = (&self.paths[number], &self.candidates[number]);
        let length = path.steps.len();
        let mut costs = vec![0.0; length + 1];
        let mut starts = vec![0; length + 1];
        for end in 1..=length {
            let mut best = f64::INFINITY;
            // From the front: of equals the longest unit, so the fewest hops.
            for start in 0..end {
                let unit = match candidates[start * length + end - 1] {
                    UnitCandidate::Own(cost) => cost,
                    UnitCandidate::Shared { unit, slot } => charge(unit, slot),
                };
                let hop = if start > 0 { path.hop_bytes } else { 0.0 };
                let cost = costs[start] + unit + hop;
                if cost < best {
                    (best, starts[end]) = (cost, start);
                }
            }
            costs[end] = best;
        }
        let mut groups = Vec::new();
        let mut end = length;
        while end > 0 {
            groups.push(starts[end]..end);
            end = starts[end];
        }
        groups.reverse();
        (costs[length], groups)
    }

    /// Calls `on` for every shared unit of a grouping.
    pub(super) fn for_each_shared(&self, groups: &[PathGroups], mut on: impl FnMut(usize, usize)) {
        for (number, groups) in groups.iter().enumerate() {
            let length = self.paths[number].steps.len();
            for range in groups {
                if let UnitCandidate::Shared { unit, slot } =
                    self.candidates[number][range.start * length + range.end - 1]
                {
                    on(unit, slot);
                }
            }
        }
    }

    /// What a grouping costs, and which shared units it has.
    pub(super) fn grouping_cost(&self, groups: &[PathGroups]) -> (f64, Vec<bool>) {
        let mut used = vec![false; self.shared.len()];
        self.for_each_shared(groups, |unit, _| used[unit] = true);
        let mut cost = 0.0;
        for (number, groups) in groups.iter().enumerate() {
            let path = &self.paths[number];
            for range in groups {
                let at = range.start * path.steps.len() + range.end - 1;
                if let UnitCandidate::Own(own) = self.candidates[number][at] {
                    cost += own;
                }
            }
            cost += path.hop_bytes * groups.len().saturating_sub(1) as f64;
        }
        let bought = used.iter().zip(&self.shared).filter(|(used, _)| **used);
        (cost + bought.map(|(_, shared)| shared.price).sum::<f64>(), used)
    }

    /// Joins neighbouring units wherever they follow each other, as long as that costs nothing: of
    /// equals, the grouping with fewer hops.
    pub(super) fn merge_neighbours(&self, groups: &mut Vec<PathGroups>) {
        let steps: usize = self.paths.iter().map(|path| path.steps.len()).sum();
        let hops: usize = groups.iter().map(|groups| groups.len().saturating_sub(1)).sum();
        if hops.saturating_mul(steps) > MOST_MERGING {
            return;
        }
        let (mut cost, _) = self.grouping_cost(groups);
        let mut is_changed = true;
        while std::mem::take(&mut is_changed) {
            let (mut number, mut at) = (0, 0);
            while number < groups.len() {
                let Some([first, second]) = groups[number].get(at..at + 2) else {
                    (number, at) = (number + 1, 0);
                    continue;
                };
                let path = &self.paths[number];
                let joined = self.join_units(groups, &path.unit_key(first), &path.unit_key(second));
                let (merged, _) = self.grouping_cost(&joined);
                if merged <= cost + cost_tolerance(cost) * 1e-3 {
                    (*groups, cost, is_changed) = (joined, merged.min(cost), true);
                } else {
                    at += 1;
                }
            }
        }
    }

    /// The grouping with `first` and `second` joined wherever one follows the other.
    fn join_units(
        &self,
        groups: &[PathGroups],
        first: &UnitKey,
        second: &UnitKey,
    ) -> Vec<PathGroups> {
        let each = groups.iter().zip(self.paths).map(|(groups, path)| {
            let mut joined: PathGroups = Vec::with_capacity(groups.len());
            for range in groups {
                match joined.last_mut() {
                    Some(last)
                        if path.unit_key(last) == *first && path.unit_key(range) == *second =>
                    {
                        last.end = range.end;
                    }
                    _ => joined.push(range.clone()),
                }
            }
            joined
        });
        each.collect()
    }
}
