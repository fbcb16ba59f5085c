//! Where the bound's best row of runs has a node twice: prices that make that dear, good rows by a
//! narrow search, and then a search through all that could be better, best first, until nothing
//! could.
//!
//! The last one remembers which nodes of the tier it has used, and only of those nodes that it is
//! tempted to use twice: others are added when a row turns out to have them twice (state space
//! relaxation that is undone where it matters). Two labels at the same place with the same memory
//! differ in nothing but cost, so the dearer is dropped.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::improve::improve_runs;
use super::relaxed::{PlacementRun, RelaxedBound, RunSpace};
use crate::SearchLimit;

/// Rounds of better prices.
const ROUNDS: usize = 300;
/// Labels that the narrow search keeps at each layer.
const BEAM: usize = 48;
/// Labels that the search through all keeps at most.
const MOST_LABELS: usize = 6_000_000;
/// Steps between two questions whether it is time to stop.
const STEPS: usize = 256;
/// How far apart costs are that count as equal.
const SAME: f64 = 1e-13;

/// The best row of runs that was found, and the bound.
#[derive(Clone, Debug)]
pub(super) struct RunSearchResult {
    /// None where nothing was found.
    pub(super) runs: Option<Vec<PlacementRun>>,
    pub(super) cost: f64,
    pub(super) bound: f64,
}

/// Searches for the best row of runs in which no node has two.
pub(super) fn search_runs(space: &RunSpace<'_>, limit: &SearchLimit<'_>) -> RunSearchResult {
    let mut prices = vec![0.0; space.nodes];
    let mut relaxed = RelaxedBound::new(space, &prices);
    let Some((runs, cost)) = relaxed.best_runs(space, &prices) else {
        return RunSearchResult { runs: None, cost: f64::INFINITY, bound: f64::INFINITY };
    };
    let repeated = repeated_nodes(&runs);
    if repeated.is_empty() {
        return RunSearchResult { cost: space.total_cost(&runs), bound: cost, runs: Some(runs) };
    }
    let mut found = RunSearchResult { runs: None, cost: f64::INFINITY, bound: cost };
    let mut tempting = vec![0usize; space.nodes];
    repeated.iter().for_each(|&node| tempting[node] += 1);
    found.offer_runs(space, beam_search(space, &relaxed, &prices, found.cost));
    improve_prices(space, &mut relaxed, &mut prices, &mut found, &mut tempting, limit);
    if found.cost <= found.bound * (1.0 + SAME) || limit.is_reached() {
        return found;
    }
    relaxed.solve_with_prices(space, &prices);
    found.offer_runs(space, beam_search(space, &relaxed, &prices, found.cost));
    if let Some(runs) = found.runs.take() {
        found.runs = Some(improve_runs(space, &runs, limit));
        found.cost = found.runs.as_deref().map_or(f64::INFINITY, |runs| space.total_cost(runs));
    }
    // The nodes that were used twice most often come first; the rest follows when it has to.
    let mut order: Vec<usize> = (0..space.nodes).filter(|&node| tempting[node] > 0).collect();
    order.sort_by_key(|&node| std::cmp::Reverse(tempting[node]));
    let mut remembered = vec![false; space.nodes];
    order.iter().for_each(|&node| remembered[node] = true);
    loop {
        match best_first_search(space, &relaxed, &prices, &remembered, &mut found, limit) {
            BestFirstOutcome::Done => return found,
            BestFirstOutcome::RepeatedNodes(nodes)
                if nodes.iter().all(|&node| remembered[node]) =>
            {
                return found;
            }
            BestFirstOutcome::RepeatedNodes(nodes) => {
                nodes.iter().for_each(|&node| remembered[node] = true);
            }
        }
    }
}

impl RunSearchResult {
    fn offer_runs(&mut self, space: &RunSpace<'_>, runs: Option<Vec<PlacementRun>>) {
        if let Some(runs) = runs {
            let cost = space.total_cost(&runs);
            if cost < self.cost {
                self.cost = cost;
                self.runs = Some(runs);
            }
        }
    }
}

