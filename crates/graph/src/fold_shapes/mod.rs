//! Folds the arithmetic that models do on shapes, where it is known what comes out.
//!
//! Exports with open dimensions ask for the `Shape` of a tensor, pick sizes and put them together to
//! the target of a `Reshape`. All of that stays alive beside the tensors that matter, hides cut
//! points, and differs from exporter to exporter. What always comes out the same becomes a constant.
//! A target with open sizes becomes one too, where ONNX has a way to say it: 0 for "as it was", -1
//! for "what is left", the largest end for "to the end".
//!
//! Nothing is believed that a file declares but the types of its inputs. That two inputs have
//! dimensions of the same name is a rule for callers only where something was folded because of it.

mod anchors;
mod shape_facts;

use std::collections::BTreeMap;

use tessera_core::{DType, Dim, Result, TensorType};

use crate::gelu_form::write_gelus_out;
use crate::graph_links::link_graph;
use crate::infer::{
    AxisSlice, Element, Fact, InferredTypes, Operator, axis_slices, is_control_flow,
};
use crate::model::{Graph, GraphNode, NodeId, ValueId, Weight};
use crate::size_estimate::SizeEstimates;
use anchors::anchor_sizes;
use shape_facts::{DimNames, ShapeFacts};

/// Folds what is known of the shapes in `graph`; `types` says what the inputs are.
pub fn fold_shapes(mut graph: Graph, types: &InferredTypes) -> Result<Graph> {
    write_gelus_out(&mut graph, types);
    link_graph(&mut graph)?;
    let mut folded = fold_with_names(graph.clone(), types, DimNames::AsDeclared)?;
    let cautious = fold_with_names(graph, types, DimNames::OfEachInput)?;
    folded.relies_on_dim_names = !folded.has_same_nodes(&cautious);
    Ok(folded)
}

fn fold_with_names(mut graph: Graph, types: &InferredTypes, names: DimNames) -> Result<Graph> {
    ShapeFolding::find(&graph, types, names).apply_to(&mut graph);
    link_graph(&mut graph)?;
    let facts = ShapeFacts::infer(&graph, types, names, &mut |_, _, _| {});
    let sizes = SizeEstimates::of_graph(&graph, types);
    anchor_sizes(&mut graph, &facts, &sizes);
    link_graph(&mut graph)?;
    Ok(graph)
}

/// A tensor that is known.
#[derive(Clone, Debug, PartialEq)]
struct KnownTensor {
    dtype: DType,
    shape: Vec<usize>,
    elements: Vec<Element>,
}

/// What can be folded in a graph.
#[derive(Debug, Default, PartialEq)]
struct ShapeFolding {
    /// Values that are constants.
    constants: BTreeMap<ValueId, KnownTensor>,
    /// Nodes that can do with a constant in place of an input.
    operands: BTreeMap<NodeId, (usize, KnownTensor)>,
}

impl ShapeFolding {
    fn find(graph: &Graph, types: &InferredTypes, names: DimNames) -> Self {
        let mut folding = Self::default();
        ShapeFacts::infer(graph, types, names, &mut |id, operator, outputs| {
            let operand = outputs.first().and_then(|output| foldable_operand(operator, output));
            if let Some((input, tensor)) = operand {
                folding.operands.insert(id, (input, tensor));
            }
            let known = match outputs {
                [output] if !is_control_flow(operator) => known_tensor(output),
                _ => None,
            };
            if let (Some(tensor), [Some(value)]) = (known, graph.node(id).outputs.as_slice())
                && !graph.is_output(*value)
            {
                folding.constants.insert(*value, tensor);
            }
        });
        folding
    }

    fn apply_to(self, graph: &mut Graph) {
        for (node, (input, tensor)) in self.operands {
            let used = graph.nodes[node.index()].inputs.get(input).copied().flatten();
            if used.is_none_or(|used| self.constants.contains_key(&used)) {
                continue;
            }
            let Some(name) = used.map(|used| format!("{}/folded", graph.value_name(used))) else {
                continue;
            };
            let id = ValueId(graph.names.len() as u32);
            graph.names.push(name);
            graph.weights.insert(id, tensor.to_weight());
            let node = &mut graph.nodes[node.index()];
            node.inputs[input] = Some(id);
            // 0 is a size that is kept, as it is where the attribute is missing.
            node.attributes.retain(|attribute| attribute.name() != "allowzero");
        }
        let is_folded = |node: &GraphNode| match node.outputs.as_slice() {
            [Some(value)] => self.constants.contains_key(value),
            _ => false,
        };
        graph.nodes.retain(|node| !is_folded(node));
        let constants = self.constants.iter();
        graph.weights.extend(constants.map(|(&id, tensor)| (id, tensor.to_weight())));
    }
}

impl KnownTensor {
    fn of_integers(dtype: DType, integers: Vec<i64>) -> Self {
        let shape = vec![integers.len()];
        Self { dtype, shape, elements: integers.into_iter().map(Element::Fixed).collect() }
    }

