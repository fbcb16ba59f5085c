//! The search: contributions give a bound, decisions close what is left of the gap.

use super::super::paths::PathGroups;
use super::candidate_units::CandidateUnits;
use super::cost_tolerance;
use crate::SearchLimit;

/// How often contributions are shifted: at first, and after each decision.
const ROOT_ROUNDS: usize = 400;
const NODE_ROUNDS: usize = 60;

/// How many rounds without a better bound make the steps shorter, and how much.
const STALE_ROUNDS: usize = 10;
const SHORTER: f64 = 0.6;

/// Whether a shared unit is there.
#[derive(Clone, Copy, PartialEq)]
enum Decision {
    /// Not yet decided: who uses it pays a contribution.
    Open,
    /// There, and paid for.
    Bought,
    /// Not there.
    Refused,
}

pub(super) struct GroupingSearch<'a> {
    candidate_units: &'a CandidateUnits<'a>,
    best: f64,
    groups: Vec<PathGroups>,
    decided: Vec<Decision>,
    limit: &'a SearchLimit<'a>,
}

/// Decisions that are still to be looked at, and what they cost at least.
struct DecisionNode {
    decisions: Vec<(usize, Decision)>,
    bound: f64,
}

impl<'a> GroupingSearch<'a> {
    pub(super) fn new(candidate_units: &'a CandidateUnits<'a>, limit: &'a SearchLimit<'a>) -> Self {
        let decided = vec![Decision::Open; candidate_units.shared.len()];
        Self { candidate_units, best: f64::INFINITY, groups: Vec::new(), decided, limit }
    }

    /// The best grouping, and what it costs.
    pub(super) fn into_best(self) -> (f64, Vec<PathGroups>) {
        (self.best, self.groups)
    }

    /// Takes a grouping if it is cheaper than the best one.
    pub(super) fn offer_grouping(&mut self, groups: Vec<PathGroups>) {
        let (cost, _) = self.candidate_units.grouping_cost(&groups);
        if self.groups.is_empty() || cost < self.best - cost_tolerance(self.best) {
            (self.best, self.groups) = (cost, groups);
        }
    }

    /// Offers what becomes of a grouping when everybody may use the units that it has.
    fn offer_with_used_units(&mut self, groups: &[PathGroups]) {
        let (_, used) = self.candidate_units.grouping_cost(groups);
        let charge = |unit: usize, _: usize| if used[unit] { 0.0 } else { f64::INFINITY };
        let each = 0..self.candidate_units.paths.len();
        self.offer_grouping(
            each.map(|number| self.candidate_units.cheapest_groups(number, &charge).1).collect(),
        );
    }

    fn is_hopeless(&self, bound: f64) -> bool {
        bound >= self.best - cost_tolerance(self.best)
    }

    /// Searches until all is decided or time is up; returns what no grouping undercuts.
    pub(super) fn branch_and_bound(&mut self) -> f64 {
        let mut contributions = vec![0.0; self.candidate_units.slots];
        for shared in &self.candidate_units.shared {
            let each = shared.price / shared.slots.len() as f64;
            contributions[shared.slots.clone()].fill(each);
        }
        let mut stack = vec![DecisionNode { decisions: Vec::new(), bound: 0.0 }];
        while let Some(node) = stack.pop() {
            if self.is_hopeless(node.bound) {
                continue;
            }
            self.decided.fill(Decision::Open);
            for &(unit, decision) in &node.decisions {
                self.decided[unit] = decision;
            }
            let is_root = node.decisions.is_empty();
            let rounds = if is_root { ROOT_ROUNDS } else { NODE_ROUNDS };
            let mut own_contributions = contributions.clone();
            let (bound, disputed) = self.shift_contributions(&mut own_contributions, rounds);
            let bound = bound.max(node.bound);
            if is_root {
                // What all decisions start from.
                contributions = own_contributions;
            }
            // Without a dispute the grouping that was offered costs just the bound.
            let Some(unit) = disputed.filter(|_| !self.is_hopeless(bound)) else {
                continue;
            };
            if self.limit.is_reached() {
                let open = stack.iter().map(|node| node.bound);
                return open.fold(bound.min(self.best), f64::min);
            }
            for decision in [Decision::Refused, Decision::Bought] {
                let mut decisions = node.decisions.clone();
                decisions.push((unit, decision));
                stack.push(DecisionNode { decisions, bound });
            }
        }
        self.best
    }

