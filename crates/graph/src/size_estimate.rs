//! How large tensors will be, where some of the model's dimensions are open.

use std::collections::BTreeMap;

use tessera_core::{DType, Dim, TensorType};

use crate::infer::{InferredTypes, infer_types};
use crate::model::{Graph, GraphNode, ValueId};

/// What an open dimension of numbers is taken for: pixels, samples, features.
const OPEN_NUMBERS: usize = 256;

/// What an open dimension of anything else is taken for: tokens, bytes of text.
const OPEN_TOKENS: usize = 128;

/// The most that a small input has.
const SMALL_INPUT: u64 = 16 << 10;

/// A small input is this part at most of the largest tensor of its model.
const SMALL_SHARE: u64 = 4;

/// By what both are divided where the model contradicts them: a table of positions may be shorter.
const SMALLER: [usize; 5] = [1, 2, 4, 8, 16];

/// The sizes of a graph's values. Open dimensions of inputs are taken for something usual, the
/// first, which is mostly the batch, for 1; all others follow.
#[derive(Clone, Debug)]
pub(crate) struct SizeEstimates {
    bytes: Vec<Option<u64>>,
    /// Inputs of the model up to this size are handed on for whoever computes something from them.
    pub(crate) small_input: u64,
}

impl SizeEstimates {
    pub(crate) fn of_graph(graph: &Graph, types: &InferredTypes) -> Self {
        let mut guessed: Option<(usize, InferredTypes)> = None;
        for divisor in SMALLER {
            let Ok(found) = infer_types(graph, &usual_shapes(graph, types, divisor)) else {
                continue;
            };
            // Where sizes contradict each other, what follows from them is not known.
            let unknown = graph.value_ids().filter(|&id| is_open(&found, id)).count();
            if guessed.as_ref().is_none_or(|(least, _)| unknown < *least) {
                guessed = Some((unknown, found));
            }
            if unknown == 0 {
                break;
            }
        }
        let known = guessed.as_ref().map_or(types, |(_, found)| found);
        let bytes = |id: ValueId| known.get(id).and_then(estimated_bytes);
        let bytes: Vec<Option<u64>> = graph.value_ids().map(bytes).collect();
        let made = graph.nodes().iter().flat_map(GraphNode::produced_values);
        let largest = made.filter_map(|id| *bytes.get(id.index())?).max().unwrap_or(0);
        Self { bytes, small_input: SMALL_INPUT.min(largest / SMALL_SHARE) }
    }

    /// Bytes of a value; `None` where not even its rank is known.
    pub(crate) fn bytes_of(&self, id: ValueId) -> Option<u64> {
        self.bytes.get(id.index()).copied().flatten()
    }
}

fn is_open(types: &InferredTypes, id: ValueId) -> bool {
    types.get(id).is_some_and(|known| known.fixed_shape().is_none())
}

/// Per input with known rank, a shape that it may have; equal names are equal sizes.
fn usual_shapes(
    graph: &Graph,
    types: &InferredTypes,
    divisor: usize,
) -> BTreeMap<String, Vec<usize>> {
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    let known = graph.inputs().iter().filter_map(|&id| Some((id, types.get(id)?)));
    let known: Vec<(ValueId, &TensorType)> = known.collect();
    // A name that is somewhere the first of several is a batch everywhere.
    for (_, tensor) in &known {
        if let Some([Dim::Symbol(name), _, ..]) = tensor.dims.as_deref() {
            by_name.insert(name, 1);
        }
    }
    let mut shapes = BTreeMap::new();
    for (id, tensor) in known {
        let Some(dims) = &tensor.dims else { continue };
        let open = open_size(tensor.dtype) / divisor;
        let size = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Fixed(size) => *size,
            Dim::Symbol(name) => by_name.get(name.as_str()).copied().unwrap_or(open),
            Dim::Unknown if axis == 0 && dims.len() > 1 => 1,
            Dim::Unknown => open,
        };
        let shape: Vec<usize> = dims.iter().enumerate().map(size).collect();
        for (dim, &size) in dims.iter().zip(&shape) {
            if let Dim::Symbol(name) = dim {
                by_name.entry(name).or_insert(size);
            }
        }
        shapes.insert(graph.value_name(id).to_owned(), shape);
    }
    shapes
}

fn open_size(dtype: DType) -> usize {
    if dtype.is_float() { OPEN_NUMBERS } else { OPEN_TOKENS }
}

/// Bytes of a tensor; what is still open is taken for something usual.
fn estimated_bytes(tensor: &TensorType) -> Option<u64> {
    /// What a string is taken for.
    const STRING_BITS: usize = 128;
    let open = open_size(tensor.dtype);
    let sizes = tensor.dims.as_ref()?.iter().map(|dim| dim.fixed_size().unwrap_or(open) as u64);
    let count = sizes.fold(1u64, u64::saturating_mul);
    let bits = tensor.dtype.bits_per_element().unwrap_or(STRING_BITS) as u64;
    Some(count.saturating_mul(bits).div_ceil(8))
}
