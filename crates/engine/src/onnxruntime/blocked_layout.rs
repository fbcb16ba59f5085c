//! Keeps ONNX Runtime's blocked layout going across the start of a block.
//!
//! On the CPU, ONNX Runtime lays tensors out in blocks of channels (NCHWc) between convolutions. A
//! residual `Add` stays in that layout, and is fused into its convolution, only if both of its
//! inputs come from such nodes; an input of a block does not, and then no `Add` after it is fused
//! either (measured on blocks of ResNet-50: 5 to 25 % longer). So an input that feeds both a
//! convolution and an `Add` is passed through a pooling over one element, which ONNX Runtime takes
//! into the layout; once it has optimised the block, the pooling, which does nothing, is taken out.

use std::collections::HashMap;

use tessera_core::DType;
use tessera_graph::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto,
    attribute_proto::AttributeType, type_proto,
};

/// What the names of the tensors that we put in end with.
const BLOCKED_LAYOUT_SUFFIX: &str = ":blocked";

/// Puts poolings over one element behind the inputs that would break the layout.
pub(super) fn enter_blocked_layout(model: &mut ModelProto) {
    let Some(graph) = &mut model.graph else {
        return;
    };
    let inputs: Vec<String> =
        graph.input.iter().filter(|input| is_image(input)).map(|i| i.name().to_owned()).collect();
    for input in inputs {
        let feeds = |op: &str| {
            graph.node.iter().any(|node| {
                node.domain().is_empty() && node.op_type() == op && node.input.contains(&input)
            })
        };
        if !feeds("Conv") || !feeds("Add") {
            continue;
        }
        let through = format!("{input}{BLOCKED_LAYOUT_SUFFIX}");
        rename_inputs(graph, &HashMap::from([(input.clone(), through.clone())]));
        graph.node.insert(0, identity_pooling(input, through));
    }
}

/// Whether a value is known to be what the layout is for: f32, with two dimensions of space.
fn is_image(value: &ValueInfoProto) -> bool {
    let Some(type_proto::Value::TensorType(tensor)) =
        value.r#type.as_ref().and_then(|declared| declared.value.as_ref())
    else {
        return false;
    };
    tensor.elem_type() == DType::F32.to_onnx()
        && tensor.shape.as_ref().is_some_and(|shape| shape.dim.len() == 4)
}

fn identity_pooling(from: String, to: String) -> NodeProto {
    NodeProto {
        input: vec![from],
        output: vec![to],
        op_type: Some("AveragePool".to_owned()),
        attribute: vec![AttributeProto {
            name: Some("kernel_shape".to_owned()),
            r#type: Some(AttributeType::Ints as i32),
            ints: vec![1, 1],
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Takes the poolings over one element out again.
pub(super) fn leave_blocked_layout(graph: &mut GraphProto) {
    let is_ours = |node: &NodeProto| {
        node.op_type() == "AveragePool"
            && node.input.len() == 1
            && node.output.len() == 1
            && node
                .attribute
                .iter()
                .any(|a| a.name() == "kernel_shape" && a.ints.iter().all(|&size| size == 1))
            && node
                .attribute
                .iter()
                .filter(|a| matches!(a.name(), "strides" | "pads"))
                .all(|a| a.ints.iter().all(|&v| v == i64::from(a.name() == "strides")))
            && !graph.output.iter().any(|output| output.name() == node.output[0])
    };
    let mut renamed = HashMap::new();
    let (ours, kept): (Vec<NodeProto>, Vec<NodeProto>) =
        std::mem::take(&mut graph.node).into_iter().partition(is_ours);
    for mut node in ours {
        if let (Some(from), Some(to)) = (node.input.pop(), node.output.pop()) {
            renamed.insert(to, from);
        }
    }
    graph.node = kept;
    // One may have stood behind another.
    while let Some(key) =
        renamed.iter().find(|(_, to)| renamed.contains_key(*to)).map(|(k, _)| k.clone())
    {
        let through = renamed[&key].clone();
        let to = renamed[&through].clone();
        renamed.insert(key, to);
    }
    rename_inputs(graph, &renamed);
}

fn rename_inputs(graph: &mut GraphProto, names: &HashMap<String, String>) {
    if names.is_empty() {
        return;
    }
    let nested = graph.node.iter_mut().flat_map(|node| {
        for input in &mut node.input {
            if let Some(to) = names.get(input) {
                to.clone_into(input);
            }
        }
        node.attribute.iter_mut().flat_map(|a| a.g.iter_mut().chain(&mut a.graphs))
    });
    for body in nested.collect::<Vec<_>>() {
        rename_inputs(body, names);
    }
}
