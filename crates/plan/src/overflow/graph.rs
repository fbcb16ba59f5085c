//! A problem that was checked: blocks by number, with their neighbours beside them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tessera_core::{Error, Result};

use super::problem::{CopyRates, OverflowDevice, OverflowProblem};
use crate::validation::{require_figure, require_positive, require_unique_names};

/// No block.
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// One end of an edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgeEnd {
    /// The block at the other end.
    pub(super) block: u32,
    /// The edge, by number.
    pub(super) edge: u32,
    /// How long it takes to copy it to each device.
    pub(super) copy_us: [f64; 2],
}

/// A problem that was checked, ready to be asked millions of times.
#[derive(Clone, Debug)]
pub(super) struct OverflowGraph {
    /// Per block, its time on each device; infinite where it can't run.
    pub(super) times: Vec<[f64; 2]>,
    /// Per block, when its inputs from the host are on each device.
    pub(super) inputs: Vec<[f64; 2]>,
    /// Per block, how long its results take from each device to the host.
    pub(super) outputs: Vec<[f64; 2]>,
    /// All blocks, each after those whose outputs it takes; otherwise as the problem lists them.
    pub(super) order: Vec<u32>,
    /// Per block, its place in that order.
    pub(super) places: Vec<u32>,
    /// Per block, the one that it is run right after where both are on one device: its only input,
    /// of which it is the only user. [`NO_BLOCK`] where there is no such block.
    pub(super) chained_to: Vec<u32>,
    /// The other way round.
    pub(super) chained_by: Vec<u32>,
    /// See [`OverflowProblem::dispatch_us`].
    pub(super) dispatch_us: f64,
    predecessors: AdjacencyList,
    successors: AdjacencyList,
}

/// Per block some links, in one list.
#[derive(Clone, Debug)]
struct AdjacencyList {
    starts: Vec<u32>,
    links: Vec<EdgeEnd>,
}

impl AdjacencyList {
    /// `links` by the block that they belong to, in their order.
    fn new(blocks: usize, links: &[(u32, EdgeEnd)]) -> Self {
        let mut starts = vec![0u32; blocks + 1];
        for &(block, _) in links {
            starts[block as usize + 1] += 1;
        }
        for block in 0..blocks {
            starts[block + 1] += starts[block];
        }
        let mut next = starts.clone();
        let unset = EdgeEnd { block: NO_BLOCK, edge: NO_BLOCK, copy_us: [0.0; 2] };
        let mut sorted = vec![unset; links.len()];
        for &(block, link) in links {
            let at = &mut next[block as usize];
            sorted[*at as usize] = link;
            *at += 1;
        }
        Self { starts, links: sorted }
    }

    fn edges_of(&self, block: usize) -> &[EdgeEnd] {
        &self.links[self.starts[block] as usize..self.starts[block + 1] as usize]
    }
}

