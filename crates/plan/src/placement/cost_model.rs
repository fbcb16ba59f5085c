//! A problem made ready for planning: what each layer costs on each node, and what each transfer
//! does.

use tessera_core::{Error, Result};

use super::plan::{ModelPlan, PlacementPlan};
use super::problem::{PlacementModel, PlacementProblem};

/// A problem with the settings of its exits fixed, as tables.
#[derive(Clone, Debug)]
pub struct PlacementCostModel<'a> {
    /// What it was made of.
    pub problem: &'a PlacementProblem,
    /// Its models.
    pub models: Vec<PlacementModel>,
    /// For each model, which setting each layer's exit has.
    pub settings: Vec<Vec<Option<usize>>>,
    /// The network.
    pub network: PlacementNetwork,
    /// One for each model.
    pub chains: Vec<LayerChain>,
}

/// The nodes and what lies between them.
#[derive(Clone, Debug)]
pub struct PlacementNetwork {
    /// How many nodes there are.
    pub nodes: usize,
    /// The tier of each node.
    pub tiers: Vec<u32>,
    /// Seconds per bit from node to node, row by row.
    seconds_per_bit: Vec<f64>,
    /// Seconds that a transfer takes beside that; infinite where there is no connection.
    latency: Vec<f64>,
}

impl PlacementNetwork {
    fn new(problem: &PlacementProblem) -> Self {
        let nodes = problem.nodes.len();
        let (mut seconds_per_bit, mut latency) =
            (vec![0.0; nodes * nodes], vec![0.0; nodes * nodes]);
        for from in 0..nodes {
            for to in (0..nodes).filter(|&to| to != from) {
                let rate = problem.throughput_bits_per_second[from][to].unwrap_or(0.0);
                let delay = problem.latency_ms[from][to].unwrap_or(0.0);
                let (per_bit, beside) =
                    if rate > 0.0 { (1.0 / rate, delay / 1e3) } else { (0.0, f64::INFINITY) };
                seconds_per_bit[from * nodes + to] = per_bit;
                latency[from * nodes + to] = beside;
            }
        }
        let tiers = problem.nodes.iter().map(|node| node.tier).collect();
        Self { nodes, tiers, seconds_per_bit, latency }
    }

    /// Seconds that so many bits take from one node to another; nothing where they are the same.
    #[inline]
    pub fn transfer_seconds(&self, bits: f64, from: usize, to: usize) -> f64 {
        let link = from * self.nodes + to;
        bits * self.seconds_per_bit[link] + self.latency[link]
    }

    /// Seconds per bit, and seconds beside that, from one node to another.
    #[inline]
    pub fn link_seconds(&self, from: usize, to: usize) -> (f64, f64) {
        let link = from * self.nodes + to;
        (self.seconds_per_bit[link], self.latency[link])
    }

    /// Whether a layer may follow from one node on another: never in a lower tier.
    #[inline]
    pub fn may_follow(&self, from: usize, to: usize) -> bool {
        self.tiers[to] >= self.tiers[from]
    }
}

/// A model's layers as tables.
#[derive(Clone, Debug)]
pub struct LayerChain {
    /// How many layers it has.
    pub layers: usize,
    /// The node that inputs come from, and answers go to.
    pub input: usize,
    /// How much its latency counts; the weights of all models sum to one.
    pub weight: f64,
    /// Share of requests that get to each layer.
    pub reach: Vec<f64>,
    /// Bits that go into each layer.
    pub bits: Vec<f64>,
    /// For each node, what each layer takes there, in seconds that are expected of a request: with
    /// what moving costs, and answers that leave behind it.
    times: Vec<f64>,
    /// For each node, the part of `times` that brings answers back.
    replies: Vec<f64>,
    /// For each node, what the layers before each layer take together: `layers + 1` figures a node.
    before: Vec<f64>,
    /// For each node and first layer, where a run of layers there must end for want of memory or
    /// storage.
    furthest: Vec<usize>,
    /// For each node, the layers that can't be there, as their answers would not get back.
    barred: Vec<bool>,
}

