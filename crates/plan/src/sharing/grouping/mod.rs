//! The cheapest grouping: which neighbouring blocks run as one.
//!
//! Every run of neighbours of a path is a unit that there could be. One with a block of the task's
//! own is paid once per task; one of shared blocks is paid once, whoever uses it. If it were known
//! what each task contributes to each shared unit, every task would find its cheapest path alone.
//! Contributions that add up to a unit's price give a cost that no grouping undercuts; they are
//! shifted towards those who use it, until that bound meets the best grouping found. Where it does
//! not, a unit whose users disagree is tried both ways: bought for all, and for nobody.

mod candidate_units;
mod search;

use super::paths::{PathGroups, SharingPath};
use super::problem::SharingProblem;
use crate::SearchLimit;
use candidate_units::CandidateUnits;
use search::GroupingSearch;

/// Costs that differ by less, relatively, are the same.
const SAME: f64 = 1e-9;

/// What a search found.
pub(super) struct GroupingResult {
    pub(super) groups: Vec<PathGroups>,
    /// What no grouping undercuts.
    pub(super) bound: f64,
    /// Whether the grouping is as cheap as that.
    pub(super) proved: bool,
}

/// The grouping that costs least, where a unit costs `context` besides its memory. Starts from the
/// best of `known`; the last one stays if nothing is cheaper.
pub(super) fn cheapest_grouping(
    problem: &SharingProblem,
    paths: &[SharingPath],
    context: f64,
    known: Vec<Vec<PathGroups>>,
    limit: &SearchLimit<'_>,
) -> GroupingResult {
    let candidate_units = CandidateUnits::new(problem, paths, context);
    let mut search = GroupingSearch::new(&candidate_units, limit);
    for groups in known.into_iter().rev() {
        search.offer_grouping(groups);
    }
    let bound = search.branch_and_bound();
    let (best, mut groups) = search.into_best();
    let proved = bound >= best - cost_tolerance(best);
    candidate_units.merge_neighbours(&mut groups);
    GroupingResult { groups, bound: if proved { best } else { bound }, proved }
}

fn cost_tolerance(cost: f64) -> f64 {
    SAME * cost.abs()
}
