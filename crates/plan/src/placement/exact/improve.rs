//! Better rows of runs from a good one: other orders and choices of nodes, each with its best
//! borders.

use super::relaxed::{PlacementRun, RunSpace};
use crate::SearchLimit;

/// Changes a row of runs as long as one change makes it better.
pub(super) fn improve_runs(
    space: &RunSpace<'_>,
    runs: &[PlacementRun],
    limit: &SearchLimit<'_>,
) -> Vec<PlacementRun> {
    let mut nodes: Vec<usize> = runs.iter().map(|run| run.node).collect();
    let mut best = space.total_cost(runs);
    let mut borders = RunBorders::new(space);
    loop {
        let mut better = None;
        for change in neighbouring_rows(space, &nodes) {
            let cost = borders.least_cost(space, &change);
            if cost < best * (1.0 - 1e-12) {
                best = cost;
                better = Some(change);
            }
        }
        match better {
            Some(change) if !limit.is_reached() => nodes = change,
            Some(change) => return borders.best_runs(space, &change),
            None => break,
        }
    }
    let found = borders.best_runs(space, &nodes);
    if space.total_cost(&found) < space.total_cost(runs) { found } else { runs.to_vec() }
}

/// Rows of nodes that are one change away.
fn neighbouring_rows(space: &RunSpace<'_>, nodes: &[usize]) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let unused: Vec<usize> = (0..space.nodes).filter(|node| !nodes.contains(node)).collect();
    for at in 0..nodes.len() {
        for other in at + 1..nodes.len() {
            let mut swapped = nodes.to_vec();
            swapped.swap(at, other);
            all.push(swapped);
            if other > at + 1 {
                let mut turned = nodes.to_vec();
                turned[at..=other].reverse();
                all.push(turned);
                let mut later = nodes.to_vec();
                later[at..=other].rotate_left(1);
                all.push(later);
                let mut sooner = nodes.to_vec();
                sooner[at..=other].rotate_right(1);
                all.push(sooner);
            }
        }
        if nodes.len() > 1 {
            let mut without = nodes.to_vec();
            without.remove(at);
            all.push(without);
        }
        for &node in &unused {
            let mut replaced = nodes.to_vec();
            replaced[at] = node;
            all.push(replaced);
        }
    }
    for at in 0..=nodes.len() {
        for &node in &unused {
            let mut with = nodes.to_vec();
            with.insert(at, node);
            all.push(with);
        }
    }
    all
}

/// The best borders between the runs of a given row of nodes.
struct RunBorders {
    /// What the first runs cost together where they end before each layer, one row for each run.
    costs: Vec<f64>,
    firsts: Vec<usize>,
}

impl RunBorders {
    fn new(space: &RunSpace<'_>) -> Self {
        let size = (space.nodes + 1) * (space.layers + 1);
        Self { costs: vec![f64::INFINITY; size], firsts: vec![0; size] }
    }

    fn least_cost(&mut self, space: &RunSpace<'_>, nodes: &[usize]) -> f64 {
        let (layers, width) = (space.layers, space.layers + 1);
        let Some(&first) = nodes.first() else { return f64::INFINITY };
        if nodes.len() > layers || nodes.len() > space.nodes {
            return f64::INFINITY;
        }
        self.costs[..width].fill(f64::INFINITY);
        let start = space.start_cost(first);
        for end in 1..=space.chain.furthest_end(first, 0) {
            self.costs[end] = start + space.chain.run_seconds(first, 0, end);
            self.firsts[end] = 0;
        }
        for (number, pair) in nodes.windows(2).enumerate() {
            let (from, to) = (pair[0], pair[1]);
            let row = (number + 1) * width;
            self.costs[row..row + width].fill(f64::INFINITY);
            for first in number + 1..layers {
                let before = self.costs[row - width + first];
                if !before.is_finite() {
                    continue;
                }
                let entered = before + space.hop_cost(first, from, to);
                if !entered.is_finite() {
                    continue;
                }
                for end in first + 1..=space.chain.furthest_end(to, first) {
                    let cost = entered + space.chain.run_seconds(to, first, end);
                    if cost < self.costs[row + end] {
                        self.costs[row + end] = cost;
                        self.firsts[row + end] = first;
                    }
                }
            }
        }
        self.costs[(nodes.len() - 1) * width + layers]
    }

    fn best_runs(&mut self, space: &RunSpace<'_>, nodes: &[usize]) -> Vec<PlacementRun> {
        if !self.least_cost(space, nodes).is_finite() {
            return Vec::new();
        }
        let width = space.layers + 1;
        let mut end = space.layers;
        let mut runs = Vec::with_capacity(nodes.len());
        for (number, &node) in nodes.iter().enumerate().rev() {
            let first = self.firsts[number * width + end];
            runs.push(PlacementRun { node, first });
            end = first;
        }
        runs.reverse();
        runs
    }
}
