//! Where the bound's best row of runs has a node twice: prices that make that dear, good rows by a narrow
//! search, and then a search through all that could be better, best first, until nothing could.
//!
//! The last one remembers which nodes of the tier it has used, and only of those nodes that it is
//! tempted to use twice: others are added when a row turns out to have them twice (state space
//! relaxation that is undone where it matters). Two ways to the same place with the same memory differ
//! in nothing but cost, so the dearer is dropped.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::improve::improve;
use super::relaxed::{Relaxed, Run, Space};
use crate::Limit;

/// Rounds of better prices.
const ROUNDS: usize = 300;
/// Ways that the narrow search keeps at each layer.
const BEAM: usize = 48;
/// Ways that the search through all keeps at most.
const MOST_WAYS: usize = 6_000_000;
/// Steps between two questions whether it is time to stop.
const STEPS: usize = 256;
/// How far apart costs are that count as equal.
const SAME: f64 = 1e-13;

/// The best row of runs that was found, and the bound.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// None where nothing was found.
    pub(super) runs: Option<Vec<Run>>,
    pub(super) cost: f64,
    pub(super) bound: f64,
}

/// Searches for the best row of runs in which no node has two.
pub(super) fn search(space: &Space<'_>, limit: &Limit<'_>) -> Found {
    let mut prices = vec![0.0; space.nodes];
    let mut relaxed = Relaxed::new(space, &prices);
    let Some((runs, cost)) = relaxed.best(space, &prices) else {
        return Found { runs: None, cost: f64::INFINITY, bound: f64::INFINITY };
    };
    let repeated = repeated(&runs);
    if repeated.is_empty() {
        return Found { cost: space.cost(&runs), bound: cost, runs: Some(runs) };
    }
    let mut found = Found { runs: None, cost: f64::INFINITY, bound: cost };
    let mut tempting = vec![0usize; space.nodes];
    repeated.iter().for_each(|&node| tempting[node] += 1);
    found.offer(space, narrow(space, &relaxed, &prices, found.cost));
    improve_prices(space, &mut relaxed, &mut prices, &mut found, &mut tempting, limit);
    if found.cost <= found.bound * (1.0 + SAME) || limit.reached() {
        return found;
    }
    relaxed.solve(space, &prices);
    found.offer(space, narrow(space, &relaxed, &prices, found.cost));
    if let Some(runs) = found.runs.take() {
        found.runs = Some(improve(space, &runs, limit));
        found.cost = found.runs.as_deref().map_or(f64::INFINITY, |runs| space.cost(runs));
    }
    // The nodes that were used twice most often come first; the rest follows when it has to.
    let mut order: Vec<usize> = (0..space.nodes).filter(|&node| tempting[node] > 0).collect();
    order.sort_by_key(|&node| std::cmp::Reverse(tempting[node]));
    let mut remembered = vec![false; space.nodes];
    order.iter().for_each(|&node| remembered[node] = true);
    loop {
        match through_all(space, &relaxed, &prices, &remembered, &mut found, limit) {
            Through::Done => return found,
            Through::Twice(nodes) if nodes.iter().all(|&node| remembered[node]) => return found,
            Through::Twice(nodes) => nodes.iter().for_each(|&node| remembered[node] = true),
        }
    }
}

impl Found {
    fn offer(&mut self, space: &Space<'_>, runs: Option<Vec<Run>>) {
        if let Some(runs) = runs {
            let cost = space.cost(&runs);
            if cost < self.cost {
                self.cost = cost;
                self.runs = Some(runs);
            }
        }
    }
}

/// Whether a node has more than one run.
pub(super) fn repeats(runs: &[Run]) -> bool {
    !repeated(runs).is_empty()
}

