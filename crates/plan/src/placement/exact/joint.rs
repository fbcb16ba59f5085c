//! Several models on the same nodes: what they need of a node together is what ties them.
//!
//! The bound puts a price on each node's memory and storage, so that every model can be placed by
//! itself by the dynamic programme; a block that several layers are is charged a share to each,
//! which is never more than it takes up. Where the best placements at the best prices don't fit, or
//! have a node twice, the search splits on one layer: on that node, or not.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use super::super::cost_model::{LayerChain, OccupiedNodes, PlacementCostModel};
use super::propagation::PlacementConstraints;
use super::relaxed::{PlacementRun, RelaxedBound, RunSpace};
use super::search;
use crate::SearchLimit;

/// Rounds of better prices, at the start and after each split.
const ROUNDS: (usize, usize) = (120, 20);
/// Splits at most.
const MOST_SPLITS: usize = 200_000;
/// How far apart costs are that count as equal.
const SAME: f64 = 1e-12;

/// The best placement of all models that was found, and the bound.
pub(super) struct JointSearchResult {
    /// The node of each layer of each model; none where nothing was found.
    pub(super) nodes: Option<Vec<Vec<usize>>>,
    pub(super) cost: f64,
    pub(super) bound: f64,
}

/// What all of it needs, as numbers.
struct JointSearch<'a> {
    cost_model: &'a PlacementCostModel<'a>,
    /// For each model and layer, its block as a number.
    blocks: Vec<Vec<usize>>,
    /// How many layers are each block.
    uses: Vec<f64>,
    memory: Vec<f64>,
    storage: Vec<f64>,
    /// Memory and storage of each block, and of each node.
    sizes: Vec<[f64; 2]>,
    rooms: Vec<[f64; 2]>,
}

/// What a part of the search knows: which layer may be where, and the prices that were good before.
#[derive(Clone)]
struct JointSubproblem {
    bound: f64,
    /// For each model, by node and layer.
    allowed: Vec<Vec<bool>>,
    prices: Vec<f64>,
    /// The layer to split on, and its node.
    split: Option<(usize, usize, usize)>,
}

