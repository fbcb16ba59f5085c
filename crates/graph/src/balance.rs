//! Chooses cuts so that the most expensive block is as cheap as possible, and, among all such
//! choices, so that the tensors handed over are as small as possible.

use std::collections::VecDeque;

/// Splits `costs`, one per segment between neighbouring cut points, into `blocks` runs.
///
/// `hops[k]` is what a cut before segment `k + 1` hands over. Returns the indices of the segments
/// that start a run after the first. Cuts at `forced` indices are always among them. `None` where
/// there are not enough places to cut.
pub(crate) fn balance_segments(
    costs: &[u64],
    hops: &[u64],
    blocks: usize,
    forced: &[usize],
) -> Option<Vec<usize>> {
    if blocks == 0 || blocks > costs.len() || forced.len() + 1 > blocks {
        return None;
    }
    let runs = SegmentRuns::new(costs, forced);
    let limit = runs.cheapest_worst(blocks)?;
    runs.smallest_hops(blocks, hops, limit)
}

/// The runs of segments that a block may be.
struct SegmentRuns {
    /// Cost of all segments before each.
    sums: Vec<u64>,
    /// Per end of a run, the earliest place where it may start: it may not cross a forced cut.
    barrier: Vec<usize>,
}

impl SegmentRuns {
    fn new(costs: &[u64], forced: &[usize]) -> Self {
        let mut sums = vec![0u64];
        for cost in costs {
            sums.push(sums[sums.len() - 1].saturating_add(*cost));
        }
        let mut barrier = vec![0; sums.len()];
        for end in 1..barrier.len() {
            let cut = end - 1;
            barrier[end] = if forced.contains(&cut) { cut } else { barrier[cut] };
        }
        Self { sums, barrier }
    }

    /// One more than the number of segments: where runs can end, from 0.
    fn end_count(&self) -> usize {
        self.sums.len()
    }

    fn run_cost(&self, from: usize, to: usize) -> u64 {
        self.sums[to] - self.sums[from]
    }

    /// The cost of the most expensive run, where that is as cheap as possible.
    fn cheapest_worst(&self, blocks: usize) -> Option<u64> {
        // best[end]: cheapest possible worst for the first `end` segments in the runs so far.
        let mut best: Vec<Option<u64>> = (0..self.end_count())
            .map(|end| (end > 0 && self.barrier[end] == 0).then(|| self.run_cost(0, end)))
            .collect();
        for _ in 1..blocks {
            // Where the runs so far can end at all is one stretch.
            let low = best.iter().position(Option::is_some)?;
            let high = best.iter().rposition(Option::is_some)?;
            let before = |start: usize| best[start].unwrap_or(u64::MAX);
            let next = |end: usize| {
                let low = low.max(self.barrier[end]).max(1);
                let high = high.min(end.saturating_sub(1));
                if low > high {
                    return None;
                }
                // As the last run starts later, it gets cheaper and what is before it dearer: the
                // best start is where they cross, or the one before.
                let (mut left, mut right) = (low, high);
                while left < right {
                    let middle = left.midpoint(right);
                    if before(middle) >= self.run_cost(middle, end) {
                        right = middle;
                    } else {
                        left = middle + 1;
                    }
                }
                let worst = |start: usize| before(start).max(self.run_cost(start, end));
                let crossing = worst(left);
                Some(if left > low { crossing.min(worst(left - 1)) } else { crossing })
            };
            best = (0..self.end_count()).map(next).collect();
        }
        best[self.end_count() - 1]
    }

    /// The starts of runs that hand over least, none of them more expensive than `limit`.
    fn smallest_hops(&self, blocks: usize, hops: &[u64], limit: u64) -> Option<Vec<usize>> {
        // least[end]: smallest sum of hops for the first `end` segments in the runs so far.
        let fits = |from: usize, end: usize| self.run_cost(from, end) <= limit;
        let mut least: Vec<Option<u64>> = (0..self.end_count())
            .map(|end| (end > 0 && self.barrier[end] == 0 && fits(0, end)).then_some(0))
            .collect();
        let mut from: Vec<Vec<usize>> = Vec::new();
        for _ in 1..blocks {
            let mut next = vec![None; self.end_count()];
            let mut starts = vec![0; self.end_count()];
            // Starts that may still be the best, the best in front; both edges only move on.
            let mut window: VecDeque<(usize, u64)> = VecDeque::new();
            for end in 1..self.end_count() {
                let start = end - 1;
                if let Some(sum) = least[start].filter(|_| start > 0) {
                    let sum = sum.saturating_add(hops.get(start - 1).copied().unwrap_or(0));
                    while window.back().is_some_and(|&(_, known)| known >= sum) {
                        window.pop_back();
                    }
                    window.push_back((start, sum));
                }
                let allowed = |start: usize| start >= self.barrier[end] && fits(start, end);
                while window.front().is_some_and(|&(start, _)| !allowed(start)) {
                    window.pop_front();
                }
                if let Some(&(start, sum)) = window.front() {
                    next[end] = Some(sum);
                    starts[end] = start;
                }
            }
            least = next;
            from.push(starts);
        }
        let mut end = self.end_count() - 1;
        least[end]?;
        let mut cuts = Vec::with_capacity(blocks - 1);
        for starts in from.iter().rev() {
            end = starts[end];
            cuts.push(end);
        }
        cuts.reverse();
        Some(cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worst(costs: &[u64], cuts: &[usize]) -> u64 {
        let mut edges = vec![0];
        edges.extend_from_slice(cuts);
        edges.push(costs.len());
        edges.windows(2).map(|pair| costs[pair[0]..pair[1]].iter().sum()).max().unwrap_or(0)
    }

    fn every_choice(count: usize, chosen: usize) -> Vec<Vec<usize>> {
        (0u32..1 << (count - 1))
            .filter(|bits| bits.count_ones() as usize == chosen)
            .map(|bits| (1..count).filter(|cut| bits & (1 << (cut - 1)) != 0).collect())
            .collect()
    }

    proptest! {
        #[test]
        fn no_other_choice_has_a_cheaper_worst_block_or_hands_over_less(
            costs in prop::collection::vec(0u64..20, 1..9),
            blocks in 1usize..5,
            hops in prop::collection::vec(0u64..20, 8),
            forced in prop::collection::btree_set(1usize..8, 0..3),
        ) {
            let forced: Vec<usize> = forced.into_iter().filter(|&cut| cut < costs.len()).collect();
            let allowed: Vec<Vec<usize>> = if blocks > costs.len() { vec![] } else {
                every_choice(costs.len(), blocks - 1)
                    .into_iter()
                    .filter(|cuts| forced.iter().all(|cut| cuts.contains(cut)))
                    .collect()
            };
            let best = allowed.iter().map(|cuts| worst(&costs, cuts)).min();
            let found = balance_segments(&costs, &hops, blocks, &forced);
            prop_assert_eq!(found.as_ref().map(|cuts| worst(&costs, cuts)), best);
            if let Some(cuts) = found {
                prop_assert!(allowed.contains(&cuts));
                let handed = |cuts: &[usize]| cuts.iter().map(|&cut| hops[cut - 1]).sum::<u64>();
                let least = allowed
                    .iter()
                    .filter(|cuts| Some(worst(&costs, cuts)) == best)
                    .map(|cuts| handed(cuts))
                    .min();
                prop_assert_eq!(Some(handed(&cuts)), least);
            }
        }
    }
}