/// Whether a node has more than one run.
pub(super) fn has_repeated_node(runs: &[PlacementRun]) -> bool {
    !repeated_nodes(runs).is_empty()
}

/// The nodes that have more than one run.
fn repeated_nodes(runs: &[PlacementRun]) -> Vec<usize> {
    let mut twice: Vec<usize> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let again = runs[..number].iter().any(|before| before.node == run.node);
        if again && !twice.contains(&run.node) {
            twice.push(run.node);
        }
    }
    twice
}

/// Raises the price of nodes that are used twice and lowers it of those that are not used, in steps
/// that get smaller.
fn improve_prices(
    space: &RunSpace<'_>,
    relaxed: &mut RelaxedBound,
    prices: &mut Vec<f64>,
    found: &mut RunSearchResult,
    tempting: &mut [usize],
    limit: &SearchLimit<'_>,
) {
    let mut at = prices.clone();
    let mut scale = 1.0;
    let mut since = 0;
    for round in 0..ROUNDS {
        relaxed.solve_with_prices(space, &at);
        let Some((runs, cost)) = relaxed.best_runs(space, &at) else { return };
        let bound = cost - at.iter().sum::<f64>();
        if bound > found.bound * (1.0 + 1e-9) {
            since = 0;
        } else {
            since += 1;
        }
        if bound > found.bound {
            found.bound = bound;
            prices.clone_from(&at);
        }
        let twice = repeated_nodes(&runs);
        twice.iter().for_each(|&node| tempting[node] += 1);
        if twice.is_empty() {
            found.offer_runs(space, Some(runs.clone()));
        }
        if round % 25 == 24 {
            found.offer_runs(space, beam_search(space, relaxed, &at, found.cost));
        }
        if found.cost <= found.bound * (1.0 + SAME) || limit.is_reached() {
            return;
        }
        if since >= 12 {
            scale *= 0.6;
            since = 0;
            at.clone_from(prices);
            continue;
        }
        let mut used = vec![0.0; space.nodes];
        runs.iter().for_each(|run| used[run.node] += 1.0);
        let slope: Vec<f64> = used
            .iter()
            .zip(&at)
            .map(|(&used, &price)| if used < 1.0 && price <= 0.0 { 0.0 } else { used - 1.0 })
            .collect();
        let length: f64 = slope.iter().map(|slope| slope * slope).sum();
        if length == 0.0 {
            return;
        }
        let target = if found.cost.is_finite() { found.cost } else { found.bound * 1.2 };
        let step = scale * (target - bound).max(target * 1e-6) / length;
        at.iter_mut()
            .zip(&slope)
            .for_each(|(price, slope)| *price = (*price + step * slope).max(0.0));
    }
}

/// A label: one way to the start of a run.
#[derive(Clone, Copy, Debug)]
struct PathLabel {
    layer: usize,
    node: usize,
    /// What it cost to get here, without prices.
    cost: f64,
    /// Nodes of this tier that it has used, as far as they are remembered, this one included.
    used: u128,
    /// The prices of the nodes that it can still use, together.
    left: f64,
    /// The label that it follows.
    before: usize,
}

const NOWHERE: usize = usize::MAX;

fn runs_of(labels: &[PathLabel], mut at: usize) -> Vec<PlacementRun> {
    let mut runs = Vec::new();
    while at != NOWHERE {
        runs.push(PlacementRun { node: labels[at].node, first: labels[at].layer });
        at = labels[at].before;
    }
    runs.reverse();
    runs
}

fn has_used(labels: &[PathLabel], mut at: usize, node: usize) -> bool {
    while at != NOWHERE {
        if labels[at].node == node {
            return true;
        }
        at = labels[at].before;
    }
    false
}