impl PartialEq for JointSubproblem {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for JointSubproblem {}

impl PartialOrd for JointSubproblem {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for JointSubproblem {
    fn cmp(&self, other: &Self) -> Ordering {
        other.bound.total_cmp(&self.bound)
    }
}

/// Searches for the best placement of all models.
pub(super) fn search_joint_placement(
    cost_model: &PlacementCostModel<'_>,
    limit: &SearchLimit<'_>,
) -> JointSearchResult {
    let joint = JointSearch::new(cost_model);
    let mut found = JointSearchResult { nodes: None, cost: f64::INFINITY, bound: 0.0 };
    one_by_one(cost_model, &mut found, limit);
    let nodes = cost_model.network.nodes;
    let mut root = JointSubproblem {
        bound: 0.0,
        allowed: cost_model.chains.iter().map(|chain| vec![true; nodes * chain.layers]).collect(),
        prices: vec![0.0; 2 * nodes],
        split: None,
    };
    if joint.room_needed().propagate_all(&mut root.allowed) {
        joint.raise_bound(&mut root, &mut found, ROUNDS.0, limit);
    } else {
        root.bound = f64::INFINITY;
    }
    let mut heap = BinaryHeap::from([root]);
    let mut parts = 0usize;
    while let Some(part) = heap.pop() {
        if part.bound >= found.cost * (1.0 - SAME) {
            found.bound = found.cost;
            return found;
        }
        found.bound = found.bound.max(part.bound);
        parts += 1;
        if parts > MOST_SPLITS || limit.is_reached() {
            return found;
        }
        let Some((model, layer, node)) = part.split else { continue };
        for here in [true, false] {
            let mut next = part.clone();
            let layers = cost_model.chains[model].layers;
            for other in 0..nodes {
                if (other == node) != here {
                    next.allowed[model][other * layers + layer] = false;
                }
            }
            if !joint.room_needed().propagate_all(&mut next.allowed) {
                continue;
            }
            joint.raise_bound(&mut next, &mut found, ROUNDS.1, limit);
            next.bound = next.bound.max(part.bound);
            if next.bound < found.cost * (1.0 - SAME) {
                heap.push(next);
            }
        }
    }
    found.bound = found.cost;
    found
}

impl<'a> JointSearch<'a> {
    fn new(cost_model: &'a PlacementCostModel<'a>) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut uses: Vec<f64> = Vec::new();
        let mut sizes: Vec<[f64; 2]> = Vec::new();
        let mut blocks = Vec::new();
        for model in &cost_model.models {
            let mut of_model = Vec::new();
            for layer in &model.layers {
                let fresh = uses.len();
                let number = match layer.block.as_deref() {
                    Some(name) => *numbers.entry(name).or_insert(fresh),
                    None => fresh,
                };
                if number == fresh {
                    uses.push(1.0);
                    sizes.push([layer.memory_bytes, layer.storage_bytes]);
                } else {
                    uses[number] += 1.0;
                }
                of_model.push(number);
            }
            blocks.push(of_model);
        }
        let room = |bytes: Option<f64>| bytes.unwrap_or(f64::INFINITY);
        let nodes = &cost_model.problem.nodes;
        let rooms = nodes.iter().map(|node| [room(node.memory_bytes), room(node.storage_bytes)]);
        Self {
            rooms: rooms.collect(),
            sizes,
            cost_model,
            blocks,
            uses,
            memory: nodes.iter().map(|node| room(node.memory_bytes)).collect(),
            storage: nodes.iter().map(|node| room(node.storage_bytes)).collect(),
        }
    }

    fn room_needed(&self) -> PlacementConstraints<'_> {
        let network = &self.cost_model.network;
        PlacementConstraints {
            network,
            blocks: &self.blocks,
            sizes: &self.sizes,
            rooms: &self.rooms,
        }
    }

    /// What a layer needs beyond others of its block: memory and storage.
    fn layer_share(&self, model: usize, layer: usize) -> (f64, f64) {
        let described = &self.cost_model.models[model].layers[layer];
        let uses = self.uses[self.blocks[model][layer]];
        (described.memory_bytes / uses, described.storage_bytes / uses)
    }

    /// Memory and storage in use on each node.
    fn node_usage(&self, nodes: &[Vec<usize>]) -> (Vec<f64>, Vec<f64>) {
        let count = self.cost_model.network.nodes;
        let (mut memory, mut storage) = (vec![0.0; count], vec![0.0; count]);
        let mut there = vec![false; count * self.uses.len()];
        for (model, nodes) in nodes.iter().enumerate() {
            for (layer, &node) in nodes.iter().enumerate() {
                let block = &mut there[node * self.uses.len() + self.blocks[model][layer]];
                if !std::mem::replace(block, true) {
                    let described = &self.cost_model.models[model].layers[layer];
                    memory[node] += described.memory_bytes;
                    storage[node] += described.storage_bytes;
                }
            }
        }
        (memory, storage)
    }

