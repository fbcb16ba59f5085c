//! Brings nodes into one form, in which exporters that mean the same write the same.
//!
//! An `Identity` is taken away: one exporter writes it for weights that several layers share, another
//! not. So is an attribute that says what is meant without it, of those that some versions of an
//! operator don't have. A convolution says all that it does: some engines ask for that. What it adds
//! is left out where that is zero, as one exporter does and another does not. Of what is added or
//! multiplied a weight comes second.

use std::collections::HashMap;

use crate::builder::{int_attribute, ints_attribute};
use crate::model::{Graph, GraphNode, ValueId, Weight};
use crate::onnx::AttributeProto;

/// Attributes that may be missing, and what they say then.
const DEFAULT_INTEGERS: &[(&str, &str, i64)] = &[
    ("AveragePool", "ceil_mode", 0),
    ("BatchNormalization", "training_mode", 0),
    ("Cast", "saturate", 1),
    ("LayerNormalization", "stash_type", 1),
    ("MaxPool", "ceil_mode", 0),
    ("MaxPool", "storage_order", 0),
    ("QuantizeLinear", "saturate", 1),
    ("ReduceMax", "noop_with_empty_axes", 0),
    ("ReduceMean", "noop_with_empty_axes", 0),
    ("ReduceMin", "noop_with_empty_axes", 0),
    ("ReduceSum", "noop_with_empty_axes", 0),
    ("Reshape", "allowzero", 0),
];

/// Brings the nodes of a graph into one form; it must be linked afterwards.
pub(crate) fn normalise_nodes(graph: &mut Graph) {
    for node in graph.nodes.iter_mut().filter(|node| node.domain.is_empty()) {
        let op_type = &node.op_type;
        node.attributes.retain(|attribute| !says_default(op_type, attribute));
    }
    take_identities_away(graph);
    let weights = &graph.weights;
    for node in graph.nodes.iter_mut().filter(|node| node.domain.is_empty()) {
        let kernel = match (node.op_type.as_str(), node.inputs.get(1).copied().flatten()) {
            ("Conv", Some(weight)) => match weights.get(&weight) {
                Some(Weight::Dense { shape, .. }) => shape.get(2..).map(<[usize]>::to_vec),
                _ => None,
            },
            _ => None,
        };
        if matches!(node.op_type.as_str(), "Add" | "Mul")
            && let [Some(first), Some(second)] = node.inputs[..]
            && weights.contains_key(&first)
            && !weights.contains_key(&second)
        {
            node.inputs.swap(0, 1);
        }
        if matches!(node.op_type.as_str(), "Conv" | "ConvTranspose")
            && let Some(Some(bias)) = node.inputs.get(2)
            && weights.get(bias).is_some_and(is_zero)
        {
            node.inputs.truncate(2);
        }
        if let Some(kernel) = kernel.filter(|kernel| !kernel.is_empty()) {
            complete_convolution(node, &kernel);
        }
    }
}

fn is_zero(weight: &Weight) -> bool {
    match weight {
        Weight::Dense { bytes, .. } => bytes.iter().all(|&byte| byte == 0),
        _ => false,
    }
}

/// Writes down what a convolution does where nothing is said.
fn complete_convolution(node: &mut GraphNode, kernel: &[usize]) {
    let pads_itself = node.attribute("auto_pad").is_some();
    let mut add = |name: &str, integers: Vec<i64>| {
        if node.attribute(name).is_none() {
            node.attributes.push(ints_attribute(name, &integers));
        }
    };
    add("dilations", vec![1; kernel.len()]);
    add("kernel_shape", kernel.iter().map(|&size| size as i64).collect());
    add("strides", vec![1; kernel.len()]);
    if !pads_itself {
        add("pads", vec![0; kernel.len() * 2]);
    }
    if node.attribute("group").is_none() {
        node.attributes.push(int_attribute("group", 1));
    }
    node.attributes.sort_by(|a, b| a.name().cmp(b.name()));
}

fn says_default(op_type: &str, attribute: &AttributeProto) -> bool {
    let is_default = |&(operator, name, value): &(&str, &str, i64)| {
        operator == op_type && name == attribute.name() && attribute.i == Some(value)
    };
    let is_any_padding = attribute.name() == "auto_pad"
        && attribute.s.as_deref().is_some_and(|text| text == b"NOTSET");
    is_any_padding || DEFAULT_INTEGERS.iter().any(is_default)
}

fn take_identities_away(graph: &mut Graph) {
    let passed_on = |node: &GraphNode| match (node.inputs.as_slice(), node.outputs.as_slice()) {
        ([Some(input)], [Some(output)])
            if node.domain.is_empty()
                && node.op_type == "Identity"
                && !graph.is_output(*output) =>
        {
            Some((*output, *input))
        }
        _ => None,
    };
    let same: HashMap<ValueId, ValueId> = graph.nodes.iter().filter_map(passed_on).collect();
    if same.is_empty() {
        return;
    }
    let mut sources: HashMap<ValueId, ValueId> = HashMap::with_capacity(same.len());
    for &first in same.keys() {
        let (mut path, mut value) = (Vec::new(), first);
        while let (None, Some(&before)) = (sources.get(&value), same.get(&value)) {
            // A file may have a cycle of them, which is refused when the graph is linked.
            if path.len() > same.len() {
                return;
            }
            path.push(value);
            value = before;
        }
        let source = sources.get(&value).copied().unwrap_or(value);
        sources.extend(path.into_iter().map(|value| (value, source)));
    }
    for node in &mut graph.nodes {
        for value in node.inputs.iter_mut().flatten().chain(&mut node.captures) {
            if let Some(&source) = sources.get(value) {
                *value = source;
            }
        }
    }
    let is_taken = |node: &GraphNode| match node.outputs.as_slice() {
        [Some(output)] => sources.contains_key(output),
        _ => false,
    };
    graph.nodes.retain(|node| !is_taken(node));
}
