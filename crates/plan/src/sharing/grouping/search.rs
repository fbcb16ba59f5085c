//! The search: contributions give a bound, decisions close what is left of the gap.

use super::super::memory::Groups;
use super::market::Market;
use super::tolerance;
use crate::Limit;

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

pub(super) struct Search<'a> {
    market: &'a Market<'a>,
    best: f64,
    groups: Vec<Groups>,
    decided: Vec<Decision>,
    limit: &'a Limit<'a>,
}

/// Decisions that are still to be looked at, and what they cost at least.
struct Node {
    decisions: Vec<(usize, Decision)>,
    bound: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(market: &'a Market<'a>, limit: &'a Limit<'a>) -> Self {
        let decided = vec![Decision::Open; market.shared.len()];
        Self { market, best: f64::INFINITY, groups: Vec::new(), decided, limit }
    }

    /// The best grouping, and what it costs.
    pub(super) fn found(self) -> (f64, Vec<Groups>) {
        (self.best, self.groups)
    }

    /// Takes a grouping if it is cheaper than the best one.
    pub(super) fn offer(&mut self, groups: Vec<Groups>) {
        let (cost, _) = self.market.cost(&groups);
        if self.groups.is_empty() || cost < self.best - tolerance(self.best) {
            (self.best, self.groups) = (cost, groups);
        }
    }

    /// Offers what becomes of a grouping when everybody may use the units that it has.
    fn offer_settled(&mut self, groups: &[Groups]) {
        let (_, used) = self.market.cost(groups);
        let charge = |unit: usize, _: usize| if used[unit] { 0.0 } else { f64::INFINITY };
        let each = 0..self.market.paths.len();
        self.offer(each.map(|number| self.market.route(number, &charge).1).collect());
    }

    fn is_hopeless(&self, bound: f64) -> bool {
        bound >= self.best - tolerance(self.best)
    }