/// The nodes that have more than one run.
fn repeated(runs: &[Run]) -> Vec<usize> {
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
    space: &Space<'_>,
    relaxed: &mut Relaxed,
    prices: &mut Vec<f64>,
    found: &mut Found,
    tempting: &mut [usize],
    limit: &Limit<'_>,
) {
    let mut at = prices.clone();
    let mut scale = 1.0;
    let mut since = 0;
    for round in 0..ROUNDS {
        relaxed.solve(space, &at);
        let Some((runs, cost)) = relaxed.best(space, &at) else { return };
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
        let twice = repeated(&runs);
        twice.iter().for_each(|&node| tempting[node] += 1);
        if twice.is_empty() {
            found.offer(space, Some(runs.clone()));
        }
        if round % 25 == 24 {
            found.offer(space, narrow(space, relaxed, &at, found.cost));
        }
        if found.cost <= found.bound * (1.0 + SAME) || limit.reached() {
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

/// A way to the start of a run.
#[derive(Clone, Copy, Debug)]
struct Way {
    layer: usize,
    node: usize,
    /// What it cost to get here, without prices.
    cost: f64,
    /// Nodes of this tier that it has used, as far as they are remembered, this one included.
    used: u128,
    /// The prices of the nodes that it can still use, together.
    left: f64,
    /// The way that it goes on from.
    before: usize,
}

const NOWHERE: usize = usize::MAX;

fn runs_of(ways: &[Way], mut at: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    while at != NOWHERE {
        runs.push(Run { node: ways[at].node, first: ways[at].layer });
        at = ways[at].before;
    }
    runs.reverse();
    runs
}

fn has_used(ways: &[Way], mut at: usize, node: usize) -> bool {
    while at != NOWHERE {
        if ways[at].node == node {
            return true;
        }
        at = ways[at].before;
    }
    false
}

/// Goes through the layers and keeps the few ways that look best at each; never uses a node twice.
fn narrow(space: &Space<'_>, relaxed: &Relaxed, prices: &[f64], known: f64) -> Option<Vec<Run>> {
    let mut ways: Vec<Way> = Vec::new();
    let mut waiting: Vec<Vec<(f64, Way)>> = vec![Vec::new(); space.layers];
    for node in 0..space.nodes {
        let cost = space.start(node);
        let looks = cost + prices[node] + relaxed.from(0, node);
        if looks.is_finite() {
            waiting[0]
                .push((looks, Way { layer: 0, node, cost, used: 0, left: 0.0, before: NOWHERE }));
        }
    }
    let (mut best, mut end) = (known, None);
    for layer in 0..space.layers {
        let mut here = std::mem::take(&mut waiting[layer]);
        here.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Ways with the same node and the same nodes before are told apart by cost alone, but seldom
        // worth finding: what matters is that some of each node survive.
        let mut of_node = vec![0usize; space.nodes];
        let mut kept = 0;
        for (_, way) in here {
            of_node[way.node] += 1;
            if of_node[way.node] > BEAM / 4 {
                continue;
            }
            kept += 1;
            if kept > BEAM {
                break;
            }
            let index = ways.len();
            ways.push(way);
            for run_end in layer + 1..=space.chain.furthest(way.node, layer) {
                let cost = way.cost + space.chain.run(way.node, layer, run_end);
                if run_end == space.layers {
                    if cost < best {
                        best = cost;
                        end = Some(index);
                    }
                    continue;
                }
                for to in 0..space.nodes {
                    let there = cost + space.hop(run_end, way.node, to);
                    let looks = there + prices[to] + relaxed.from(run_end, to);
                    if looks.is_finite() && !has_used(&ways, index, to) {
                        let (used, left) = (0, 0.0);
                        let next = Way {
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
    end.map(|at| runs_of(&ways, at))
}

/// A way that waits, or a whole row of runs, by what it must cost at least.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    least: f64,
    layer: usize,
    way: usize,
    whole: bool,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// The largest is what a heap gives first: least cost, then furthest along.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .least
            .total_cmp(&self.least)
            .then(self.layer.cmp(&other.layer))
            .then(other.way.cmp(&self.way))
    }
}

/// A quick hash for keys that nobody chooses to do harm.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn mix(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.mix(u64::from(byte)));
    }

    fn write_u128(&mut self, value: u128) {
        self.mix(value as u64);
        self.mix((value >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

enum Through {
    /// Nothing better is left, or it is time to stop.
    Done,
    /// The best row has these nodes twice.
    Twice(Vec<usize>),
}

/// Searches best first through all ways that could be better than what was found.
fn through_all(
    space: &Space<'_>,
    relaxed: &Relaxed,
    prices: &[f64],
    remembered: &[bool],
    found: &mut Found,
    limit: &Limit<'_>,
) -> Through {
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
    let mut ways: Vec<Way> = Vec::new();
    let mut cheapest: HashMap<(usize, u128), f64, BuildHasherDefault<Mix>> = HashMap::default();
    let mut heap: BinaryHeap<Waiting> = BinaryHeap::new();
    for node in 0..space.nodes {
        let left = still[node] - own[node];
        let cost = space.start(node);
        let way = Way { layer: 0, node, cost, used: bits[node], left, before: NOWHERE };
        let least = way.cost + relaxed.from(0, node) - left;
        if least.is_finite() && least < found.cost {
            heap.push(Waiting { least, layer: 0, way: ways.len(), whole: false });
            ways.push(way);
        }
    }
    let mut steps = 0usize;
    while let Some(next) = heap.pop() {
        if next.least >= found.cost * (1.0 - SAME) {
            break;
        }
        found.bound = found.bound.max(next.least);
        if next.whole {
            // It costs what it says and nothing is cheaper; but it was not found, so it has a node twice.
            return Through::Twice(repeated(&runs_of(&ways, next.way)));
        }
        steps += 1;
        if ways.len() > MOST_WAYS || (steps.is_multiple_of(STEPS) && limit.reached()) {
            return Through::Done;
        }
        let way = ways[next.way];
        let key = (way.layer * space.nodes + way.node, way.used);
        if cheapest.get(&key).is_some_and(|&cost| cost < way.cost) {
            continue;
        }
        for end in way.layer + 1..=space.chain.furthest(way.node, way.layer) {
            let cost = way.cost + space.chain.run(way.node, way.layer, end);
            if end == space.layers {
                if cost < found.cost {
                    let runs = runs_of(&ways, next.way);
                    if repeated(&runs).is_empty() {
                        found.offer(space, Some(runs));
                    } else {
                        heap.push(Waiting { least: cost, layer: end, way: next.way, whole: true });
                    }
                }
                continue;
            }
            if cost + relaxed.after(end, way.node) - way.left >= found.cost {
                continue;
            }
            for to in 0..space.nodes {
                let same_tier = tiers[to] == tiers[way.node];
                if same_tier && way.used & bits[to] != 0 {
                    continue;
                }
                let there = cost + space.hop(end, way.node, to);
                let (used, left) = match same_tier {
                    true => (bits[to] | way.used, way.left - own[to]),
                    false => (bits[to], still[to] - own[to]),
                };
                let least = there + relaxed.from(end, to) - left;
                if least >= found.cost || least.is_nan() {
                    continue;
                }
                let known = cheapest.entry((end * space.nodes + to, used)).or_insert(f64::INFINITY);
                if there >= *known {
                    continue;
                }
                *known = there;
                heap.push(Waiting { least, layer: end, way: ways.len(), whole: false });
                ways.push(Way { layer: end, node: to, cost: there, used, left, before: next.way });
            }
        }
    }
    found.bound = found.cost;
    Through::Done
}
