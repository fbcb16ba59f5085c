//! Cut points: every place where exactly one computed tensor is alive.
//!
//! This is addnn's Algorithm 5.1 carried over to ONNX. A tensor is alive from where it is computed
//! (or enters) until its last use, in a body too. Constants and what is computed from them are not
//! alive: they go along with whoever uses them. An output that no later node uses has left the
//! model and is not alive either.

use tessera_core::{Error, Result};

use crate::infer::InferredTypes;
use crate::model::{Graph, NodeId, ValueId};

/// A place between two nodes where one tensor is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The tensor.
    pub tensor: ValueId,
    /// How many of the ordered nodes run before the cut.
    pub position: usize,
}

/// The cut points of a graph, and the order of nodes that they refer to.
#[derive(Clone, Debug)]
pub struct CutPoints {
    /// The computed nodes of the trunk in order; constants and branches of exits are not here.
    pub order: Vec<NodeId>,
    /// The cut points in order, each tensor once.
    pub cuts: Vec<Cut>,
    /// Per position, how many tensors are alive.
    pub alive: Vec<u32>,
}

impl CutPoints {
    /// Finds the cut points of the nodes that are in `trunk`.
    pub(crate) fn find_cuts(
        graph: &Graph,
        types: &InferredTypes,
        trunk: &dyn Fn(NodeId) -> bool,
    ) -> Self {
        let order: Vec<NodeId> =
            graph.node_ids().filter(|&id| !graph.is_constant_node(id) && trunk(id)).collect();
        let mut last_use = vec![None; graph.value_count()];
        for (position, &id) in order.iter().enumerate() {
            for value in graph.node(id).used_values() {
                last_use[value.index()] = Some(position);
            }
        }
        // The living are kept as their count and the sum of their ids: where the count is one, the
        // sum is the one.
        let (mut count, mut sum) = (0u32, 0u64);
        for &input in graph.inputs() {
            if last_use[input.index()].is_some() {
                count += 1;
                sum += u64::from(input.0);
            }
        }
        let mut cuts: Vec<Cut> = Vec::new();
        let mut alive = Vec::with_capacity(order.len());
        for (position, &id) in order.iter().enumerate() {
            let node = graph.node(id);
            let mut ended: Vec<ValueId> = node
                .used_values()
                .filter(|&value| {
                    !graph.is_constant(value) && last_use[value.index()] == Some(position)
                })
                .collect();
            ended.sort_unstable();
            ended.dedup();
            for value in ended {
                count -= 1;
                sum -= u64::from(value.0);
            }
            for value in node.produced_values().filter(|value| last_use[value.index()].is_some()) {
                count += 1;
                sum += u64::from(value.0);
            }
            alive.push(count);
            let tensor = ValueId(sum as u32);
            if count == 1
                && position + 1 < order.len()
                && graph.producer(tensor).is_some()
                && types.get(tensor).is_some()
                && cuts.last().is_none_or(|last| last.tensor != tensor)
            {
                cuts.push(Cut { tensor, position: position + 1 });
            }
        }
        Self { order, cuts, alive }
    }

    /// The cut at the tensor of this name.
    pub fn find_by_name(&self, graph: &Graph, name: &str) -> Result<Cut> {
        let tensor = graph.find_value(name).ok_or_else(|| {
            Error::usage(format!("no tensor \"{name}\" in the model, so no cut there"))
        })?;
        if let Some(cut) = self.cuts.iter().find(|cut| cut.tensor == tensor) {
            return Ok(*cut);
        }
        let made =
            graph.producer(tensor).and_then(|node| self.order.iter().position(|&id| id == node));
        let Some(made) = made else {
            return Err(Error::usage(format!(
                "\"{name}\" is no cut point: it is an input, a constant or part of an exit"
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
            Some(count) => format!("{count} tensors are alive there, expected 1"),
        };
        Err(Error::usage(format!("\"{name}\" is no cut point: {reason}; {hint}")))
    }
}
