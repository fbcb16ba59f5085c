//! Cut points: every place where one computed tensor is alive, and little beside it.
//!
//! This is addnn's Algorithm 5.1 carried over to ONNX. A tensor is alive from where it is computed
//! (or enters) until its last use, in a body too. Constants and what is computed from them are not
//! alive: they go along with whoever uses them, and so does what is computed again
//! ([`crate::recomputed`]). An output that no later node uses has left the model and is not alive
//! either.
//!
//! Where several tensors are alive, the largest is what the cut is named after. The others are its
//! **side tensors** (masks, shapes, scalars), and ride along where they are small beside it.

use std::collections::BTreeSet;

use tessera_core::{Error, Result};

use crate::infer::InferredTypes;
use crate::model::{Graph, NodeId, ValueId};
use crate::recomputed::RecomputedNodes;
use crate::size_estimate::SizeEstimates;
use crate::trunk_order::order_trunk;

/// Side tensors have together at most this share of the bytes of the tensor beside which they ride.
const SIDE_SHARE: u64 = 8;

/// Side tensors at a cut, at most.
const MOST_SIDES: usize = 16;

/// A place between two nodes where a model can be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The tensor that is alive, or the largest of several.
    pub tensor: ValueId,
    /// The others that are alive, in the order of their numbers.
    pub sides: Vec<ValueId>,
    /// How many of the ordered nodes run before the cut.
    pub position: usize,
}

impl Cut {
    /// Everything that is handed on at the cut.
    pub fn tensors(&self) -> impl Iterator<Item = ValueId> + '_ {
        std::iter::once(self.tensor).chain(self.sides.iter().copied())
    }

    /// Bytes that are handed on at the cut; `None` where a size is open.
    pub fn hop_bytes(&self, types: &InferredTypes) -> Option<u64> {
        self.tensors().try_fold(0u64, |sum, tensor| {
            Some(sum.saturating_add(types.get(tensor)?.byte_len()? as u64))
        })
    }

    /// The same, open sizes guessed.
    pub(crate) fn estimated_hop_bytes(&self, sizes: &SizeEstimates) -> u64 {
        let bytes = |tensor: ValueId| sizes.bytes_of(tensor).unwrap_or(0);
        self.tensors().map(bytes).fold(0, u64::saturating_add)
    }
}

/// The cut points of a graph, and the order of nodes that they refer to.
#[derive(Clone, Debug)]
pub struct CutPoints {
    /// The computed nodes of the trunk in order; constants, branches of exits and what is computed
    /// again are not here.
    pub order: Vec<NodeId>,
    /// The cut points in order, each tensor once.
    pub cuts: Vec<Cut>,
    /// Per position, how many tensors are alive.
    pub alive: Vec<u32>,
    pub(crate) recomputed: RecomputedNodes,
    pub(crate) sizes: SizeEstimates,
}

impl CutPoints {
    /// Finds the cut points of the nodes that are in `trunk`.
    pub(crate) fn find_cuts(
        graph: &Graph,
        types: &InferredTypes,
        trunk: &dyn Fn(NodeId) -> bool,
    ) -> Self {
        let sizes = SizeEstimates::of_graph(graph, types);
        let mut order = order_trunk(graph, &sizes, trunk);
        let recomputed = RecomputedNodes::find(graph, &sizes, &order);
        order.retain(|&id| !recomputed.contains(id));
        let needs = |id: NodeId| {
            let mut needed: Vec<ValueId> = Vec::new();
            for value in graph.node(id).used_values().filter(|&value| !graph.is_constant(value)) {
                needed.extend(recomputed.handed_on(graph, &value));
            }
            needed.sort_unstable();
            needed.dedup();
            needed
        };
        let mut last_use = vec![None; graph.value_count()];
        for (position, &id) in order.iter().enumerate() {
            for value in needs(id) {
                last_use[value.index()] = Some(position);
            }
        }
        let mut living = LivingTensors::new(&sizes);
        for &input in graph.inputs().iter().filter(|input| last_use[input.index()].is_some()) {
            living.insert(input);
        }
        let mut cuts: Vec<Cut> = Vec::new();
        let mut alive = Vec::with_capacity(order.len());
        for (position, &id) in order.iter().enumerate() {
            for value in needs(id).into_iter().filter(|v| last_use[v.index()] == Some(position)) {
                living.remove(value);
            }
            let made = graph.node(id).produced_values();
            for value in made.filter(|value| last_use[value.index()].is_some()) {
                living.insert(value);
            }
            alive.push(living.count() as u32);
            let found = living.main_and_sides().filter(|(main, sides)| {
                position + 1 < order.len()
                    && graph.producer(*main).is_some()
                    && !is_within_quantisation(graph, *main)
                    && std::iter::once(main).chain(sides).all(|&value| types.get(value).is_some())
            });
            if let Some((tensor, sides)) = found {
                let cut = Cut { tensor, sides, position: position + 1 };
                keep_cut(&mut cuts, cut, &sizes);
            }
        }
        Self { order, cuts, alive, recomputed, sizes }
    }

