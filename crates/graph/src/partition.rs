//! Cuts a graph into blocks.
//!
//! [`partition_graph`] takes any assignment of nodes to parts that leaves the parts acyclic;
//! [`split_into_chain`] is the simple case of a chain, cut where the user asks.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use tessera_core::{ContentHash, Error, Result};

use crate::balance::balance_segments;
use crate::block::Block;
use crate::block_graph::{BlockGraph, BlockNode, TensorPort, TensorSource};
use crate::block_writer::{ExtractedBlock, extract_block};
use crate::cost;
use crate::cuts::{Cut, CutPoints};
use crate::exits::{self, Exit, ExitBranch, ExitBranches, ExitSpec};
use crate::infer::InferredTypes;
use crate::model::{Graph, NodeId, ValueId};
use crate::operators;
use crate::recomputed::RecomputedNodes;
use crate::rows::{RowProof, prove_rows};
use crate::weight_hashes::WeightHashes;

/// A model cut into blocks, with the content of the blocks and of their weights.
#[derive(Clone, Debug)]
pub struct Partition {
    /// How the blocks hang together.
    pub graph: BlockGraph,
    /// Every block that the graph names.
    pub blocks: HashMap<ContentHash, Block>,
    /// Every weight that the blocks name.
    pub weights: HashMap<ContentHash, Bytes>,
    /// Per block of the graph, the nodes that it computes; constants are not among them.
    pub nodes: Vec<Vec<NodeId>>,
}

impl Partition {
    /// Bytes of the distinct weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.values().map(Bytes::len).sum()
    }
}

/// Where to cut a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Into this many blocks, the most expensive one as cheap as possible.
    Blocks(usize),
    /// At the tensors of these names.
    At(Vec<String>),
    /// At every cut point.
    Every,
}

/// Cuts `graph` into a chain of blocks, with the heads of `exits` as blocks of their own.
pub fn split_into_chain(
    graph: &Graph,
    types: &InferredTypes,
    how: &Split,
    exits: &[ExitSpec],
) -> Result<Partition> {
    ChainSplitter::new(graph, types, exits)?.apply_split(how)
}

/// The cut points of `graph`, with the branches of `exits` left aside.
pub fn cut_points(graph: &Graph, types: &InferredTypes, exits: &[ExitSpec]) -> Result<CutPoints> {
    let branches = exits::find_branches(graph, exits)?;
    Ok(CutPoints::find_cuts(graph, types, &|id| branches.of_node[id.index()].is_none()))
}

/// Checks that every output of `graph` is a tensor, which can leave a block.
pub fn check_outputs(graph: &Graph, types: &InferredTypes) -> Result<()> {
    graph.outputs().iter().try_for_each(|&id| types.require_type(graph, id).map(drop))
}

/// A graph that is about to be cut into a chain.
pub(crate) struct ChainSplitter<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) types: &'a InferredTypes,
    pub(crate) hashes: WeightHashes,
    pub(crate) branches: ExitBranches,
    pub(crate) points: CutPoints,
    /// Indices of the cut points that exits hang from.
    pub(crate) forced: Vec<usize>,
    rows: RowProof,
}

