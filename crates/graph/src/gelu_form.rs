//! `Gelu` as the operators that it is short for.
//!
//! Exporters write it so up to opset 19, and as one operator from 20 on; a model that is exported
//! again has its layers in common with what it was before only where both are written alike. Engines
//! find the pattern and run it as one.

use std::f32::consts::SQRT_2;

use tessera_core::DType;

use crate::infer::InferredTypes;
use crate::model::{Graph, GraphNode, ValueId, Weight};

/// Writes every `Gelu` of 32-bit floats out; the graph must be linked afterwards.
pub(crate) fn write_gelus_out(graph: &mut Graph, types: &InferredTypes) {
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes) {
        match plain_gelu(&node, types) {
            Some((input, output)) => nodes.extend(written_out(graph, &node, input, output)),
            None => nodes.push(node),
        }
    }
    graph.nodes = nodes;
}

/// The input and the output of a `Gelu` that is not approximate.
fn plain_gelu(node: &GraphNode, types: &InferredTypes) -> Option<(ValueId, ValueId)> {
    let ([Some(input)], [Some(output)]) = (node.inputs.as_slice(), node.outputs.as_slice()) else {
        return None;
    };
    let approximate = node.attribute("approximate").and_then(|found| found.s.as_deref());
    let is_exact = approximate.is_none_or(|text| text == b"none");
    let is_gelu = node.domain.is_empty() && node.op_type == "Gelu" && is_exact;
    let is_float = types.get(*input).is_some_and(|known| known.dtype == DType::F32);
    (is_gelu && is_float).then_some((*input, *output))
}

/// `x (erf(x / √2) + 1) / 2`, in the order in which exporters write it.
fn written_out(
    graph: &mut Graph,
    gelu: &GraphNode,
    input: ValueId,
    output: ValueId,
) -> [GraphNode; 5] {
    let mut new_value = |name: &str| {
        let id = ValueId(graph.names.len() as u32);
        graph.names.push(format!("{}/{name}", graph.names[output.index()]));
        id
    };
    let [quotient, error, sum, product] = ["div", "erf", "add", "mul"].map(&mut new_value);
    let constants = [SQRT_2, 1.0, 0.5].map(|value| {
        let id = new_value("constant");
        (id, value)
    });
    let [root, one, half] = constants.map(|(id, value)| {
        let bytes = value.to_le_bytes().to_vec().into();
        graph.weights.insert(id, Weight::Dense { dtype: DType::F32, shape: Vec::new(), bytes });
        id
    });
    let node = |op_type: &str, inputs: &[ValueId], output: ValueId| GraphNode {
        op_type: op_type.to_owned(),
        inputs: inputs.iter().map(|&id| Some(id)).collect(),
        outputs: vec![Some(output)],
        attributes: Vec::new(),
        ..gelu.clone()
    };
    [
        node("Div", &[input, root], quotient),
        node("Erf", &[quotient], error),
        node("Add", &[error, one], sum),
        node("Mul", &[input, sum], product),
        node("Mul", &[product, half], output),
    ]
}