impl LayerChain {
    /// The same, where no run has a layer that can't be there.
    fn without_barred(mut self) -> Self {
        if self.barred.contains(&true) {
            let (barred, layers) = (self.barred.clone(), self.layers);
            self.restrict_nodes(|node, layer| !barred[node * layers + layer]);
        }
        self
    }

    /// Seconds that are expected of a request for the layers from `first` up to `end` on a node.
    #[inline]
    pub fn run_seconds(&self, node: usize, first: usize, end: usize) -> f64 {
        let row = node * (self.layers + 1);
        self.before[row + end] - self.before[row + first]
    }

    /// What the layers before each one take on a node, from none to all.
    #[inline]
    pub fn seconds_before(&self, node: usize) -> &[f64] {
        let row = node * (self.layers + 1);
        &self.before[row..row + self.layers + 1]
    }

    /// The end of the longest run of layers that a node can hold from `first` on: `first` if not
    /// even one layer fits.
    #[inline]
    pub fn furthest_end(&self, node: usize, first: usize) -> usize {
        self.furthest[node * self.layers + first]
    }

    /// Seconds that are expected of a request for bringing a layer its input from one node to
    /// another.
    #[inline]
    pub fn entry_seconds(
        &self,
        network: &PlacementNetwork,
        layer: usize,
        from: usize,
        to: usize,
    ) -> f64 {
        self.reach[layer] * network.transfer_seconds(self.bits[layer], from, to)
    }

    /// The latency of a model whose layers are on these nodes (equation 6.12), with what moving
    /// costs.
    pub fn expected_latency(&self, network: &PlacementNetwork, nodes: &[usize]) -> f64 {
        let mut at = self.input;
        let mut total = 0.0;
        for (layer, &node) in nodes.iter().enumerate() {
            if node != at {
                total += self.entry_seconds(network, layer, at, node);
                at = node;
            }
            total += self.layer_seconds(node, layer);
        }
        total
    }

    /// Seconds that are expected of a request for one layer on a node, with those of answers that
    /// leave behind it.
    #[inline]
    pub fn layer_seconds(&self, node: usize, layer: usize) -> f64 {
        self.times[node * self.layers + layer]
    }

    /// Seconds that are expected of a request for bringing back answers that leave behind a layer.
    #[inline]
    pub fn reply_seconds(&self, node: usize, layer: usize) -> f64 {
        self.replies[node * self.layers + layer]
    }

    /// The same for the first layers alone.
    pub(super) fn first_layers(&self, layers: usize) -> Self {
        let nodes = self.times.len() / self.layers;
        let rows = |width: usize, kept: usize| {
            (0..nodes).flat_map(move |node| node * width..node * width + kept)
        };
        Self {
            layers,
            input: self.input,
            weight: self.weight,
            reach: self.reach[..layers].to_vec(),
            bits: self.bits[..layers].to_vec(),
            times: rows(self.layers, layers).map(|at| self.times[at]).collect(),
            replies: rows(self.layers, layers).map(|at| self.replies[at]).collect(),
            before: rows(self.layers + 1, layers + 1).map(|at| self.before[at]).collect(),
            furthest: rows(self.layers, layers).map(|at| self.furthest[at].min(layers)).collect(),
            barred: rows(self.layers, layers).map(|at| self.barred[at]).collect(),
        }
    }

    /// Makes layers dearer: by `cost` for each node and layer.
    pub(super) fn add_costs(&mut self, cost: impl Fn(usize, usize) -> f64) {
        let nodes = self.before.len() / (self.layers + 1);
        for node in 0..nodes {
            let row = node * (self.layers + 1);
            let mut sum = 0.0;
            for layer in 0..self.layers {
                let more = cost(node, layer);
                self.times[node * self.layers + layer] += more;
                sum += more;
                self.before[row + layer + 1] += sum;
            }
        }
    }

    /// Lets runs of layers end before they take a node longer than so many seconds of a request.
    pub(super) fn limit_busy_seconds(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let nodes = self.before.len() / (self.layers + 1);
        for node in 0..nodes {
            for first in 0..self.layers {
                let mut end = self.furthest_end(node, first);
                while end > first && self.run_seconds(node, first, end) > seconds {
                    end -= 1;
                }
                self.furthest[node * self.layers + first] = end;
            }
        }
    }