    fn to_weight(&self) -> Weight {
        let bytes = |element: &Element| -> Vec<u8> {
            match (self.dtype, element) {
                (DType::I64, Element::Fixed(value)) => value.to_le_bytes().into(),
                (DType::I32, Element::Fixed(value)) => (*value as i32).to_le_bytes().into(),
                (DType::Bool, Element::Fixed(value)) => vec![u8::from(*value != 0)],
                (DType::F32, Element::Real(value)) => (*value as f32).to_le_bytes().into(),
                (DType::F64, Element::Real(value)) => value.to_le_bytes().into(),
                _ => Vec::new(),
            }
        };
        let bytes: Vec<u8> = self.elements.iter().flat_map(bytes).collect();
        Weight::Dense { dtype: self.dtype, shape: self.shape.clone(), bytes: bytes.into() }
    }
}

/// The tensor, where all its elements are known.
fn known_tensor(fact: &Fact) -> Option<KnownTensor> {
    let TensorType { dtype, dims } = fact.tensor.as_ref()?;
    let elements = fact.elements.clone()?;
    let is_known = |element: &Element| match (dtype, element) {
        (DType::I64 | DType::Bool, Element::Fixed(_)) => true,
        (DType::I32, Element::Fixed(value)) => i32::try_from(*value).is_ok(),
        (DType::F32 | DType::F64, Element::Real(_)) => true,
        _ => false,
    };
    let shape = dims.as_ref()?.iter().map(Dim::fixed_size).collect::<Option<Vec<_>>>()?;
    elements.iter().all(is_known).then_some(KnownTensor { dtype: *dtype, shape, elements })
}

/// Which input of a node can be a constant, and which.
fn foldable_operand(operator: &Operator<'_>, output: &Fact) -> Option<(usize, KnownTensor)> {
    if !operator.domain.is_empty() {
        return None;
    }
    let (input, integers) = match operator.op_type {
        "Reshape" => (1, reshape_target(operator, output)?),
        "Expand" => (1, expand_target(operator)?),
        "Slice" => (2, slice_ends(operator)?),
        _ => return None,
    };
    let dtype = operator.input_dtype(input)?;
    let fits = |&value: &i64| dtype == DType::I64 || i32::try_from(value).is_ok();
    (matches!(dtype, DType::I64 | DType::I32) && integers.iter().all(fits))
        .then(|| (input, KnownTensor::of_integers(dtype, integers)))
}

/// The target of a `Reshape` with 0 for sizes that stay and -1 for one that follows.
fn reshape_target(operator: &Operator<'_>, output: &Fact) -> Option<Vec<i64>> {
    let elements = operator.input_elements(1)?;
    let keeps_zero = operator.integer_attribute("allowzero", 0) != 0;
    if keeps_zero && elements.contains(&Element::Fixed(0)) {
        return None;
    }
    let (before, after) = (operator.input_dims(0), output.dims()?);
    let mut target = Vec::with_capacity(elements.len());
    let mut open = 0;
    for (axis, element) in elements.iter().enumerate() {
        let stays = before.and_then(|dims| dims.get(axis));
        let same = |dim: &Dim| *dim != Dim::Unknown && stays == Some(dim);
        target.push(match (element, after.get(axis)?) {
            (Element::Fixed(0), _) => 0,
            (Element::Fixed(size), _) if *size > 0 => *size,
            (_, Dim::Fixed(size)) if *size > 0 => i64::try_from(*size).ok()?,
            (Element::Symbol(_), _) if same(&element.to_dim()) => 0,
            (Element::Fixed(_) | Element::Unknown, dim) if same(dim) => 0,
            _ => {
                open += 1;
                -1
            }
        });
    }
    (open <= 1).then_some(target)
}

/// The target of an `Expand` with 1 for sizes that stay.
fn expand_target(operator: &Operator<'_>) -> Option<Vec<i64>> {
    let (elements, before) = (operator.input_elements(1)?, operator.input_dims(0)?);
    let target = elements.iter().rev().enumerate().map(|(from_end, element)| {
        let stays = before.iter().rev().nth(from_end);
        match element {
            Element::Fixed(size) => Some(*size),
            Element::Symbol(_) if stays == Some(&element.to_dim()) => Some(1),
            _ => None,
        }
    });
    let mut target: Vec<i64> = target.collect::<Option<_>>()?;
    target.reverse();
    Some(target)
}

/// The ends of a `Slice` with the largest for those at the end.
fn slice_ends(operator: &Operator<'_>) -> Option<Vec<i64>> {
    let dims = operator.input_dims(0)?;
    let largest = match operator.input_dtype(2)? {
        DType::I32 => i64::from(i32::MAX),
        _ => i64::MAX,
    };
    let end = |slice: AxisSlice| match slice.end {
        Element::Fixed(end) => Some(end),
        Element::Symbol(_) if dims.get(slice.axis) == Some(&slice.end.to_dim()) => {
            (slice.step.as_integer()? > 0).then_some(largest)
        }
        _ => None,
    };
    axis_slices(operator, dims.len())?.into_iter().map(end).collect()
}
