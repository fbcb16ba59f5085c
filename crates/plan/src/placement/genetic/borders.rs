//! The best borders for a row of nodes.

use std::collections::VecDeque;

use super::super::cost_model::{LayerChain, PlacementNetwork};
use super::super::first_fit::is_connected;

/// The placement of least latency whose runs are on some of these nodes, in this order; none where
/// no such placement has room. No node may be there twice.
///
/// A dynamic programme over (node of the row, end of its run). What a run costs is the difference
/// of two sums, so the best first layer for each end is a least value over a window that only moves
/// forward.
pub(super) fn best_borders(
    chain: &LayerChain,
    network: &PlacementNetwork,
    row: &[usize],
) -> Option<Vec<usize>> {
    let ends = chain.layers + 1;
    // Least latency of a placement of the layers before an end, the last on a node of the row; and
    // where that node's run starts and which node is before it.
    let mut least = vec![f64::INFINITY; row.len() * ends];
    let mut from: Vec<(usize, Option<usize>)> = vec![(0, None); row.len() * ends];
    let mut starts: Vec<(f64, Option<usize>)> = Vec::with_capacity(chain.layers);
    let mut window: VecDeque<usize> = VecDeque::new();
    for (at, &node) in row.iter().enumerate() {
        starts.clear();
        starts.resize(chain.layers, (f64::INFINITY, None));
        if is_connected(network, chain.input, node) {
            let entry = if node == chain.input {
                0.0
            } else {
                chain.entry_seconds(network, 0, chain.input, node)
            };
            starts[0] = (entry, None);
        }
        for (earlier, &before) in row[..at].iter().enumerate() {
            if !network.may_follow(before, node) || !is_connected(network, before, node) {
                continue;
            }
            let least = &least[earlier * ends..(earlier + 1) * ends];
            for (first, start) in starts.iter_mut().enumerate().skip(1) {
                if least[first] < start.0 {
                    let latency = least[first] + chain.entry_seconds(network, first, before, node);
                    if latency < start.0 {
                        *start = (latency, Some(earlier));
                    }
                }
            }
        }
        let sums = chain.seconds_before(node);
        let value = |first: usize| starts[first].0 - sums[first];
        window.clear();
        for end in 1..ends {
            let first = end - 1;
            if starts[first].0.is_finite() {
                while window.back().is_some_and(|&last| value(last) >= value(first)) {
                    window.pop_back();
                }
                window.push_back(first);
            }
            while window.front().is_some_and(|&first| chain.furthest_end(node, first) < end) {
                window.pop_front();
            }
            if let Some(&first) = window.front() {
                least[at * ends + end] = value(first) + sums[end];
                from[at * ends + end] = (first, starts[first].1);
            }
        }
    }
    let last = |at: &usize| least[at * ends + chain.layers];
    let mut at = (0..row.len())
        .filter(|at| last(at).is_finite())
        .min_by(|one, other| last(one).total_cmp(&last(other)))?;
    let mut nodes = vec![0; chain.layers];
    let mut end = chain.layers;
    loop {
        let (first, before) = from[at * ends + end];
        nodes[first..end].fill(row[at]);
        end = first;
        match before {
            Some(before) => at = before,
            None => return Some(nodes),
        }
    }
}