    /// Lets runs of layers end where `allowed` says no for a node and layer.
    pub(super) fn restrict_nodes(&mut self, allowed: impl Fn(usize, usize) -> bool) {
        let nodes = self.before.len() / (self.layers + 1);
        for node in 0..nodes {
            let mut end = self.layers;
            for layer in (0..self.layers).rev() {
                if !allowed(node, layer) {
                    end = layer;
                }
                let furthest = &mut self.furthest[node * self.layers + layer];
                *furthest = (*furthest).min(end.max(layer));
            }
        }
    }
}

/// What is on the nodes already, while a model is placed.
#[derive(Clone, Debug)]
pub(super) struct OccupiedNodes {
    /// Memory in use, by node.
    pub(super) memory: Vec<f64>,
    /// Storage in use, by node.
    pub(super) storage: Vec<f64>,
    /// Blocks that are there, by node: they cost nothing once more.
    pub(super) blocks: Vec<Vec<String>>,
}

impl OccupiedNodes {
    /// Nothing is on any node.
    pub(super) fn empty(nodes: usize) -> Self {
        Self {
            memory: vec![0.0; nodes],
            storage: vec![0.0; nodes],
            blocks: vec![Vec::new(); nodes],
        }
    }

    /// Adds what a model's layers take up on these nodes: a block that is there counts once.
    pub(super) fn add_model(&mut self, model: &PlacementModel, nodes: &[usize]) {
        for (layer, &node) in model.layers.iter().zip(nodes) {
            if let Some(block) = &layer.block {
                if self.blocks[node].contains(block) {
                    continue;
                }
                self.blocks[node].push(block.clone());
            }
            self.memory[node] += layer.memory_bytes;
            self.storage[node] += layer.storage_bytes;
        }
    }
}

impl<'a> PlacementCostModel<'a> {
    /// The tables of a problem that was checked. With a previous plan, a layer that is not where
    /// that has it costs what moving does.
    pub fn new(
        problem: &'a PlacementProblem,
        settings: Vec<Vec<Option<usize>>>,
        previous: Option<&PlacementPlan>,
    ) -> Self {
        let models = problem.all_models();
        let network = PlacementNetwork::new(problem);
        let weights: f64 = models.iter().map(|model| model.weight).sum();
        let chains = models.iter().enumerate().map(|(number, model)| {
            let reach = model.reach_by_layer(&settings[number]);
            let layers = model.layers.len();
            let input = problem.input_of(model);
            let leaving = model.leaving_by_layer(&settings[number]);
            let reply_bits = model.reply_bytes.map(|bytes| bytes * 8.0);
            let mut times = Vec::with_capacity(network.nodes * layers);
            let mut replies = Vec::with_capacity(network.nodes * layers);
            let mut barred = Vec::with_capacity(network.nodes * layers);
            let mut before = Vec::with_capacity(network.nodes * (layers + 1));
            let old = previous.and_then(|plan| plan.models.get(number));
            for (at, node) in problem.nodes.iter().enumerate() {
                let mut sum = 0.0;
                before.push(sum);
                for (number, layer) in model.layers.iter().enumerate() {
                    let mut time = reach[number] * layer.time_on(node).unwrap_or(f64::INFINITY);
                    let stays = old.and_then(|old| old.nodes.get(number)).is_none_or(|&o| o == at);
                    if !stays {
                        time += move_seconds(problem, layer.storage_bytes);
                    }
                    let reply = match reply_bits {
                        Some(bits) if at != input && leaving[number] > 0.0 => {
                            leaving[number] * network.transfer_seconds(bits, at, input)
                        }
                        _ => 0.0,
                    };
                    // Sums with what is infinite say nothing: it is barred instead.
                    barred.push(!reply.is_finite());
                    let reply = if reply.is_finite() { reply } else { 0.0 };
                    time += reply;
                    replies.push(reply);
                    times.push(time);
                    sum += time;
                    before.push(sum);
                }
            }
            let bits = (0..layers).map(|layer| model.bytes_into(layer).unwrap_or(0.0) * 8.0);
            LayerChain {
                layers,
                input,
                weight: model.weight / weights,
                bits: bits.collect(),
                furthest: furthest_ends(problem, model, None),
                reach,
                times,
                replies,
                before,
                barred,
            }
            .without_barred()
        });
        let chains = chains.collect();
        Self { problem, models, settings, network, chains }
    }