/// Goes through the layers and keeps the few labels that look best at each; never uses a node
/// twice.
fn beam_search(
    space: &RunSpace<'_>,
    relaxed: &RelaxedBound,
    prices: &[f64],
    known: f64,
) -> Option<Vec<PlacementRun>> {
    let mut labels: Vec<PathLabel> = Vec::new();
    let mut waiting: Vec<Vec<(f64, PathLabel)>> = vec![Vec::new(); space.layers];
    for node in 0..space.nodes {
        let cost = space.start_cost(node);
        let looks = cost + prices[node] + relaxed.cost_from(0, node);
        if looks.is_finite() {
            waiting[0].push((
                looks,
                PathLabel { layer: 0, node, cost, used: 0, left: 0.0, before: NOWHERE },
            ));
        }
    }
    let (mut best, mut end) = (known, None);
    for layer in 0..space.layers {
        let mut here = std::mem::take(&mut waiting[layer]);
        here.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Labels with the same node and the same nodes before are told apart by cost alone, but
        // seldom worth finding: what matters is that some of each node survive.
        let mut of_node = vec![0usize; space.nodes];
        let mut kept = 0;
        for (_, label) in here {
            of_node[label.node] += 1;
            if of_node[label.node] > BEAM / 4 {
                continue;
            }
            kept += 1;
            if kept > BEAM {
                break;
            }
            let index = labels.len();
            labels.push(label);
            for run_end in layer + 1..=space.chain.furthest_end(label.node, layer) {
                let cost = label.cost + space.chain.run_seconds(label.node, layer, run_end);
                if run_end == space.layers {
                    if cost < best {
                        best = cost;
                        end = Some(index);
                    }
                    continue;
                }
                for to in 0..space.nodes {
                    let there = cost + space.hop_cost(run_end, label.node, to);
                    let looks = there + prices[to] + relaxed.cost_from(run_end, to);
                    if looks.is_finite() && !has_used(&labels, index, to) {
                        let (used, left) = (0, 0.0);
                        let next = PathLabel {
                            layer: run_end,
                            node: to,
                            cost: there,
                            used,
                            left,
                            before: index,
                        };
                        waiting[run_end].push((looks, next));
                    }
                }
            }
        }
    }
    end.map(|at| runs_of(&labels, at))
}

/// A label that waits, or a whole row of runs, by what it must cost at least.
#[derive(Clone, Copy, Debug)]
struct OpenLabel {
    least: f64,
    layer: usize,
    label: usize,
    whole: bool,
}

impl PartialEq for OpenLabel {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OpenLabel {}

impl PartialOrd for OpenLabel {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OpenLabel {
    /// The largest is what a heap gives first: least cost, then furthest along.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .least
            .total_cmp(&self.least)
            .then(self.layer.cmp(&other.layer))
            .then(other.label.cmp(&self.label))
    }
}

/// A quick hash for keys that nobody chooses to do harm.
#[derive(Default)]
struct FastHasher(u64);

impl FastHasher {
    fn mix_word(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.mix_word(u64::from(byte)));
    }