impl<'a> ChainSplitter<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        types: &'a InferredTypes,
        exits: &[ExitSpec],
    ) -> Result<Self> {
        let branches = exits::find_branches(graph, exits)?;
        let points =
            CutPoints::find_cuts(graph, types, &|id| branches.of_node[id.index()].is_none());
        let mut forced: Vec<usize> = (0..branches.branches.len())
            .flat_map(|branch| branch_inputs(graph, &branches, branch))
            .filter_map(|value| points.cuts.iter().position(|cut| cut.tensor == value))
            .collect();
        forced.sort_unstable();
        forced.dedup();
        let (hashes, rows) = (WeightHashes::of_graph(graph), prove_rows(graph, types));
        Ok(Self { graph, types, hashes, branches, points, forced, rows })
    }

    fn apply_split(&self, how: &Split) -> Result<Partition> {
        let mut chosen: Vec<usize> = match how {
            Split::Every => (0..self.points.cuts.len()).collect(),
            Split::At(names) => names
                .iter()
                .map(|name| {
                    let cut = self.points.find_by_name(self.graph, name)?;
                    Ok(self.points.cuts.iter().position(|known| *known == cut).unwrap_or(0))
                })
                .collect::<Result<_>>()?,
            Split::Blocks(count) => self.balanced_cuts(*count)?,
        };
        chosen.extend(&self.forced);
        chosen.sort_unstable();
        chosen.dedup();
        self.cut_at(&chosen)
    }

    fn balanced_cuts(&self, count: usize) -> Result<Vec<usize>> {
        let (places, needed) = (self.points.cuts.len(), self.forced.len());
        if count == 0 {
            return Err(Error::usage("0 blocks, expected 1 or more"));
        }
        if count > places + 1 {
            return Err(Error::usage(format!(
                "{count} blocks need {} cut points, and the model has {places}",
                count - 1
            )));
        }
        if count < needed + 1 {
            return Err(Error::usage(format!(
                "{count} blocks, and the model's exits hang from {needed} cut points: expected {} or more",
                needed + 1
            )));
        }
        // Engines fuse an activation into what it follows: a cut between the two costs a pass over
        // the tensor on either side. Where there are enough other places, those are not cut at.
        let mut places: Vec<usize> = (0..self.points.cuts.len())
            .filter(|index| {
                self.forced.contains(index) || !self.is_within_fused_pair(&self.points.cuts[*index])
            })
            .collect();
        if places.len() + 1 < count {
            places = (0..self.points.cuts.len()).collect();
        }
        let costs = self.segment_costs(&places);
        // Segment `k + 1` starts at place `k`.
        let forced: Vec<usize> = (0..places.len())
            .filter(|&place| self.forced.contains(&places[place]))
            .map(|place| place + 1)
            .collect();
        let hop = |&place: &usize| self.points.cuts[place].estimated_hop_bytes(&self.points.sizes);
        let hops: Vec<u64> = places.iter().map(hop).collect();
        let starts = balance_segments(&costs, &hops, count, &forced)
            .ok_or_else(|| Error::usage(format!("no way to cut the model into {count} blocks")))?;
        Ok(starts.into_iter().map(|start| places[start - 1]).collect())
    }

    /// Whether a cut lies between a node and an operator that engines would fuse into it.
    fn is_within_fused_pair(&self, cut: &Cut) -> bool {
        let mut users = self
            .graph
            .consumers(cut.tensor)
            .iter()
            .filter(|user| self.branches.of_node[user.index()].is_none());
        match (users.next(), users.next()) {
            (Some(&user), None) => self.is_fused(user),
            _ => false,
        }
    }

    fn is_fused(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.domain.is_empty() && operators::is_fused_into_its_input(&node.op_type)
    }

    /// The costs of the segments between these cut points.
    fn segment_costs(&self, places: &[usize]) -> Vec<u64> {
        let weight = |nodes: &[NodeId]| {
            // What is fused into the node before it costs next to nothing.
            let cost = |&id: &NodeId| {
                if self.is_fused(id) {
                    1
                } else {
                    cost::node_cost(self.graph, self.types, id).cost.balance_weight()
                }
            };
            nodes.iter().map(cost).fold(0u64, u64::saturating_add)
        };
        let mut edges = vec![0];
        edges.extend(places.iter().map(|&place| self.points.cuts[place].position));
        edges.push(self.points.order.len());
        edges.windows(2).map(|pair| weight(&self.points.order[pair[0]..pair[1]])).collect()
    }

    /// Cuts at these cut points, given by index in order.
    pub(crate) fn cut_at(&self, chosen: &[usize]) -> Result<Partition> {
        let mut part_of = self.part_of_trunk(chosen);
        let heads = chosen.len() + 1;
        for (node, branch) in self.branches.of_node.iter().enumerate() {
            if let Some(branch) = branch.filter(|_| !self.graph.constant[node]) {
                part_of[node] = Some(heads + branch);
            }
        }
        self.assign_parts(part_of, heads).build_partition(&self.branches)
    }

    /// Per node of the trunk, between which of these cut points it is.
    pub(crate) fn part_of_trunk(&self, chosen: &[usize]) -> Vec<Option<usize>> {
        let mut part_of = vec![None; self.graph.nodes().len()];
        let mut part = 0;
        for (position, id) in self.points.order.iter().enumerate() {
            let next = chosen.get(part).map(|&index| &self.points.cuts[index]);
            if next.is_some_and(|cut| position >= cut.position) {
                part += 1;
            }
            part_of[id.index()] = Some(part);
        }
        part_of
    }

    pub(crate) fn assign_parts(
        &self,
        part_of: Vec<Option<usize>>,
        first_head: usize,
    ) -> PartAssignment<'_> {
        PartAssignment {
            graph: self.graph,
            types: self.types,
            hashes: &self.hashes,
            rows: &self.rows,
            recomputed: &self.points.recomputed,
            part_of,
            first_head,
        }
    }
}

