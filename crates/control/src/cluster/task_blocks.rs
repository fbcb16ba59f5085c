//! What planning has to know of a task: its blocks as units by themselves, and what goes between
//! them.

use std::sync::Arc;

use tessera_core::{Dim, Error, Result, TensorType};
use tessera_deploy::{Deployment, PlannedTask, Unit};
use tessera_graph::{BlockGraph, TensorSource};

use super::content_reader::ContentReader;

/// The size of a dimension that is open and no batch, such as tokens.
const OPEN_DIMENSION_SIZE: usize = 16;
/// Bytes of a tensor of which nothing is known.
const UNKNOWN_BYTES: f64 = 4096.0;
/// Bytes that a message has beside its tensors.
const MESSAGE_BYTES: f64 = 400.0;

/// A task as it is placed.
#[derive(Clone)]
pub(super) struct TaskBlocks {
    /// The task.
    pub(super) task: Arc<PlannedTask>,
    /// Its blocks, in the order of its path: each as a unit by itself, at no node.
    pub(super) units: Vec<Arc<Unit>>,
    /// Bytes that go into each of them from whatever comes before.
    pub(super) input_bytes: Vec<f64>,
    /// Bytes of the weights of each.
    pub(super) weight_bytes: Vec<u64>,
    /// Bytes of an answer.
    pub(super) reply_bytes: f64,
}

impl TaskBlocks {
    /// The blocks of a task.
    pub(super) fn of_task(task: &Arc<PlannedTask>, content: &dyn ContentReader) -> Result<Self> {
        let mut alone = PlannedTask::clone(task);
        alone.settings.nodes = Vec::new();
        let deployment = Deployment::of_tasks([alone], false)?;
        let route = deployment.find_route(&task.name);
        let steps = route.into_iter().flat_map(|route| &route.steps);
        let units: Vec<Arc<Unit>> =
            steps.filter_map(|step| deployment.find_unit(&step.unit).cloned()).collect();
        let graph = &task.graph;
        if units.len() != graph.blocks.len() {
            return Err(Error::unsupported(format!(
                "task \"{}\": its blocks can't be placed one by one",
                task.name
            )));
        }
        let weight_bytes = graph.blocks.iter().map(|node| content.weight_bytes(node.block));
        let outputs = graph.outputs.iter().map(|(port, _)| tensor_bytes(&port.tensor_type));
        Ok(Self {
            task: Arc::clone(task),
            input_bytes: (0..units.len()).map(|block| bytes_into(graph, block)).collect(),
            weight_bytes: weight_bytes.collect::<Result<_>>()?,
            reply_bytes: outputs.sum::<f64>() + MESSAGE_BYTES,
            units,
        })
    }
}

/// Bytes of all that is there before a block and needed by it or after it.
fn bytes_into(graph: &BlockGraph, block: usize) -> f64 {
    let later = graph.blocks[block..].iter().flat_map(|node| &node.inputs);
    let wanted = later.chain(graph.outputs.iter().map(|(_, source)| source));
    let mut carried: Vec<TensorSource> = Vec::new();
    for &source in wanted {
        let is_there = match source {
            TensorSource::Input(_) => true,
            TensorSource::Block { block: from, .. } => from < block,
        };
        if is_there && !carried.contains(&source) {
            carried.push(source);
        }
    }
    let bytes = carried
        .into_iter()
        .map(|source| graph.source_type(source).map_or(UNKNOWN_BYTES, tensor_bytes));
    bytes.sum::<f64>() + MESSAGE_BYTES
}

/// Bytes of a tensor of one row.
fn tensor_bytes(known: &TensorType) -> f64 {
    let Some(dims) = &known.dims else { return UNKNOWN_BYTES };
    let sizes = dims.iter().enumerate().map(|(index, dim)| match dim {
        Dim::Fixed(size) => *size,
        _ if index == 0 => 1,
        _ => OPEN_DIMENSION_SIZE,
    });
    let elements = sizes.fold(1usize, usize::saturating_mul);
    known.dtype.byte_len(elements).map_or(UNKNOWN_BYTES, |bytes| bytes as f64)
}