    fn write_u128(&mut self, value: u128) {
        self.mix_word(value as u64);
        self.mix_word((value >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix_word(value as u64);
    }
}

enum BestFirstOutcome {
    /// Nothing better is left, or it is time to stop.
    Done,
    /// The best row has these nodes twice.
    RepeatedNodes(Vec<usize>),
}

/// Searches best first through all labels that could be better than what was found.
fn best_first_search(
    space: &RunSpace<'_>,
    relaxed: &RelaxedBound,
    prices: &[f64],
    remembered: &[bool],
    found: &mut RunSearchResult,
    limit: &SearchLimit<'_>,
) -> BestFirstOutcome {
    let tiers = &space.network.tiers;
    // Remembered nodes have a bit each, counted by tier.
    let mut bits = vec![0u128; space.nodes];
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for node in (0..space.nodes).filter(|&node| remembered[node]) {
        let count = counts.entry(tiers[node]).or_default();
        bits[node] = 1u128.checked_shl(*count).unwrap_or(0);
        *count += 1;
    }
    // What the prices of nodes that can still be used sum up to: those of this tier and later ones.
    let still: Vec<f64> = (0..space.nodes)
        .map(|node| (0..space.nodes).filter(|&n| tiers[n] >= tiers[node]).map(|n| prices[n]).sum())
        .collect();
    // A node that is not remembered may be used again, so its own price stays in what is left.
    let own: Vec<f64> =
        (0..space.nodes).map(|node| if bits[node] != 0 { prices[node] } else { 0.0 }).collect();
    let mut labels: Vec<PathLabel> = Vec::new();
    let mut cheapest: HashMap<(usize, u128), f64, BuildHasherDefault<FastHasher>> =
        HashMap::default();
    let mut heap: BinaryHeap<OpenLabel> = BinaryHeap::new();
    for node in 0..space.nodes {
        let left = still[node] - own[node];
        let cost = space.start_cost(node);
        let label = PathLabel { layer: 0, node, cost, used: bits[node], left, before: NOWHERE };
        let least = label.cost + relaxed.cost_from(0, node) - left;
        if least.is_finite() && least < found.cost {
            heap.push(OpenLabel { least, layer: 0, label: labels.len(), whole: false });
            labels.push(label);
        }
    }
    let mut steps = 0usize;
    while let Some(next) = heap.pop() {
        if next.least >= found.cost * (1.0 - SAME) {
            break;
        }
        found.bound = found.bound.max(next.least);
        if next.whole {
            // It costs what it says and nothing is cheaper; but it was not found, so it has a node
            // twice.
            return BestFirstOutcome::RepeatedNodes(repeated_nodes(&runs_of(&labels, next.label)));
        }
        steps += 1;
        if labels.len() > MOST_LABELS || (steps.is_multiple_of(STEPS) && limit.is_reached()) {
            return BestFirstOutcome::Done;
        }
        let label = labels[next.label];
        let key = (label.layer * space.nodes + label.node, label.used);
        if cheapest.get(&key).is_some_and(|&cost| cost < label.cost) {
            continue;
        }
        for end in label.layer + 1..=space.chain.furthest_end(label.node, label.layer) {
            let cost = label.cost + space.chain.run_seconds(label.node, label.layer, end);
            if end == space.layers {
                if cost < found.cost {
                    let runs = runs_of(&labels, next.label);
                    if repeated_nodes(&runs).is_empty() {
                        found.offer_runs(space, Some(runs));
                    } else {
                        heap.push(OpenLabel {
                            least: cost,
                            layer: end,
                            label: next.label,
                            whole: true,
                        });
                    }
                }
                continue;
            }
            if cost + relaxed.cost_after(end, label.node) - label.left >= found.cost {
                continue;
            }
            for to in 0..space.nodes {
                let same_tier = tiers[to] == tiers[label.node];
                if same_tier && label.used & bits[to] != 0 {
                    continue;
                }
                let there = cost + space.hop_cost(end, label.node, to);
                let (used, left) = if same_tier {
                    (bits[to] | label.used, label.left - own[to])
                } else {
                    (bits[to], still[to] - own[to])
                };
                let least = there + relaxed.cost_from(end, to) - left;
                if least >= found.cost || least.is_nan() {
                    continue;
                }
                let known = cheapest.entry((end * space.nodes + to, used)).or_insert(f64::INFINITY);
                if there >= *known {
                    continue;
                }
                *known = there;
                heap.push(OpenLabel { least, layer: end, label: labels.len(), whole: false });
                labels.push(PathLabel {
                    layer: end,
                    node: to,
                    cost: there,
                    used,
                    left,
                    before: next.label,
                });
            }
        }
    }
    found.bound = found.cost;
    BestFirstOutcome::Done
}
