//! Fusion: neighbouring blocks that no task tells apart run as one.
//!
//! A hop between them would share nothing, and costs a queue, memory for what is handed over, and
//! what the engine could have optimised across the border. An exit between two blocks keeps them
//! apart, as a request may leave there, and so does another device.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use tessera_core::{ContentHash, Device, Dim, TensorType};
use tessera_graph::{BlockGraph, BlockNode, TensorPort, TensorSource};

use crate::task::PlannedTask;

/// A block, the types of what goes into it, and what it runs on: what a session is made for.
type BlockSignature = (ContentHash, Option<Vec<TensorType>>, Device);

fn block_signature(task: &PlannedTask, index: usize) -> BlockSignature {
    let graph = &task.graph;
    let node = &graph.blocks[index];
    let mut symbols: Vec<String> = Vec::new();
    let types = node.inputs.iter().map(|&source| {
        let mut known = graph.source_type(source)?.clone();
        for dim in known.dims.iter_mut().flatten() {
            // What a dimension is called is no part of a block.
            if let Dim::Symbol(name) = dim {
                let number = symbols.iter().position(|seen| seen == name).unwrap_or_else(|| {
                    symbols.push(name.clone());
                    symbols.len() - 1
                });
                *name = number.to_string();
            }
        }
        Some(known)
    });
    (node.block, types.collect(), task.settings.device_of(index))
}

/// A set of tasks that are inserted in the order of their numbers. Compared by a hash: a block may
/// have a thousand users, and a thousand blocks be compared with it.
#[derive(Clone, Default)]
struct TaskSet {
    last: Option<usize>,
    hash: [u8; 32],
}

impl TaskSet {
    fn insert(&mut self, task: usize) {
        if self.last != Some(task) {
            self.last = Some(task);
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.hash).update(&task.to_le_bytes());
            self.hash = *hasher.finalize().as_bytes();
        }
    }
}

impl PartialEq for TaskSet {
    fn eq(&self, other: &Self) -> bool {
        self.last == other.last && self.hash == other.hash
    }
}

/// Per task, the runs of its blocks that are one unit each.
pub(crate) fn fusion_groups(tasks: &[PlannedTask], fuse: bool) -> Vec<Vec<Range<usize>>> {
    let single = |task: &PlannedTask| (0..task.graph.blocks.len()).map(|at| at..at + 1).collect();
    if !fuse {
        return tasks.iter().map(single).collect();
    }
    let mut users: HashMap<BlockSignature, TaskSet> = HashMap::new();
    for (number, task) in tasks.iter().enumerate() {
        for index in 0..task.graph.blocks.len() {
            users.entry(block_signature(task, index)).or_default().insert(number);
        }
    }
    let candidates: Vec<Vec<Range<usize>>> = tasks
        .iter()
        .map(|task| {
            let of = |index: usize| users.get(&block_signature(task, index));
            let mut runs: Vec<Range<usize>> = Vec::new();
            for index in 0..task.graph.blocks.len() {
                let joins = runs.last().is_some_and(|run| {
                    task.graph.exit_of(index).is_none()
                        && task.graph.exit_of(index - 1).is_none()
                        && task.settings.device_of(index) == task.settings.device_of(run.start)
                        && of(run.start) == of(index)
                });
                match runs.last_mut() {
                    Some(run) if joins => run.end = index + 1,
                    _ => runs.push(index..index + 1),
                }
            }
            runs
        })
        .collect();
    // A run is fused where all who use its blocks have the same run: wired alike, giving the same.
    let mut seen: HashMap<RunWiring, TaskSet> = HashMap::new();
    for (number, (task, runs)) in tasks.iter().zip(&candidates).enumerate() {
        for run in runs {
            seen.entry(run_wiring(task, run.clone())).or_default().insert(number);
        }
    }
    tasks
        .iter()
        .zip(candidates)
        .map(|(task, runs)| {
            runs.into_iter()
                .flat_map(|run| {
                    let needed = users.get(&block_signature(task, run.start));
                    if seen.get(&run_wiring(task, run.clone())) == needed {
                        vec![run]
                    } else {
                        run.map(|at| at..at + 1).collect()
                    }
                })
                .collect()
        })
        .collect()
}

/// How the blocks of a run hang together, and what it gives; without names.
type RunWiring = (Vec<(BlockSignature, Vec<TensorSource>)>, Vec<TensorSource>);

fn run_wiring(task: &PlannedTask, run: Range<usize>) -> RunWiring {
    let (part, _, _) = extract_subgraph(&task.graph, run.clone());
    let uses = run.map(|index| block_signature(task, index));
    let blocks = uses.zip(part.blocks.into_iter().map(|node| node.inputs)).collect();
    (blocks, part.outputs.into_iter().map(|(_, source)| source).collect())
}

/// The blocks of `run` as a graph of their own, with where its inputs come from and which outputs
/// of the whole it gives.
pub(crate) fn extract_subgraph(
    graph: &BlockGraph,
    run: Range<usize>,
) -> (BlockGraph, Vec<TensorSource>, Vec<TensorSource>) {
    let mut inputs: Vec<TensorSource> = Vec::new();
    let mut blocks = Vec::with_capacity(run.len());
    for node in &graph.blocks[run.clone()] {
        let sources = node.inputs.iter().map(|&source| match source {
            TensorSource::Block { block, output } if run.contains(&block) => {
                TensorSource::Block { block: block - run.start, output }
            }
            outside => {
                let known = inputs.iter().position(|&seen| seen == outside);
                TensorSource::Input(known.unwrap_or_else(|| {
                    inputs.push(outside);
                    inputs.len() - 1
                }))
            }
        });
        let sources = sources.collect();
        blocks.push(BlockNode {
            block: node.block,
            inputs: sources,
            outputs: node.outputs.clone(),
        });
    }
    let later = graph.blocks[run.end..].iter().flat_map(|node| &node.inputs);
    let wanted: BTreeSet<(usize, usize)> = later
        .chain(graph.outputs.iter().map(|(_, source)| source))
        .filter_map(|source| match *source {
            TensorSource::Block { block, output } if run.contains(&block) => Some((block, output)),
            _ => None,
        })
        .collect();
    // The head of an exit gives its scores, which no block uses.
    let is_head = run.len() == 1 && graph.exit_of(run.start).is_some();
    let all = || (0..graph.blocks[run.start].outputs.len()).map(|output| (run.start, output));
    let wanted: Vec<(usize, usize)> =
        if is_head { all().collect() } else { wanted.into_iter().collect() };
    let outputs = wanted.iter().map(|&(block, output)| {
        let port: TensorPort = graph.blocks[block].outputs[output].clone();
        (port, TensorSource::Block { block: block - run.start, output })
    });
    let outputs = outputs.collect();
    let ports = inputs.iter().enumerate().map(|(number, &source)| TensorPort {
        name: format!("in{number}"),
        tensor_type: graph.source_type(source).cloned().unwrap_or_else(|| {
            // A sound graph has a type for every source.
            TensorType::of_any_shape(tessera_core::DType::F32)
        }),
        is_row_wise: graph.source_port(source).is_some_and(|port| port.is_row_wise),
    });
    let part = BlockGraph {
        inputs: ports.collect(),
        blocks,
        outputs,
        exits: Vec::new(),
        row_obstacle: graph.row_obstacle.clone(),
        relies_on_dim_names: graph.relies_on_dim_names,
    };
    let given = wanted.into_iter().map(|(block, output)| TensorSource::Block { block, output });
    (part, inputs, given.collect())
}
