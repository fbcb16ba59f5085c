//! The bound: a dynamic programme over (layer, node) that forgets where it has been.
//!
//! A node's layers are contiguous, so a placement is a row of runs, each on a node of its own, and
//! memory and storage only say how far a run can go ([`LayerChain::furthest_end`]). What is left
//! out here is that no node has two runs. Where the best row of runs has no node twice, it is the
//! optimum.
//!
//! Where it has, a price on each node (charged for every run there, and taken off once) makes
//! coming back dear. For any prices, the best row's cost less all prices is a bound; good prices
//! make it tight.

use super::super::cost_model::{LayerChain, PlacementNetwork};

/// A run of layers on a node: where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacementRun {
    /// Its node.
    pub(super) node: usize,
    /// Its first layer.
    pub(super) first: usize,
}

/// The moves between nodes, with those that are not allowed made infinitely long.
#[derive(Debug)]
pub(super) struct RunSpace<'a> {
    pub(super) chain: &'a LayerChain,
    pub(super) network: &'a PlacementNetwork,
    pub(super) nodes: usize,
    pub(super) layers: usize,
    /// Seconds per bit, row by row; those beside are infinite where a move is not allowed.
    per_bit: Vec<f64>,
    beside: Vec<f64>,
}

impl<'a> RunSpace<'a> {
    pub(super) fn new(chain: &'a LayerChain, network: &'a PlacementNetwork) -> Self {
        let nodes = network.nodes;
        let (mut per_bit, mut beside) =
            (vec![0.0; nodes * nodes], vec![f64::INFINITY; nodes * nodes]);
        for from in 0..nodes {
            for to in (0..nodes).filter(|&to| to != from && network.may_follow(from, to)) {
                let link = from * nodes + to;
                (per_bit[link], beside[link]) = network.link_seconds(from, to);
            }
        }
        Self { chain, network, nodes, layers: chain.layers, per_bit, beside }
    }

    /// What a hop to another node before a layer costs; infinite where that is not allowed.
    #[inline]
    pub(super) fn hop_cost(&self, layer: usize, from: usize, to: usize) -> f64 {
        if self.beside[from * self.nodes + to].is_finite() {
            self.chain.entry_seconds(self.network, layer, from, to)
        } else {
            f64::INFINITY
        }
    }

    /// What it costs to bring the input to the first layer.
    pub(super) fn start_cost(&self, node: usize) -> f64 {
        if node == self.chain.input {
            0.0
        } else {
            self.chain.entry_seconds(self.network, 0, self.chain.input, node)
        }
    }

    /// What a row of runs costs.
    pub(super) fn total_cost(&self, runs: &[PlacementRun]) -> f64 {
        let Some(first) = runs.first() else { return f64::INFINITY };
        let ends = runs.iter().skip(1).map(|run| run.first).chain([self.layers]);
        let mut total = self.start_cost(first.node);
        let mut before: Option<usize> = None;
        for (run, end) in runs.iter().zip(ends) {
            if let Some(before) = before {
                total += self.hop_cost(run.first, before, run.node);
            }
            total += self.chain.run_seconds(run.node, run.first, end);
            before = Some(run.node);
        }
        total
    }

    /// The node of each layer.
    pub(super) fn layer_nodes(&self, runs: &[PlacementRun]) -> Vec<usize> {
        let ends = runs.iter().skip(1).map(|run| run.first).chain([self.layers]);
        let runs = runs.iter().zip(ends);
        runs.flat_map(|(run, end)| std::iter::repeat_n(run.node, end - run.first)).collect()
    }
}

/// What the rest costs at least, from everywhere.
#[derive(Debug)]
pub(super) struct RelaxedBound {
    nodes: usize,
    /// From a run that starts with a layer on a node, without that node's price: layer by layer.
    from: Vec<f64>,
    /// The end of that run.
    end: Vec<usize>,
    /// From the end of a run on a node before a layer.
    after: Vec<f64>,
    /// Where the next run is then.
    next: Vec<usize>,
}