    /// Adds what energy costs to times and transfers, at so many seconds a joule.
    pub(super) fn price_energy(&mut self, seconds_per_joule: f64) {
        let nodes = &self.problem.nodes;
        for (chain, model) in self.chains.iter_mut().zip(&self.models) {
            let reach = chain.reach.clone();
            chain.add_costs(|node, layer| {
                let watts = nodes[node].watts.unwrap_or(0.0);
                let time = model.layers[layer].time_on(&nodes[node]).unwrap_or(0.0);
                seconds_per_joule * watts * reach[layer] * time
            });
        }
        for (from, node) in nodes.iter().enumerate() {
            let joules_per_bit = node.joules_per_byte_sent.unwrap_or(0.0) / 8.0;
            let row = from * self.network.nodes;
            for to in (0..self.network.nodes).filter(|&to| to != from) {
                self.network.seconds_per_bit[row + to] += seconds_per_joule * joules_per_bit;
            }
        }
    }

    /// The weighted latency of a placement, with what moving costs.
    pub fn weighted_latency(&self, nodes: &[Vec<usize>]) -> f64 {
        let parts = self.chains.iter().zip(nodes);
        parts
            .map(|(chain, nodes)| chain.weight * chain.expected_latency(&self.network, nodes))
            .sum()
    }

    /// A placement as a plan, with the settings that this is for.
    pub fn plan_with_nodes(&self, nodes: Vec<Vec<usize>>) -> PlacementPlan {
        let models = nodes.into_iter().zip(&self.settings);
        let models =
            models.map(|(nodes, settings)| ModelPlan { nodes, settings: settings.clone() });
        PlacementPlan { models: models.collect() }
    }

    /// The chain of a model where other models occupy some of the nodes.
    pub(super) fn chain_beside(&self, model: usize, occupied: &OccupiedNodes) -> LayerChain {
        let mut chain = self.chains[model].clone();
        chain.furthest = furthest_ends(self.problem, &self.models[model], Some(occupied));
        chain.without_barred()
    }

    /// Says why a model fits nowhere: the first layer that can't be placed, and the nodes that were
    /// thought of. `placed` is how many layers can be.
    pub(super) fn does_not_fit(&self, model: usize, placed: usize) -> Error {
        let model = &self.models[model];
        let Some(layer) = model.layers.get(placed) else {
            return Error::invalid(format!("{}: no plan meets the constraints", model.name));
        };
        let name = match &layer.name {
            Some(name) => format!("layer {placed} ({name})"),
            None => format!("layer {placed}"),
        };
        let fits = |needed: f64, there: Option<f64>| there.is_none_or(|there| needed <= there);
        let alone = self.problem.nodes.iter().any(|node| {
            fits(layer.memory_bytes, node.memory_bytes)
                && fits(layer.storage_bytes, node.storage_bytes)
        });
        let nodes: Vec<String> = self
            .problem
            .nodes
            .iter()
            .map(|node| {
                if !fits(layer.memory_bytes, node.memory_bytes) {
                    return format!("{} {}", node.name, node.memory_bytes.unwrap_or(0.0));
                }
                match node.storage_bytes {
                    Some(bytes) if layer.storage_bytes > bytes => {
                        format!("{} {bytes} of storage", node.name)
                    }
                    _ => match node.memory_bytes {
                        Some(bytes) => format!("{} {bytes}", node.name),
                        None => node.name.clone(),
                    },
                }
            })
            .collect();
        let shown = match nodes.len() {
            0..=12 => nodes.join(", "),
            more => format!("{}, and {} more", nodes[..10].join(", "), more - 10),
        };
        let of = if self.problem.models.is_empty() {
            String::new()
        } else {
            format!(" of {}", model.name)
        };
        let needs = if layer.storage_bytes > 0.0 {
            format!("{} bytes of memory and {} of storage", layer.memory_bytes, layer.storage_bytes)
        } else {
            format!("{} bytes of memory", layer.memory_bytes)
        };
        Error::invalid(if alone {
            format!(
                "{name}{of} needs {needs}, which no node has left that may follow on those of the {placed} layers before it: {shown}"
            )
        } else {
            format!("{name}{of} needs {needs}, more than any node has: {shown}")
        })
    }
}