    /// Searches until all is decided or time is up; returns what no grouping undercuts.
    pub(super) fn run(&mut self) -> f64 {
        let mut shares = vec![0.0; self.market.slots];
        for shared in &self.market.shared {
            let each = shared.price / shared.slots.len() as f64;
            shares[shared.slots.clone()].fill(each);
        }
        let mut stack = vec![Node { decisions: Vec::new(), bound: 0.0 }];
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
            let mut own_shares = shares.clone();
            let (bound, disputed) = self.shift(&mut own_shares, rounds);
            let bound = bound.max(node.bound);
            if is_root {
                // What all decisions start from.
                shares = own_shares;
            }
            // Without a dispute the grouping that was offered costs just the bound.
            let Some(unit) = disputed.filter(|_| !self.is_hopeless(bound)) else {
                continue;
            };
            if self.limit.reached() {
                let open = stack.iter().map(|node| node.bound);
                return open.fold(bound.min(self.best), f64::min);
            }
            for decision in [Decision::Refused, Decision::Bought] {
                let mut decisions = node.decisions.clone();
                decisions.push((unit, decision));
                stack.push(Node { decisions, bound });
            }
        }
        self.best
    }

    /// Shifts contributions towards those who use a unit. Returns the highest bound seen, and the unit
    /// that its users disagree about most.
    fn shift(&mut self, shares: &mut [f64], rounds: usize) -> (f64, Option<usize>) {
        let (mut highest, mut disputed) = (f64::NEG_INFINITY, None);
        let mut best_shares = shares.to_vec();
        let (mut scale, mut stale) = (1.0, 0);
        for round in 0..rounds {
            let (bound, uses) = self.round(shares);
            if round == 0 || bound > highest + tolerance(highest) * 1e-3 {
                (highest, stale) = (bound, 0);
                best_shares.copy_from_slice(shares);
                disputed = self.disputed(shares, &uses);
            } else {
                stale += 1;
                if stale >= STALE_ROUNDS {
                    (scale, stale) = (scale * SHORTER, 0);
                    shares.copy_from_slice(&best_shares);
                    continue;
                }
            }
            if disputed.is_none() || self.is_hopeless(highest) || self.limit.reached() {
                break;
            }
            if !self.step(shares, &uses, scale * (self.best - bound)) {
                break;
            }
        }
        shares.copy_from_slice(&best_shares);
        (highest, disputed)
    }

    /// Lets every path find its way with these contributions. Returns what that costs, which no
    /// grouping with these decisions undercuts, and which contributions are paid.
    fn round(&mut self, shares: &[f64]) -> (f64, Vec<bool>) {
        let market = self.market;
        let charge = |unit: usize, slot: usize| match self.decided[unit] {
            Decision::Open => shares[slot],
            Decision::Bought => 0.0,
            Decision::Refused => f64::INFINITY,
        };
        let bought = self.decided.iter().zip(&market.shared);
        let bought = bought.filter(|(decision, _)| **decision == Decision::Bought);
        let mut bound: f64 = bought.map(|(_, shared)| shared.price).sum();
        let mut groups = Vec::with_capacity(market.paths.len());
        for number in 0..market.paths.len() {
            let (cost, route) = market.route(number, &charge);
            bound += cost;
            groups.push(route);
        }
        let mut uses = vec![false; market.slots];
        market.each_shared(&groups, |_, slot| uses[slot] = true);
        self.offer_settled(&groups);
        (bound, uses)
    }

    fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.decided.len()).filter(|&unit| self.decided[unit] == Decision::Open)
    }

    /// The unit that some use and whose price they pay least of.
    fn disputed(&self, shares: &[f64], uses: &[bool]) -> Option<usize> {
        let mut most = (0.0, None);
        for unit in self.open() {
            let shared = &self.market.shared[unit];
            let paid = shared.slots.clone().filter(|&slot| uses[slot]);
            let (users, paid) =
                paid.fold((0, 0.0), |(users, paid), slot| (users + 1, paid + shares[slot]));
            if users > 0 && shared.price - paid > most.0 {
                most = (shared.price - paid, Some(unit));
            }
        }
        most.1
    }

    /// Moves contributions to disputed units towards who uses them, by `length` in all. Says whether
    /// there were any.
    fn step(&self, shares: &mut [f64], uses: &[bool], length: f64) -> bool {
        let shared = || self.open().map(|unit| &self.market.shared[unit]);
        let all: f64 = shared().map(|shared| disagreement(&uses[shared.slots.clone()])).sum();
        if all <= 0.0 {
            return false;
        }
        for shared in shared() {
            let (shares, uses) = (&mut shares[shared.slots.clone()], &uses[shared.slots.clone()]);
            if disagreement(uses) > 0.0 {
                for (share, used) in shares.iter_mut().zip(uses) {
                    *share += if *used { length / all } else { 0.0 };
                }
                to_price(shares, shared.price);
            }
        }
        true
    }
}

/// How far users of a unit are apart: none where all or nobody use it.
fn disagreement(uses: &[bool]) -> f64 {
    let users = uses.iter().filter(|used| **used).count() as f64;
    users * (1.0 - users / uses.len() as f64)
}

/// Moves contributions to the nearest ones that are not negative and add up to `price`.
fn to_price(shares: &mut [f64], price: f64) {
    let mut sorted = shares.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut less) = (0.0, 0.0);
    for (number, share) in sorted.into_iter().enumerate() {
        sum += share;
        let level = (sum - price) / (number + 1) as f64;
        // Equal counts: where the price is 0, all contributions are.
        if share >= level {
            less = level;
        }
    }
    for share in shares {
        *share = (*share - less).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::to_price;

    #[test]
    fn contributions_never_add_up_to_more_than_the_price() {
        for (mut shares, price) in [
            (vec![5.0, 0.0], 0.0),
            (vec![5.0, 3.0, 0.0], 6.0),
            (vec![9.0, 0.0, 0.0], 6.0),
            (vec![2.0, 2.0], 4.0),
        ] {
            to_price(&mut shares, price);
            assert_eq!(shares.iter().sum::<f64>(), price);
            assert!(shares.iter().all(|share| *share >= 0.0));
        }
    }
}
