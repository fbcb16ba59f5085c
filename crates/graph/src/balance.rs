//! Chooses cuts so that the most expensive block is as cheap as possible.

/// Splits `costs`, one per segment between neighbouring cut points, into `blocks` runs.
///
/// Returns the indices of the segments that start a run after the first. Cuts at `forced` indices
/// are always among them. `None` where there are not enough places to cut.
pub(crate) fn balance(costs: &[u64], blocks: usize, forced: &[usize]) -> Option<Vec<usize>> {
    if blocks == 0 || blocks > costs.len() || forced.len() + 1 > blocks {
        return None;
    }
    let mut sums = vec![0u64];
    for cost in costs {
        sums.push(sums[sums.len() - 1].saturating_add(*cost));
    }
    let cost = |from: usize, to: usize| sums[to] - sums[from];
    let ends = costs.len() + 1;
    // The last forced cut before each end: a run may not cross it.
    let mut barrier = vec![0; ends];
    for end in 1..ends {
        let cut = end - 1;
        barrier[end] = if forced.contains(&cut) { cut } else { barrier[cut] };
    }
    // best[end]: cheapest possible maximum for the first `end` segments in the runs so far.
    let mut best: Vec<Option<u64>> =
        (0..ends).map(|end| (end > 0 && barrier[end] == 0).then(|| cost(0, end))).collect();
    let mut from: Vec<Vec<usize>> = Vec::new();
    for _ in 1..blocks {
        let mut next = vec![None; ends];
        let mut starts = vec![0; ends];
        // Where the runs so far can end at all is one stretch.
        let (Some(low), Some(high)) =
            (best.iter().position(Option::is_some), best.iter().rposition(Option::is_some))
        else {
            return None;
        };
        for end in 1..ends {
            let (low, high) = (low.max(barrier[end]).max(1), high.min(end - 1));
            if low > high {
                continue;
            }
            // As the last run starts later, it gets cheaper and what is before it dearer: the best
            // start is where they cross, or the one before.
            let before = |start: usize| best[start].unwrap_or(u64::MAX);
            let (mut left, mut right) = (low, high);
            while left < right {
                let middle = left.midpoint(right);
                if before(middle) >= cost(middle, end) {
                    right = middle;
                } else {
                    left = middle + 1;
                }
            }
            let worst = |start: usize| before(start).max(cost(start, end));
            let start = if left > low && worst(left - 1) <= worst(left) { left - 1 } else { left };
            next[end] = Some(worst(start));
            starts[end] = start;
        }
        best = next;
        from.push(starts);
    }
    best[costs.len()]?;
    let mut cuts = Vec::with_capacity(blocks - 1);
    let mut end = costs.len();
    for starts in from.iter().rev() {
        end = starts[end];
        cuts.push(end);
    }
    cuts.reverse();
    Some(cuts)
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
        fn no_other_choice_has_a_cheaper_worst_block(
            costs in prop::collection::vec(0u64..20, 1..9),
            blocks in 1usize..5,
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
            let found = balance(&costs, blocks, &forced);
            prop_assert_eq!(found.as_ref().map(|cuts| worst(&costs, cuts)), best);
            if let Some(cuts) = found {
                prop_assert!(allowed.contains(&cuts));
            }
        }
    }
}