    /// Raises the bound of a part by better prices, offers what fits on the way, and finds what to
    /// split on.
    fn raise_bound(
        &self,
        part: &mut JointSubproblem,
        found: &mut JointSearchResult,
        rounds: usize,
        limit: &SearchLimit<'_>,
    ) {
        let nodes = self.cost_model.network.nodes;
        let mut prices = part.prices.clone();
        let mut best = f64::NEG_INFINITY;
        let (mut scale, mut since) = (1.0, 0);
        for _ in 0..rounds {
            let Some((placed, runs, cost)) = self.at_prices(part, &prices) else {
                // Some model has no way through.
                part.bound = f64::INFINITY;
                return;
            };
            let room = self.memory.iter().chain(&self.storage);
            let value: f64 = room.zip(&prices).filter(|&(_, &p)| p > 0.0).map(|(r, p)| r * p).sum();
            let bound = cost - value;
            since = if bound > best + best.abs() * 1e-9 { 0 } else { since + 1 };
            if bound > best {
                best = bound;
                part.bound = bound;
                part.prices.clone_from(&prices);
                part.split = self.choose_split(part, &placed, &runs);
            }
            self.offer_placement(found, &placed, &runs);
            if part.bound >= found.cost * (1.0 - SAME) || limit.is_reached() {
                return;
            }
            if since >= 6 {
                scale *= 0.5;
                since = 0;
            }
            // How far each node is over, as a share of what there is.
            let mut slope = vec![0.0; 2 * nodes];
            for (model, placed) in placed.iter().enumerate() {
                for (layer, &node) in placed.iter().enumerate() {
                    let (memory, storage) = self.layer_share(model, layer);
                    slope[node] += memory;
                    slope[nodes + node] += storage;
                }
            }
            let rooms = self.memory.iter().chain(&self.storage);
            let mut length = 0.0;
            for ((slope, &room), &price) in slope.iter_mut().zip(rooms).zip(&prices) {
                *slope -= room;
                if !room.is_finite() || (*slope < 0.0 && price <= 0.0) {
                    *slope = 0.0;
                }
                length += *slope * *slope;
            }
            if length == 0.0 {
                return;
            }
            let target = if found.cost.is_finite() { found.cost } else { bound.abs() * 1.2 };
            let step = scale * (target - bound).max(target * 1e-6) / length;
            prices.iter_mut().zip(&slope).for_each(|(p, slope)| *p = (*p + step * slope).max(0.0));
        }
    }

    /// The best placement of each model by itself at these prices: nodes, runs, and the cost of
    /// all.
    #[allow(clippy::type_complexity)]
    fn at_prices(
        &self,
        part: &JointSubproblem,
        prices: &[f64],
    ) -> Option<(Vec<Vec<usize>>, Vec<Vec<PlacementRun>>, f64)> {
        let network = &self.cost_model.network;
        let (mut nodes, mut all_runs, mut total) = (Vec::new(), Vec::new(), 0.0);
        for (model, chain) in self.cost_model.chains.iter().enumerate() {
            let mut priced: LayerChain = chain.clone();
            let weight = chain.weight;
            priced.add_costs(|node, layer| {
                let (memory, storage) = self.layer_share(model, layer);
                (prices[node] * memory + prices[network.nodes + node] * storage) / weight
            });
            let allowed = &part.allowed[model];
            priced.restrict_nodes(|node, layer| allowed[node * chain.layers + layer]);
            let space = RunSpace::new(&priced, network);
            let none = vec![0.0; network.nodes];
            let (runs, cost) = RelaxedBound::new(&space, &none).best_runs(&space, &none)?;
            total += weight * cost;
            nodes.push(space.layer_nodes(&runs));
            all_runs.push(runs);
        }
        Some((nodes, all_runs, total))
    }

    fn overfull_node(&self, nodes: &[Vec<usize>]) -> Option<usize> {
        let (memory, storage) = self.node_usage(nodes);
        let over = |used: &[f64], room: &[f64], node: usize| used[node] > room[node] * (1.0 + SAME);
        (0..memory.len())
            .find(|&n| over(&memory, &self.memory, n) || over(&storage, &self.storage, n))
    }

    fn offer_placement(
        &self,
        found: &mut JointSearchResult,
        placed: &[Vec<usize>],
        runs: &[Vec<PlacementRun>],
    ) {
        if self.overfull_node(placed).is_some()
            || runs.iter().any(|runs| search::has_repeated_node(runs))
        {
            return;
        }
        let cost = self.cost_model.weighted_latency(placed);
        if cost < found.cost {
            found.cost = cost;
            found.nodes = Some(placed.to_vec());
        }
    }

