//! The cheapest grouping: which neighbouring blocks run as one.
//!
//! Every run of neighbours of a path is a unit that there could be. One with a block of the task's own
//! is paid once per task; one of shared blocks is paid once, whoever uses it. If it were known what each
//! task contributes to each shared unit, every task would find its cheapest path alone. Contributions
//! that add up to a unit's price give a cost that no grouping undercuts; they are shifted towards those
//! who use it, until that bound meets the best grouping found. Where it does not, a unit whose users
//! disagree is tried both ways: bought for all, and for nobody.

mod market;
mod search;

use super::memory::{Groups, Path};
use super::problem::Problem;
use crate::Limit;
use market::Market;
use search::Search;

/// Costs that differ by less, relatively, are the same.
const SAME: f64 = 1e-9;

/// What a search found.
pub(super) struct Found {
    pub(super) groups: Vec<Groups>,
    /// What no grouping undercuts.
    pub(super) bound: f64,
    /// Whether the grouping is as cheap as that.
    pub(super) proved: bool,
}

/// The grouping that costs least, where a unit costs `context` besides its memory. Starts from the best
/// of `known`; the last one stays if nothing is cheaper.
pub(super) fn cheapest(
    problem: &Problem,
    paths: &[Path],
    context: f64,
    known: Vec<Vec<Groups>>,
    limit: &Limit<'_>,
) -> Found {
    let market = Market::new(problem, paths, context);
    let mut search = Search::new(&market, limit);
    for groups in known.into_iter().rev() {
        search.offer(groups);
    }
    let bound = search.run();
    let (best, mut groups) = search.found();
    let proved = bound >= best - tolerance(best);
    market.merge(&mut groups);
    Found { groups, bound: if proved { best } else { bound }, proved }
}

fn tolerance(cost: f64) -> f64 {
    SAME * cost.abs()
}
