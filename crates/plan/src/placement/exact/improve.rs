//! Better rows of runs from a good one: other orders and choices of nodes, each with its best borders.

use super::relaxed::{Run, Space};
use crate::Limit;

/// Changes a row of runs as long as one change makes it better.
pub(super) fn improve(space: &Space<'_>, runs: &[Run], limit: &Limit<'_>) -> Vec<Run> {
    let mut nodes: Vec<usize> = runs.iter().map(|run| run.node).collect();
    let mut best = space.cost(runs);
    let mut borders = Borders::new(space);
    loop {
        let mut better = None;
        for change in changes(space, &nodes) {
            let cost = borders.cost(space, &change);
            if cost < best * (1.0 - 1e-12) {
                best = cost;
                better = Some(change);
            }
        }
        match better {
            Some(change) if !limit.reached() => nodes = change,
            Some(change) => return borders.runs(space, &change),
            None => break,
        }
    }
    let found = borders.runs(space, &nodes);
    match space.cost(&found) < space.cost(runs) {
        true => found,
        false => runs.to_vec(),
    }
}

/// Rows of nodes that are one change away.
fn changes(space: &Space<'_>, nodes: &[usize]) -> Vec<Vec<usize>> {
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
struct Borders {
    /// What the first runs cost together where they end before each layer, one row for each run.
    costs: Vec<f64>,
    firsts: Vec<usize>,
}

impl Borders {
    fn new(space: &Space<'_>) -> Self {
        let size = (space.nodes + 1) * (space.layers + 1);
        Self { costs: vec![f64::INFINITY; size], firsts: vec![0; size] }
    }

    fn cost(&mut self, space: &Space<'_>, nodes: &[usize]) -> f64 {
        let (layers, width) = (space.layers, space.layers + 1);
        let Some(&first) = nodes.first() else { return f64::INFINITY };
        if nodes.len() > layers || nodes.len() > space.nodes {
            return f64::INFINITY;
        }
        self.costs[..width].fill(f64::INFINITY);
        let start = space.start(first);
        for end in 1..=space.chain.furthest(first, 0) {
            self.costs[end] = start + space.chain.run(first, 0, end);
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
                let entered = before + space.hop(first, from, to);
                if !entered.is_finite() {
                    continue;
                }
                for end in first + 1..=space.chain.furthest(to, first) {
                    let cost = entered + space.chain.run(to, first, end);
                    if cost < self.costs[row + end] {
                        self.costs[row + end] = cost;
                        self.firsts[row + end] = first;
                    }
                }
            }
        }
        self.costs[(nodes.len() - 1) * width + layers]
    }

    fn runs(&mut self, space: &Space<'_>, nodes: &[usize]) -> Vec<Run> {
        if !self.cost(space, nodes).is_finite() {
            return Vec::new();
        }
        let width = space.layers + 1;
        let mut end = space.layers;
        let mut runs = Vec::with_capacity(nodes.len());
        for (number, &node) in nodes.iter().enumerate().rev() {
            let first = self.firsts[number * width + end];
            runs.push(Run { node, first });
            end = first;
        }
        runs.reverse();
        runs
    }
}