    /// The cut at the tensor of this name.
    pub fn find_by_name(&self, graph: &Graph, name: &str) -> Result<Cut> {
        let tensor = graph.find_value(name).ok_or_else(|| {
            Error::usage(format!("no tensor \"{name}\" in the model, so no cut there"))
        })?;
        if let Some(cut) = self.cuts.iter().find(|cut| cut.tensor == tensor) {
            return Ok(cut.clone());
        }
        let made =
            graph.producer(tensor).and_then(|node| self.order.iter().position(|&id| id == node));
        let Some(made) = made else {
            return Err(Error::usage(format!(
                "\"{name}\" is no cut point: it is an input, a constant, part of an exit, or \
                 computed by every block that needs it"
            )));
        };
        let near =
            |cut: Option<&Cut>| cut.map(|cut| format!("\"{}\"", graph.value_name(cut.tensor)));
        let before = near(self.cuts.iter().rfind(|cut| cut.position <= made));
        let after = near(self.cuts.iter().find(|cut| cut.position > made + 1));
        let nearest: Vec<String> = before.into_iter().chain(after).collect();
        let hint = match nearest.as_slice() {
            [] => "the model has no cut points".to_owned(),
            _ => format!("the nearest are {}", nearest.join(" and ")),
        };
        let reason = match self.alive.get(made) {
            Some(&(0 | 1)) | None => "nothing comes after it".to_owned(),
            Some(count) => {
                format!(
                    "{count} tensors are alive there, expected one that is large beside the others"
                )
            }
        };
        Err(Error::usage(format!("\"{name}\" is no cut point: {reason}; {hint}")))
    }
}

/// Whether a tensor is between an operator and the quantisation of what it takes or gives. Engines
/// compute the two as one, in 8 bits; the quantised tensor beside it is smaller, and a cut point too.
fn is_within_quantisation(graph: &Graph, tensor: ValueId) -> bool {
    let is_op = |node: NodeId, name: &str| {
        let node = graph.node(node);
        node.domain.is_empty() && node.op_type == name
    };
    let is_restored = graph.producer(tensor).is_some_and(|made| is_op(made, "DequantizeLinear"));
    let users = graph.consumers(tensor);
    let is_rounded = !users.is_empty() && users.iter().all(|&user| is_op(user, "QuantizeLinear"));
    is_restored || is_rounded
}

/// Adds a cut; of several at the same tensor the one at which least is handed on.
fn keep_cut(cuts: &mut Vec<Cut>, cut: Cut, sizes: &SizeEstimates) {
    match cuts.last_mut().filter(|last| last.tensor == cut.tensor) {
        Some(last) => {
            let bytes = |cut: &Cut| (cut.estimated_hop_bytes(sizes), cut.sides.len());
            if bytes(&cut) < bytes(last) {
                *last = cut;
            }
        }
        None => cuts.push(cut),
    }
}

/// The tensors that are alive at a position, the largest last.
struct LivingTensors<'a> {
    sizes: &'a SizeEstimates,
    by_size: BTreeSet<(u64, ValueId)>,
    bytes: u128,
}

impl<'a> LivingTensors<'a> {
    fn new(sizes: &'a SizeEstimates) -> Self {
        Self { sizes, by_size: BTreeSet::new(), bytes: 0 }
    }

    fn count(&self) -> usize {
        self.by_size.len()
    }

    /// What is not known is taken for larger than everything, and for nothing beside anything.
    fn size_of(&self, value: ValueId) -> u64 {
        const MOST: u64 = 1 << 50;
        self.sizes.bytes_of(value).unwrap_or(MOST).min(MOST)
    }

    fn insert(&mut self, value: ValueId) {
        let size = self.size_of(value);
        if self.by_size.insert((size, value)) {
            self.bytes += u128::from(size);
        }
    }

    fn remove(&mut self, value: ValueId) {
        let size = self.size_of(value);
        if self.by_size.remove(&(size, value)) {
            self.bytes -= u128::from(size);
        }
    }

    /// The largest and the others, where they are small beside it.
    fn main_and_sides(&self) -> Option<(ValueId, Vec<ValueId>)> {
        let &(size, main) = self.by_size.last()?;
        let beside = self.bytes - u128::from(size);
        if self.by_size.len() > MOST_SIDES + 1 || beside > u128::from(size / SIDE_SHARE) {
            return None;
        }
        let mut sides: Vec<ValueId> = self.by_size.iter().map(|&(_, value)| value).collect();
        sides.pop();
        sides.sort_unstable();
        Some((main, sides))
    }
}
