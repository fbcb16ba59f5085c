//! An order in which nodes can run, chosen so that side branches don't hide cut points.
//!
//! Among the nodes that are ready, the one with the shortest way to the end runs first: a short
//! branch to an output of its own is finished before the trunk goes on, and leaves nothing alive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sorts the nodes `0..successors.len()` topologically; fails with a cycle.
pub(crate) fn sort_topologically(successors: &[Vec<u32>]) -> Result<Vec<u32>, Vec<u32>> {
    let ready_at = |heights: &[u32]| -> Option<Vec<u32>> {
        let mut waiting = vec![0u32; successors.len()];
        for &next in successors.iter().flatten() {
            waiting[next as usize] += 1;
        }
        let mut ready: BinaryHeap<Reverse<(u32, u32)>> = (0..successors.len())
            .filter(|&node| waiting[node] == 0)
            .map(|node| Reverse((heights[node], node as u32)))
            .collect();
        let mut order = Vec::with_capacity(successors.len());
        while let Some(Reverse((_, node))) = ready.pop() {
            order.push(node);
            for &next in &successors[node as usize] {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.push(Reverse((heights[next as usize], next)));
                }
            }
        }
        (order.len() == successors.len()).then_some(order)
    };
    let mut heights = vec![0u32; successors.len()];
    let Some(order) = ready_at(&heights) else {
        return Err(find_cycle(successors));
    };
    for &node in order.iter().rev() {
        let highest =
            successors[node as usize].iter().map(|&next| heights[next as usize] + 1).max();
        heights[node as usize] = highest.unwrap_or(0);
    }
    ready_at(&heights).ok_or_else(|| find_cycle(successors))
}

/// The nodes of one cycle.
fn find_cycle(successors: &[Vec<u32>]) -> Vec<u32> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        New,
        Open,
        Done,
    }
    let mut states = vec![VisitState::New; successors.len()];
    for start in 0..successors.len() {
        if states[start] != VisitState::New {
            continue;
        }
        let mut path: Vec<(u32, usize)> = vec![(start as u32, 0)];
        states[start] = VisitState::Open;
        while let Some((node, next)) = path.last_mut() {
            let Some(&child) = successors[*node as usize].get(*next) else {
                states[*node as usize] = VisitState::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match states[child as usize] {
                VisitState::Open => {
                    let from = path.iter().position(|(node, _)| *node == child).unwrap_or(0);
                    return path[from..].iter().map(|(node, _)| *node).collect();
                }
                VisitState::New => {
                    states[child as usize] = VisitState::Open;
                    path.push((child, 0));
                }
                VisitState::Done => {}
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_branch_runs_before_the_trunk_goes_on() {
        // 0 → 1 → 2 → 3 is the trunk, 0 → 4 a branch that ends.
        let order = sort_topologically(&[vec![1, 4], vec![2], vec![3], vec![], vec![]]).unwrap();
        assert_eq!(order, [0, 4, 1, 2, 3]);
    }

    #[test]
    fn a_cycle_is_named_by_its_nodes() {
        let mut cycle = sort_topologically(&[vec![1], vec![2], vec![1, 3], vec![]]).unwrap_err();
        cycle.sort_unstable();
        assert_eq!(cycle, [1, 2]);
    }
}