    /// The layer to split on: one on a node that is too full, or that has two runs; else any that
    /// is still open.
    fn choose_split(
        &self,
        part: &JointSubproblem,
        placed: &[Vec<usize>],
        runs: &[Vec<PlacementRun>],
    ) -> Option<(usize, usize, usize)> {
        let count = self.cost_model.network.nodes;
        let open = |model: usize, layer: usize| {
            let layers = self.cost_model.chains[model].layers;
            (0..count).filter(|node| part.allowed[model][node * layers + layer]).count() > 1
        };
        let layers = || {
            let models = placed.iter().enumerate();
            models.flat_map(|(model, nodes)| {
                nodes.iter().enumerate().map(move |(layer, &node)| (model, layer, node))
            })
        };
        if let Some(full) = self.overfull_node(placed) {
            let here = layers().filter(|&(model, layer, node)| node == full && open(model, layer));
            let size =
                |&(model, layer, _): &(usize, usize, usize)| self.layer_share(model, layer).0;
            let largest = here.max_by(|a, b| size(a).total_cmp(&size(b)));
            if largest.is_some() {
                return largest;
            }
        }
        for (model, runs) in runs.iter().enumerate() {
            for (number, run) in runs.iter().enumerate() {
                let again = runs[..number].iter().any(|before| before.node == run.node);
                if again && open(model, run.first) {
                    return Some((model, run.first, run.node));
                }
            }
        }
        layers().find(|&(model, layer, _)| open(model, layer))
    }
}

/// Places the models one after the other, each beside those that are there, in several orders, and
/// then each again as long as that makes it better.
fn one_by_one(
    cost_model: &PlacementCostModel<'_>,
    found: &mut JointSearchResult,
    limit: &SearchLimit<'_>,
) {
    let count = cost_model.chains.len();
    let bytes = |model: usize| -> f64 {
        cost_model.models[model].layers.iter().map(|layer| layer.memory_bytes).sum()
    };
    let mut by_weight: Vec<usize> = (0..count).collect();
    by_weight.sort_by(|&a, &b| cost_model.chains[b].weight.total_cmp(&cost_model.chains[a].weight));
    let mut by_size: Vec<usize> = (0..count).collect();
    by_size.sort_by(|&a, &b| bytes(b).total_cmp(&bytes(a)));
    let mut backwards = by_size.clone();
    backwards.reverse();
    for order in [by_weight, by_size, backwards] {
        let mut placed: Vec<Option<Vec<usize>>> = vec![None; count];
        for round in 0..10 {
            let mut changed = false;
            for &model in &order {
                let old = placed[model].take();
                let chain = cost_model.chain_beside(model, &occupied_by(cost_model, &placed));
                let space = RunSpace::new(&chain, &cost_model.network);
                let new =
                    search::search_runs(&space, limit).runs.map(|runs| space.layer_nodes(&runs));
                changed |= new != old;
                placed[model] = new;
            }
            if !changed || limit.is_reached() || (round == 0 && placed.iter().any(Option::is_none))
            {
                break;
            }
        }
        let nodes: Option<Vec<Vec<usize>>> = placed.into_iter().collect();
        if let Some(nodes) = nodes {
            let cost = cost_model.weighted_latency(&nodes);
            if cost < found.cost {
                found.cost = cost;
                found.nodes = Some(nodes);
            }
        }
    }
}

/// What the models that are placed take up.
fn occupied_by(
    cost_model: &PlacementCostModel<'_>,
    placed: &[Option<Vec<usize>>],
) -> OccupiedNodes {
    let mut all = OccupiedNodes::empty(cost_model.network.nodes);
    for (model, nodes) in cost_model.models.iter().zip(placed) {
        all.add_model(model, nodes.as_deref().unwrap_or_default());
    }
    all
}