/// The trunk's tensors that a branch uses.
fn branch_inputs(graph: &Graph, branches: &ExitBranches, branch: usize) -> Vec<ValueId> {
    let inside = |id: NodeId| branches.of_node[id.index()] == Some(branch);
    graph
        .node_ids()
        .filter(|&id| inside(id) && !graph.is_constant_node(id))
        .flat_map(|id| graph.node(id).used_values())
        .filter(|&value| {
            !graph.is_constant(value) && graph.producer(value).is_none_or(|made| !inside(made))
        })
        .collect()
}

/// Cuts `graph` into the parts that `part_of` names, per node in the graph's order.
///
/// Nodes that are computed from constants alone go along with whoever uses them, whatever
/// `part_of` says of them. The parts must not depend on each other in a cycle.
pub fn partition_graph(
    graph: &Graph,
    types: &InferredTypes,
    part_of: &[usize],
    exits: &[ExitSpec],
) -> Result<Partition> {
    if part_of.len() != graph.nodes().len() {
        return Err(Error::usage(format!(
            "{} nodes are assigned to parts, and the graph has {}",
            part_of.len(),
            graph.nodes().len()
        )));
    }
    let branches = exits::find_branches(graph, exits)?;
    let hashes = WeightHashes::of_graph(graph);
    let most = part_of.iter().max().copied().unwrap_or(0);
    if !branches.branches.is_empty() && most >= usize::MAX - branches.branches.len() {
        return Err(Error::usage(format!("part {most}, expected smaller numbers")));
    }
    let first_head = most.saturating_add(1);
    let part_of = graph
        .node_ids()
        .map(|id| {
            let part = match branches.of_node[id.index()] {
                Some(branch) => first_head + branch,
                None => part_of[id.index()],
            };
            (!graph.is_constant_node(id)).then_some(part)
        })
        .collect();
    let (rows, recomputed) = (prove_rows(graph, types), RecomputedNodes::none(graph));
    let (hashes, rows, recomputed) = (&hashes, &rows, &recomputed);
    PartAssignment { graph, types, hashes, rows, recomputed, part_of, first_head }
        .build_partition(&branches)
}

/// Which part of a graph each node is in.
pub(crate) struct PartAssignment<'a> {
    graph: &'a Graph,
    types: &'a InferredTypes,
    hashes: &'a WeightHashes,
    rows: &'a RowProof,
    recomputed: &'a RecomputedNodes,
    /// Per node, its part; `None` for constants and what is computed again.
    part_of: Vec<Option<usize>>,
    /// Parts from here on are heads of exits.
    first_head: usize,
}