impl RelaxedBound {
    /// Solves the programme with a price for each node.
    pub(super) fn new(space: &RunSpace<'_>, prices: &[f64]) -> Self {
        let (layers, nodes) = (space.layers, space.nodes);
        let mut this = Self {
            nodes,
            from: vec![f64::INFINITY; layers * nodes],
            end: vec![0; layers * nodes],
            after: vec![f64::INFINITY; (layers + 1) * nodes],
            next: vec![usize::MAX; (layers + 1) * nodes],
        };
        this.after[layers * nodes..].fill(0.0);
        this.solve_with_prices(space, prices);
        this
    }

    /// Solves it again with other prices.
    pub(super) fn solve_with_prices(&mut self, space: &RunSpace<'_>, prices: &[f64]) {
        let (layers, nodes) = (space.layers, space.nodes);
        let mut with_price = vec![0.0; nodes];
        for layer in (0..layers).rev() {
            for node in 0..nodes {
                let before = space.chain.seconds_before(node);
                let furthest = space.chain.furthest_end(node, layer);
                let (mut best, mut end) = (f64::INFINITY, layer);
                for at in layer + 1..=furthest {
                    let value = before[at] + self.after[at * nodes + node];
                    if value < best {
                        best = value;
                        end = at;
                    }
                }
                self.from[layer * nodes + node] = best - before[layer];
                self.end[layer * nodes + node] = end;
                with_price[node] = best - before[layer] + prices[node];
            }
            if layer == 0 {
                break;
            }
            let (bits, reach) = (space.chain.bits[layer], space.chain.reach[layer]);
            for node in 0..nodes {
                let row = node * nodes..(node + 1) * nodes;
                let (mut best, mut next) = (f64::INFINITY, usize::MAX);
                let links = space.per_bit[row.clone()].iter().zip(&space.beside[row]);
                for (to, ((per_bit, beside), rest)) in links.zip(&with_price).enumerate() {
                    // A link that is not there is infinitely long even for who never gets here.
                    let value = if beside.is_finite() {
                        reach * (bits * per_bit + beside) + rest
                    } else {
                        f64::INFINITY
                    };
                    if value < best {
                        best = value;
                        next = to;
                    }
                }
                self.after[layer * nodes + node] = best;
                self.next[layer * nodes + node] = next;
            }
        }
    }

    /// The rest from a run that starts there, that node's price not included.
    #[inline]
    pub(super) fn cost_from(&self, layer: usize, node: usize) -> f64 {
        self.from[layer * self.nodes + node]
    }

    /// The rest after a run that ends there.
    #[inline]
    pub(super) fn cost_after(&self, layer: usize, node: usize) -> f64 {
        self.after[layer * self.nodes + node]
    }

    /// The best row of runs and its cost with prices; none where there is no way through.
    pub(super) fn best_runs(
        &self,
        space: &RunSpace<'_>,
        prices: &[f64],
    ) -> Option<(Vec<PlacementRun>, f64)> {
        let start = |node: usize| space.start_cost(node) + prices[node] + self.cost_from(0, node);
        let node = (0..self.nodes).min_by(|&a, &b| start(a).total_cmp(&start(b)))?;
        let cost = start(node);
        if !cost.is_finite() {
            return None;
        }
        let mut runs = vec![PlacementRun { node, first: 0 }];
        while let Some(&PlacementRun { node, first }) = runs.last() {
            let end = self.end[first * self.nodes + node];
            if end >= space.layers {
                break;
            }
            runs.push(PlacementRun { node: self.next[end * self.nodes + node], first: end });
        }
        Some((runs, cost))
    }
}

/// How many layers can be placed at all, forgetting that no node has two runs.
pub(super) fn relaxed_placeable_layers(space: &RunSpace<'_>) -> usize {
    let (layers, nodes) = (space.layers, space.nodes);
    let mut open = vec![false; (layers + 1) * nodes];
    for node in 0..nodes {
        open[node] = space.start_cost(node).is_finite();
    }
    let mut reached = 0;
    for layer in 0..layers {
        for node in (0..nodes).filter(|&node| open[layer * nodes + node]).collect::<Vec<_>>() {
            let furthest = space.chain.furthest_end(node, layer);
            reached = reached.max(furthest);
            for end in (layer + 1..=furthest).filter(|&end| end < layers) {
                for to in 0..nodes {
                    if space.beside[node * nodes + to].is_finite() {
                        open[end * nodes + to] = true;
                    }
                }
            }
        }
    }
    reached
}