    /// Shifts contributions towards those who use a unit. Returns the highest bound seen, and the
    /// unit that its users disagree about most.
    fn shift_contributions(
        &mut self,
        contributions: &mut [f64],
        rounds: usize,
    ) -> (f64, Option<usize>) {
        let (mut highest, mut disputed) = (f64::NEG_INFINITY, None);
        let mut best_contributions = contributions.to_vec();
        let (mut scale, mut stale) = (1.0, 0);
        for round in 0..rounds {
            let (bound, uses) = self.regroup_paths(contributions);
            if round == 0 || bound > highest + cost_tolerance(highest) * 1e-3 {
                (highest, stale) = (bound, 0);
                best_contributions.copy_from_slice(contributions);
                disputed = self.disputed_unit(contributions, &uses);
            } else {
                stale += 1;
                if stale >= STALE_ROUNDS {
                    (scale, stale) = (scale * SHORTER, 0);
                    contributions.copy_from_slice(&best_contributions);
                    continue;
                }
            }
            if disputed.is_none() || self.is_hopeless(highest) || self.limit.is_reached() {
                break;
            }
            if !self.step_contributions(contributions, &uses, scale * (self.best - bound)) {
                break;
            }
        }
        contributions.copy_from_slice(&best_contributions);
        (highest, disputed)
    }

    /// Lets every path find its way with these contributions. Returns what that costs, which no
    /// grouping with these decisions undercuts, and which contributions are paid.
    fn regroup_paths(&mut self, contributions: &[f64]) -> (f64, Vec<bool>) {
        let candidate_units = self.candidate_units;
        let charge = |unit: usize, slot: usize| match self.decided[unit] {
            Decision::Open => contributions[slot],
            Decision::Bought => 0.0,
            Decision::Refused => f64::INFINITY,
        };
        let bought = self.decided.iter().zip(&candidate_units.shared);
        let bought = bought.filter(|(decision, _)| **decision == Decision::Bought);
        let mut bound: f64 = bought.map(|(_, shared)| shared.price).sum();
        let mut groups = Vec::with_capacity(candidate_units.paths.len());
        for number in 0..candidate_units.paths.len() {
            let (cost, route) = candidate_units.cheapest_groups(number, &charge);
            bound += cost;
            groups.push(route);
        }
        let mut uses = vec![false; candidate_units.slots];
        candidate_units.for_each_shared(&groups, |_, slot| uses[slot] = true);
        self.offer_with_used_units(&groups);
        (bound, uses)
    }

    fn open_units(&self) -> impl Iterator<Item = usize> {
        (0..self.decided.len()).filter(|&unit| self.decided[unit] == Decision::Open)
    }

    /// The unit that some use and whose price they pay least of.
    fn disputed_unit(&self, contributions: &[f64], uses: &[bool]) -> Option<usize> {
        let mut most = (0.0, None);
        for unit in self.open_units() {
            let shared = &self.candidate_units.shared[unit];
            let paid = shared.slots.clone().filter(|&slot| uses[slot]);
            let (users, paid) =
                paid.fold((0, 0.0), |(users, paid), slot| (users + 1, paid + contributions[slot]));
            if users > 0 && shared.price - paid > most.0 {
                most = (shared.price - paid, Some(unit));
            }
        }
        most.1
    }

    /// Moves contributions to disputed units towards who uses them, by `length` in all. Says
    /// whether there were any.
    fn step_contributions(&self, contributions: &mut [f64], uses: &[bool], length: f64) -> bool {
        let shared = || self.open_units().map(|unit| &self.candidate_units.shared[unit]);
        let all: f64 = shared().map(|shared| user_disagreement(&uses[shared.slots.clone()])).sum();
        if all <= 0.0 {
            return false;
        }
        for shared in shared() {
            let (contributions, uses) =
                (&mut contributions[shared.slots.clone()], &uses[shared.slots.clone()]);
            if user_disagreement(uses) > 0.0 {
                for (contribution, used) in contributions.iter_mut().zip(uses) {
                    *contribution += if *used { length / all } else { 0.0 };
                }
                project_to_price(contributions, shared.price);
            }
        }
        true
    }
}

/// How far users of a unit are apart: none where all or nobody use it.
fn user_disagreement(uses: &[bool]) -> f64 {
    let users = uses.iter().filter(|used| **used).count() as f64;
    users * (1.0 - users / uses.len() as f64)
}

/// Moves contributions to the nearest ones that are not negative and add up to `price`.
fn project_to_price(contributions: &mut [f64], price: f64) {
    let mut sorted = contributions.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut less) = (0.0, 0.0);
    for (number, contribution) in sorted.into_iter().enumerate() {
        sum += contribution;
        let level = (sum - price) / (number + 1) as f64;
        // Equal counts: where the price is 0, all contributions are.
        if contribution >= level {
            less = level;
        }
    }
    for contribution in contributions {
        *contribution = (*contribution - less).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::project_to_price;

    #[test]
    fn contributions_never_add_up_to_more_than_the_price() {
        for (mut contributions, price) in [
            (vec![5.0, 0.0], 0.0),
            (vec![5.0, 3.0, 0.0], 6.0),
            (vec![9.0, 0.0, 0.0], 6.0),
            (vec![2.0, 2.0], 4.0),
        ] {
            project_to_price(&mut contributions, price);
            assert_eq!(contributions.iter().sum::<f64>(), price);
            assert!(contributions.iter().all(|contribution| *contribution >= 0.0));
        }
    }
}