impl PartAssignment<'_> {
    fn build_partition(&self, branches: &ExitBranches) -> Result<Partition> {
        let mut assembly = PartitionAssembly {
            partition: Partition {
                graph: BlockGraph {
                    inputs: self
                        .graph
                        .inputs()
                        .iter()
                        .map(|&id| self.tensor_port(id))
                        .collect::<Result<_>>()?,
                    blocks: Vec::new(),
                    outputs: Vec::new(),
                    exits: Vec::new(),
                    row_obstacle: self.rows.obstacle().cloned(),
                    relies_on_dim_names: self.graph.relies_on_dim_names(),
                },
                blocks: HashMap::new(),
                weights: HashMap::new(),
                nodes: Vec::new(),
            },
            sources: HashMap::new(),
        };
        for (index, &input) in self.graph.inputs().iter().enumerate() {
            assembly.sources.insert(input, TensorSource::Input(index));
        }
        let mut nodes_of: HashMap<usize, Vec<NodeId>> = HashMap::new();
        for id in self.graph.node_ids() {
            if let Some(part) = self.part_of[id.index()] {
                nodes_of.entry(part).or_default().push(id);
            }
        }
        for part in self.order_parts()? {
            let nodes = nodes_of.remove(&part).unwrap_or_default();
            let outputs = self.outputs_of(part, &nodes);
            self.add_block(&mut assembly, Some(part), nodes, outputs)?;
        }
        // Outputs that nothing computes: constants that the model hands out.
        let constants: Vec<ValueId> =
            self.graph.outputs().iter().copied().filter(|&id| self.graph.is_constant(id)).collect();
        self.add_block(&mut assembly, None, Vec::new(), constants)?;
        self.finish_partition(assembly, branches)
    }

    /// The parts in an order in which they can run.
    fn order_parts(&self) -> Result<Vec<usize>> {
        let mut numbers: Vec<usize> = self.part_of.iter().flatten().copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let dense: HashMap<usize, u32> =
            numbers.iter().enumerate().map(|(index, &part)| (part, index as u32)).collect();
        let mut successors = vec![BTreeSet::new(); numbers.len()];
        for id in self.graph.node_ids() {
            let Some(to) = self.part_of[id.index()] else {
                continue;
            };
            for value in self.graph.node(id).used_values() {
                let made = self.graph.producer(value).and_then(|node| self.part_of[node.index()]);
                if let Some(from) = made.filter(|&from| from != to) {
                    successors[dense[&from] as usize].insert(dense[&to]);
                }
            }
        }
        // Lower numbers first, so that blocks stand in the order that the caller counts in; but the
        // head of an exit as soon as it can run, or it would save nothing.
        let mut waiting = vec![0usize; numbers.len()];
        for &next in successors.iter().flatten() {
            waiting[next as usize] += 1;
        }
        let turn = |part: u32| (numbers[part as usize] < self.first_head, part);
        let mut ready: BTreeSet<(bool, u32)> = (0..numbers.len() as u32)
            .filter(|&part| waiting[part as usize] == 0)
            .map(turn)
            .collect();
        let mut order = Vec::with_capacity(numbers.len());
        while let Some((_, part)) = ready.pop_first() {
            order.push(numbers[part as usize]);
            for &next in &successors[part as usize] {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.insert(turn(next));
                }
            }
        }
        if order.len() < numbers.len() {
            let stuck: Vec<String> = (0..numbers.len())
                .filter(|&part| waiting[part] > 0)
                .take(6)
                .map(|part| numbers[part].to_string())
                .collect();
            return Err(Error::usage(format!(
                "parts {} depend on each other, expected no cycle between parts",
                stuck.join(", ")
            )));
        }
        Ok(order)
    }

    /// What a part computes for other parts or for the caller.
    pub(crate) fn outputs_of(&self, part: usize, nodes: &[NodeId]) -> Vec<ValueId> {
        let leaves = |value: ValueId| {
            self.graph.is_output(value)
                || self
                    .graph
                    .consumers(value)
                    .iter()
                    .any(|next| self.part_of[next.index()].is_some_and(|other| other != part))
        };
        nodes
            .iter()
            .flat_map(|&id| self.graph.node(id).produced_values())
            .filter(|&v| leaves(v))
            .collect()
    }

    fn add_block(
        &self,
        assembly: &mut PartitionAssembly,
        part: Option<usize>,
        nodes: Vec<NodeId>,
        outputs: Vec<ValueId>,
    ) -> Result<()> {
        if outputs.is_empty() {
            return Ok(());
        }
        let extracted = self.extract_part(part, outputs)?;
        let source = |value: &ValueId| {
            assembly.sources.get(value).copied().ok_or_else(|| {
                Error::invalid(format!(
                    "tensor \"{}\" is needed by a block before any block computes it",
                    self.graph.value_name(*value)
                ))
            })
        };
        let inputs = extracted.inputs.iter().map(source).collect::<Result<_>>()?;
        let block = assembly.partition.graph.blocks.len();
        let ports =
            extracted.outputs.iter().map(|&id| self.tensor_port(id)).collect::<Result<_>>()?;
        for (output, &value) in extracted.outputs.iter().enumerate() {
            assembly.sources.insert(value, TensorSource::Block { block, output });
        }
        let hash = extracted.block.hash();
        assembly.partition.graph.blocks.push(BlockNode { block: hash, inputs, outputs: ports });
        assembly.partition.blocks.entry(hash).or_insert(extracted.block);
        assembly.partition.weights.extend(extracted.weights);
        assembly.partition.nodes.push(nodes);
        Ok(())
    }

    /// A part as a block, with what it computes again.
    pub(crate) fn extract_part(
        &self,
        part: Option<usize>,
        outputs: Vec<ValueId>,
    ) -> Result<ExtractedBlock> {
        let inside = |id: NodeId| {
            part.is_some() && self.part_of[id.index()] == part || self.recomputed.contains(id)
        };
        extract_block(self.graph, self.types, self.hashes, &inside, outputs)
    }

    fn finish_partition(
        &self,
        mut assembly: PartitionAssembly,
        branches: &ExitBranches,
    ) -> Result<Partition> {
        let branch_of: HashMap<ValueId, &ExitBranch> =
            branches.branches.iter().map(|branch| (branch.value, branch)).collect();
        for &id in self.graph.outputs() {
            let port = self.tensor_port(id)?;
            let source = assembly.sources.get(&id).copied().ok_or_else(|| {
                Error::invalid(format!("output \"{}\" is computed by no block", port.name))
            })?;
            let Some(branch) = branch_of.get(&id) else {
                assembly.partition.graph.outputs.push((port, source));
                continue;
            };
            let TensorSource::Block { block: head, .. } = source else {
                return Err(Error::usage(format!("exit \"{}\" is an input", port.name)));
            };
            let from =
                assembly.partition.graph.blocks[head].inputs.iter().filter_map(|s| match s {
                    TensorSource::Block { block, .. } => Some(*block),
                    TensorSource::Input(_) => None,
                });
            let after = from.max();
            assembly.partition.graph.exits.push(Exit {
                output: branch.spec.output.clone(),
                threshold: branch.spec.threshold,
                scores: branch.scores,
                head,
                after,
            });
        }
        assembly.partition.graph.exits.sort_by_key(|exit| exit.after);
        Ok(assembly.partition)
    }

    fn tensor_port(&self, id: ValueId) -> Result<TensorPort> {
        let name = self.graph.value_name(id).to_owned();
        let tensor_type = self.types.require_type(self.graph, id)?.clone();
        let default = self.graph.input_default(id).cloned();
        Ok(TensorPort { name, tensor_type, is_row_wise: self.rows.is_row_wise(id), default })
    }
}

/// A partition in the making.
struct PartitionAssembly {
    partition: Partition,
    /// Where each value that leaves its block can be had.
    sources: HashMap<ValueId, TensorSource>,
}
