//! What a model may ask for: a file is written by anybody, and small files can ask for much.
//!
//! Every limit is far beyond what people export, and whoever meets one reads in the message what it
//! is. What is below them takes seconds and memory in proportion to the file.

use tessera_core::{DType, Error, Result, TensorType, element_count};

use crate::infer::InferredTypes;
use crate::model::Graph;
use crate::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto,
    tensor_shape_proto, type_proto,
};

/// A model has at most this many nodes, those of bodies and of inlined functions among them.
pub(crate) const MOST_NODES: usize = 1_000_000;

/// A model has at most this many inputs, and as many outputs. Each is part of every request.
pub const MOST_PORTS: usize = 4_096;

/// Names are at most this long, in bytes.
pub const LONGEST_NAME: usize = 4_096;

/// A block has at most this many nodes where it is to run, and as many weights. Engines need time
/// that grows with the square of it: ONNX Runtime about ten seconds for so many.
pub const MOST_UNIT_NODES: usize = 20_000;

/// What is computed from constants alone takes at most this much memory in all, in bytes, or
/// [`MOST_CONSTANT_GROWTH`] times what the file has. Engines compute it when they load a block.
const MOST_CONSTANT_BYTES: usize = 2 << 30;

/// How many times the bytes of its weights a model may compute from them: one of 4 bits that are
/// made to be f32, and transposed, needs 16 times as much.
const MOST_CONSTANT_GROWTH: usize = 32;

/// Refuses a file that has more than any model, before anything is made of it.
pub(crate) fn check_model_size(model: &ModelProto) -> Result<()> {
    let mut size = ModelSize { nodes: 0 };
    if let Some(graph) = &model.graph {
        check_port_count("inputs", graph.input.len().saturating_sub(graph.initializer.len()))?;
        check_port_count("outputs", graph.output.len())?;
        size.check_graph(graph)?;
    }
    for function in &model.functions {
        check_name("a function", function.name())?;
        let names = function.input.iter().chain(&function.output).chain(&function.attribute);
        check_names("a function's parameter", names.map(String::as_str))?;
        size.check_nodes(&function.node)?;
    }
    for opset in &model.opset_import {
        check_name("an operator set", opset.domain())?;
    }
    Ok(())
}

/// Refuses a model with more inputs, or outputs, than it may have.
pub(crate) fn check_port_count(what: &str, count: usize) -> Result<()> {
    if count <= MOST_PORTS {
        return Ok(());
    }
    Err(Error::unsupported(format!("the model has {count} {what}, expected at most {MOST_PORTS}")))
}

fn check_names<'a>(what: &str, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    names.into_iter().try_for_each(|name| check_name(what, name))
}

/// Refuses a name that no message could show.
fn check_name(what: &str, name: &str) -> Result<()> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    let begin: String = name.chars().take(32).collect();
    Err(Error::unsupported(format!(
        "{what} has a name of {} bytes (\"{begin}…\"), expected at most {LONGEST_NAME}",
        name.len()
    )))
}

/// What was counted of a model so far.
struct ModelSize {
    nodes: usize,
}

impl ModelSize {
    fn check_graph(&mut self, graph: &GraphProto) -> Result<()> {
        check_name("a graph", graph.name())?;
        check_names("an initialiser", graph.initializer.iter().map(|tensor| tensor.name()))?;
        let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
        for value in values {
            check_value(value)?;
        }
        self.check_nodes(&graph.node)
    }

    fn check_nodes(&mut self, nodes: &[NodeProto]) -> Result<()> {
        self.nodes = self.nodes.saturating_add(nodes.len());
        if self.nodes > MOST_NODES {
            return Err(Error::unsupported(format!(
                "the model has {} nodes or more, expected at most {MOST_NODES}",
                self.nodes
            )));
        }
        for node in nodes {
            check_name("an operator", node.op_type())?;
            check_name("an operator's domain", node.domain())?;
            check_name("a node", node.name())?;
            check_names("a tensor", node.input.iter().chain(&node.output).map(String::as_str))?;
            for attribute in &node.attribute {
                self.check_attribute(attribute)?;
            }
        }
        Ok(())
    }

    fn check_attribute(&mut self, attribute: &AttributeProto) -> Result<()> {
        check_name("an attribute", attribute.name())?;
        check_name("a function's attribute", attribute.ref_attr_name())?;
        attribute.g.iter().chain(&attribute.graphs).try_for_each(|graph| self.check_graph(graph))
    }
}

fn check_value(value: &ValueInfoProto) -> Result<()> {
    check_name("a tensor", value.name())?;
    value.r#type.as_ref().map_or(Ok(()), check_dimensions)
}

fn check_dimensions(declared: &TypeProto) -> Result<()> {
    let Some(type_proto::Value::TensorType(tensor)) = &declared.value else {
        return Ok(());
    };
    let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
    let names = dims.filter_map(|dim| match &dim.value {
        Some(tensor_shape_proto::dimension::Value::DimParam(name)) => Some(name.as_str()),
        _ => None,
    });
    check_names("a dimension", names)
}

/// Refuses a model that computes more from its constants alone than a machine has room for.
///
/// An engine does so when it loads a block, with nothing to stop it. A tensor whose size can't be
/// inferred is not counted.
pub fn check_constants(graph: &Graph, types: &InferredTypes) -> Result<()> {
    let grown = graph.weight_bytes().saturating_mul(MOST_CONSTANT_GROWTH);
    let most = grown.max(MOST_CONSTANT_BYTES);
    let mut sum = 0usize;
    let mut largest = None;
    let constant = graph.node_ids().filter(|&id| graph.is_constant_node(id));
    for value in constant.flat_map(|id| graph.node(id).produced_values()) {
        let Some(bytes) = types.get(value).and_then(byte_len) else { continue };
        sum = sum.saturating_add(bytes);
        if largest.is_none_or(|(most, _)| bytes > most) {
            largest = Some((bytes, value));
        }
    }
    let Some((_, value)) = largest.filter(|_| sum > most) else {
        return Ok(());
    };
    Err(Error::unsupported(format!(
        "what is computed from constants alone takes {sum} bytes, expected at most {most}; the \
         largest is \"{}\", {}",
        graph.value_name(value),
        types.get(value).map_or(String::new(), ToString::to_string)
    )))
}

/// The bytes of a tensor of this type; `None` where its shape is open.
fn byte_len(tensor: &TensorType) -> Option<usize> {
    let dims = tensor.dims.as_ref()?;
    let shape = dims.iter().map(tessera_core::Dim::fixed_size).collect::<Option<Vec<_>>>()?;
    // A string takes more than its place, and a size beyond all numbers is beyond all limits.
    let Some(count) = element_count(&shape) else { return Some(usize::MAX) };
    match tensor.dtype {
        DType::String => Some(count.saturating_mul(size_of::<String>())),
        dtype => Some(dtype.byte_len(count).unwrap_or(usize::MAX)),
    }
}