impl OverflowGraph {
    pub(super) fn new(problem: &OverflowProblem) -> Result<Self> {
        if problem.blocks.is_empty() {
            return Err(Error::invalid("blocks: none, expected at least one"));
        }
        require_unique_names("blocks", problem.blocks.iter().map(|block| block.name.as_str()))?;
        let rates = &problem.rates;
        require_positive("rates.cpu_to_gpu_bytes_per_second", rates.cpu_to_gpu_bytes_per_second)?;
        require_positive("rates.gpu_to_cpu_bytes_per_second", rates.gpu_to_cpu_bytes_per_second)?;
        require_figure("rates.latency_us", rates.latency_us)?;
        require_figure("threshold_us", problem.threshold_us)?;
        require_figure("dispatch_us", problem.dispatch_us)?;
        let count = problem.blocks.len();
        let (mut times, mut inputs, mut outputs) =
            (Vec::with_capacity(count), Vec::with_capacity(count), Vec::with_capacity(count));
        for (number, block) in problem.blocks.iter().enumerate() {
            if block.cpu_us.is_none() && block.gpu_us.is_none() {
                let message = format!(
                    "blocks[{number}]: \"{}\" has no cpu_us and no gpu_us, \
                     expected at least one",
                    block.name
                );
                return Err(Error::invalid(message));
            }
            let field = |name: &'static str| move || format!("blocks[{number}].{name}");
            let time = |name, value: Option<f64>| match value {
                Some(value) => checked_figure(value, field(name)),
                None => Ok(f64::INFINITY),
            };
            times.push([time("cpu_us", block.cpu_us)?, time("gpu_us", block.gpu_us)?]);
            let [_, to_gpu] = copy_us(block.input_bytes, rates, field("input_bytes"))?;
            inputs.push([0.0, if block.input_bytes > 0.0 { to_gpu } else { 0.0 }]);
            let [to_cpu, _] = copy_us(block.output_bytes, rates, field("output_bytes"))?;
            outputs.push([0.0, if block.output_bytes > 0.0 { to_cpu } else { 0.0 }]);
        }
        let edges = numbered_edges(problem)?;
        let by_user: Vec<_> =
            edges.iter().map(|&(from, to, link)| (to, link.with_block(from))).collect();
        let by_maker: Vec<_> =
            edges.iter().map(|&(from, to, link)| (from, link.with_block(to))).collect();
        let predecessors = AdjacencyList::new(count, &by_user);
        let successors = AdjacencyList::new(count, &by_maker);
        reject_duplicate_edges(problem, &predecessors)?;
        let order = topological_order(problem, &predecessors, &successors)?;
        let mut places = vec![0; count];
        for (place, &block) in order.iter().enumerate() {
            places[block as usize] = place as u32;
        }
        let (mut chained_to, mut chained_by) = (vec![NO_BLOCK; count], vec![NO_BLOCK; count]);
        for (number, block) in problem.blocks.iter().enumerate() {
            if let [input] = predecessors.edges_of(number)
                && successors.edges_of(input.block as usize).len() == 1
                && block.input_bytes == 0.0
            {
                chained_to[number] = input.block;
                chained_by[input.block as usize] = number as u32;
            }
        }
        let dispatch_us = problem.dispatch_us + 0.0;
        Ok(Self {
            times,
            inputs,
            outputs,
            order,
            places,
            chained_to,
            chained_by,
            dispatch_us,
            predecessors,
            successors,
        })
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether a block can run on a device.
    pub(super) fn can_run(&self, block: usize, device: OverflowDevice) -> bool {
        self.times[block][device as usize].is_finite()
    }

    /// Whether a block can run on both.
    pub(super) fn has_choice(&self, block: usize) -> bool {
        OverflowDevice::ALL.into_iter().all(|device| self.can_run(block, device))
    }

    /// What a block takes.
    pub(super) fn predecessors(&self, block: usize) -> &[EdgeEnd] {
        self.predecessors.edges_of(block)
    }

    /// Who takes what a block makes.
    pub(super) fn successors(&self, block: usize) -> &[EdgeEnd] {
        self.successors.edges_of(block)
    }
}

impl OverflowProblem {
    /// An error where a figure is none, or where the blocks and edges are no graph that can run.
    pub fn check_consistency(&self) -> Result<()> {
        OverflowGraph::new(self)?;
        Ok(())
    }
}

impl EdgeEnd {
    fn with_block(self, block: u32) -> Self {
        Self { block, ..self }
    }
}

/// A figure of a block or an edge. What it is called is only made up where it is wrong.
fn checked_figure(value: f64, field: impl Fn() -> String) -> Result<f64> {
    // Adding zero makes a zero of minus zero, whose bits would not sort.
    Ok(require_figure("", value).or_else(|_| require_figure(&field(), value))? + 0.0)
}

/// How long it takes to copy `bytes` to each device.
fn copy_us(bytes: f64, rates: &CopyRates, field: impl Fn() -> String) -> Result<[f64; 2]> {
    let bytes = checked_figure(bytes, &field)?;
    let copy_us = [rates.gpu_to_cpu_bytes_per_second, rates.cpu_to_gpu_bytes_per_second]
        .map(|rate| bytes / rate * 1e6 + rates.latency_us + 0.0);
    match copy_us.iter().find(|time| require_figure("", **time).is_err()) {
        Some(time) => Err(Error::invalid(format!(
            "{}: {bytes} bytes take {time:e} µs to copy, expected at most 1e18",
            field()
        ))),
        None => Ok(copy_us),
    }
}

/// The edges, by the numbers of their blocks.
fn numbered_edges(problem: &OverflowProblem) -> Result<Vec<(u32, u32, EdgeEnd)>> {
    let names = problem.blocks.iter().enumerate();
    let numbers: HashMap<&str, u32> =
        names.map(|(number, block)| (block.name.as_str(), number as u32)).collect();
    let edges = problem.edges.iter().enumerate().map(|(number, edge)| {
        let find = |field: &str, name: &str| {
            numbers.get(name).copied().ok_or_else(|| {
                Error::invalid(format!("edges[{number}].{field}: there is no block \"{name}\""))
            })
        };
        let (from, to) = (find("from", &edge.from)?, find("to", &edge.to)?);
        if from == to {
            let message = format!("edges[{number}]: from \"{}\" to itself", edge.from);
            return Err(Error::invalid(message));
        }
        let field = || format!("edges[{number}].bytes");
        let copy_us = copy_us(edge.bytes, &problem.rates, field)?;
        Ok((from, to, EdgeEnd { block: NO_BLOCK, edge: number as u32, copy_us }))
    });
    edges.collect()
}

/// An error where an edge is there twice.
fn reject_duplicate_edges(problem: &OverflowProblem, predecessors: &AdjacencyList) -> Result<()> {
    // Per block, the last one that was seen to take from it.
    let mut takers = vec![NO_BLOCK; problem.blocks.len()];
    for block in 0..problem.blocks.len() {
        for link in predecessors.edges_of(block) {
            let taker = &mut takers[link.block as usize];
            if *taker == block as u32 {
                let name = |number: usize| &problem.blocks[number].name;
                let (number, from, to) = (link.edge, name(link.block as usize), name(block));
                let message = format!("edges[{number}]: \"{from}\" to \"{to}\" is there twice");
                return Err(Error::invalid(message));
            }
            *taker = block as u32;
        }
    }
    Ok(())
}

/// The blocks, each after those whose outputs it takes.
fn topological_order(
    problem: &OverflowProblem,
    predecessors: &AdjacencyList,
    successors: &AdjacencyList,
) -> Result<Vec<u32>> {
    let count = problem.blocks.len();
    let mut missing: Vec<usize> =
        (0..count).map(|block| predecessors.edges_of(block).len()).collect();
    let sources = (0..count).filter(|&block| missing[block] == 0);
    let mut ready: BinaryHeap<Reverse<u32>> = sources.map(|block| Reverse(block as u32)).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse(block)) = ready.pop() {
        order.push(block);
        for link in successors.edges_of(block as usize) {
            missing[link.block as usize] -= 1;
            if missing[link.block as usize] == 0 {
                ready.push(Reverse(link.block));
            }
        }
    }
    match missing.iter().position(|&count| count > 0) {
        None => Ok(order),
        Some(start) => Err(cycle_error(problem, predecessors, &missing, start)),
    }
}

/// An error that names the blocks of one cycle. Every block that misses an input has an input that
/// misses one too, so that walking back from any of them comes round.
fn cycle_error(
    problem: &OverflowProblem,
    predecessors: &AdjacencyList,
    missing: &[usize],
    start: usize,
) -> Error {
    let mut walked = Vec::new();
    let mut seen = vec![false; missing.len()];
    let mut at = start;
    while !seen[at] {
        seen[at] = true;
        walked.push(at);
        let inputs = predecessors.edges_of(at).iter().map(|link| link.block as usize);
        at = inputs.into_iter().find(|&block| missing[block] > 0).unwrap_or(at);
    }
    let round = walked.iter().skip_while(|&&block| block != at).chain([&at]);
    let mut names: Vec<String> =
        round.map(|&block| format!("\"{}\"", problem.blocks[block].name)).collect();
    names.reverse();
    // Of a long one, its beginning says enough.
    if names.len() > 9 {
        names.truncate(8);
        names.push("…".to_owned());
    }
    Error::invalid(format!("edges: {} is a cycle", names.join(" → ")))
}