/// What it costs a request that a layer has to be moved.
pub(super) fn move_seconds(problem: &PlacementProblem, storage_bytes: f64) -> f64 {
    let moving = &problem.moving;
    let bytes = if moving.bits_per_second > 0.0 {
        storage_bytes * 8.0 / moving.bits_per_second
    } else {
        0.0
    };
    (moving.layer_ms / 1e3 + bytes) / moving.requests
}

/// For each node and first layer, where a run of layers must end for want of room.
fn furthest_ends(
    problem: &PlacementProblem,
    model: &PlacementModel,
    occupied: Option<&OccupiedNodes>,
) -> Vec<usize> {
    let layers = &model.layers;
    // Layers of the same block count once; what has no block is a block of its own.
    let mut names: Vec<&str> = Vec::new();
    let blocks: Vec<Option<usize>> = layers
        .iter()
        .map(|layer| {
            let name = layer.block.as_deref()?;
            Some(names.iter().position(|seen| *seen == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            }))
        })
        .collect();
    let mut all = Vec::with_capacity(problem.nodes.len() * layers.len());
    for (at, node) in problem.nodes.iter().enumerate() {
        let taken = |used: &[f64]| used.get(at).copied().unwrap_or(0.0);
        let memory = node.memory_bytes.unwrap_or(f64::INFINITY)
            - occupied.map_or(0.0, |occupied| taken(&occupied.memory));
        let storage = node.storage_bytes.unwrap_or(f64::INFINITY)
            - occupied.map_or(0.0, |occupied| taken(&occupied.storage));
        let mut there = vec![0usize; names.len()];
        if let Some(occupied) = occupied {
            for name in &occupied.blocks[at] {
                if let Some(block) = names.iter().position(|seen| seen == name) {
                    there[block] = 1;
                }
            }
        }
        let (mut end, mut used, mut stored) = (0, 0.0, 0.0);
        for first in 0..layers.len() {
            end = end.max(first);
            while end < layers.len() {
                let new = blocks[end].is_none_or(|block| there[block] == 0);
                let (bytes, kept) = if new {
                    (layers[end].memory_bytes, layers[end].storage_bytes)
                } else {
                    (0.0, 0.0)
                };
                if used + bytes > memory || stored + kept > storage {
                    break;
                }
                used += bytes;
                stored += kept;
                if let Some(block) = blocks[end] {
                    there[block] += 1;
                }
                end += 1;
            }
            all.push(end);
            if end > first {
                // The first layer leaves the window.
                let gone = blocks[first].is_none_or(|block| {
                    there[block] -= 1;
                    there[block] == 0
                });
                if gone {
                    used -= layers[first].memory_bytes;
                    stored -= layers[first].storage_bytes;
                }
            }
        }
    }
    all
}

/// The check that [`PlacementCostModel::new`] relies on: settings that exist.
pub(super) fn check_settings(
    models: &[PlacementModel],
    settings: &[Vec<Option<usize>>],
) -> Result<()> {
    let fit = models.len() == settings.len()
        && models.iter().zip(settings).all(|(model, settings)| {
            model.layers.len() == settings.len()
                && model.layers.iter().zip(settings).all(|(layer, setting)| match setting {
                    None => layer.exit.is_empty(),
                    Some(setting) => *setting < layer.exit.len(),
                })
        });
    if !fit {
        return Err(Error::invalid("thresholds: they don't belong to this problem's exits"));
    }
    Ok(())
}
