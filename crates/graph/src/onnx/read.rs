//! Reads an ONNX file into a checked [`Graph`].

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use prost::Message;
use tessera_core::{DType, Dim, Error, Result, TensorType};

use super::external::ExternalData;
use super::optional_inputs::{default_of_weight, is_parameter};
use super::{
    GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, external, functions, map_outputs,
    tensor_shape_proto, tensors, type_proto,
};
use crate::graph_links::link_graph;
use crate::input_default::InputDefault;
use crate::model::{Graph, GraphNode, ValueId, Weight};
use crate::normal_form::normalise_nodes;
use crate::operators::{self, canonical_domain};
use crate::{body, constants, limits};

/// Reads the model in `file`, whose weights stay slices of it, and checks it.
pub fn read_model(file: Bytes, files: &mut dyn ExternalData) -> Result<Graph> {
    if file.is_empty() {
        return Err(Error::invalid("the file is empty, expected an ONNX model"));
    }
    let model = ModelProto::decode(file)
        .map_err(|error| Error::invalid(format!("not an ONNX model: {error}")))?;
    from_proto(model, files)
}

/// Checks a decoded model and indexes it.
pub fn from_proto(mut model: ModelProto, files: &mut dyn ExternalData) -> Result<Graph> {
    if model.graph.is_none() {
        return Err(Error::invalid("not an ONNX model: there is no graph in it"));
    }
    limits::check_model_size(&model)?;
    for function in &mut model.functions {
        external::resolve_nodes(&mut function.node, files)?;
    }
    if let Some(graph) = &mut model.graph {
        external::resolve_graph(graph, files)?;
    }
    functions::inline_functions(&mut model)?;
    let map_outputs = map_outputs::take_off_maps(&mut model);
    let mut opsets = BTreeMap::new();
    for opset in &model.opset_import {
        let domain = canonical_domain(opset.domain()).to_owned();
        if opset.version() < 1 {
            return Err(Error::invalid(format!(
                "opset {} of domain \"{domain}\", expected 1 or more",
                opset.version()
            )));
        }
        opsets.insert(domain, opset.version());
    }
    let has_defaults = model.ir_version() >= 4;
    let graph = model.graph.take().unwrap_or_default();
    let mut graph = GraphIndexer::new(opsets).index_graph(graph, has_defaults)?;
    graph.map_outputs = map_outputs;
    Ok(graph)
}

/// Builds the indexed graph: gives numbers to names and finds what is wrong with them.
struct GraphIndexer {
    ids: HashMap<String, ValueId>,
    graph: Graph,
    /// What defines each value so far.
    defined: Vec<Option<String>>,
}

impl GraphIndexer {
    fn new(opsets: BTreeMap<String, i64>) -> Self {
        Self { ids: HashMap::new(), graph: Graph::empty(opsets), defined: Vec::new() }
    }

    fn index_graph(mut self, mut proto: GraphProto, has_defaults: bool) -> Result<Graph> {
        self.graph.name = proto.name().to_owned();
        self.index_weights(&mut proto)?;
        self.index_inputs(&proto, has_defaults)?;
        self.index_nodes(proto.node)?;
        for info in proto.value_info.iter().chain(&proto.output) {
            if let Some(&id) = self.ids.get(info.name())
                && let Some(declared) = declared_type(info)
            {
                self.graph.declared.insert(id, declared);
            }
        }
        self.index_outputs(&proto.output)?;
        normalise_nodes(&mut self.graph);
        link_graph(&mut self.graph)?;
        Ok(self.graph)
    }

    fn index_weights(&mut self, proto: &mut GraphProto) -> Result<()> {
        for tensor in std::mem::take(&mut proto.initializer) {
            let name = tensor.name().to_owned();
            let id = self.define_value(&name, || "an initialiser".to_owned())?;
            let weight = tensors::weight_from_tensor(tensor)
                .map_err(|error| error.with_context(format!("tensor \"{name}\"")))?;
            self.graph.weights.insert(id, weight);
        }
        for sparse in std::mem::take(&mut proto.sparse_initializer) {
            let name = sparse.values.as_ref().map_or("", |values| values.name()).to_owned();
            let id = self.define_value(&name, || "a sparse initialiser".to_owned())?;
            self.graph.weights.insert(id, Weight::Sparse(Box::new(sparse)));
        }
        Ok(())
    }

    fn index_inputs(&mut self, proto: &GraphProto, has_defaults: bool) -> Result<()> {
        let listed = proto.input.iter().filter_map(|input| self.weight_named(input.name()));
        let lists_parameters = listed.map(|(_, weight)| weight).any(is_parameter);
        for input in &proto.input {
            if let Some((id, weight)) = self.weight_named(input.name()) {
                let default = default_of_weight(weight).filter(|_| has_defaults);
                match default.filter(|_| !lists_parameters) {
                    Some(default) => self.index_optional_input(id, input, default),
                    None if has_defaults => self.graph.fixed_inputs.push(id),
                    None => {}
                }
                continue;
            }
            let id = self.define_value(input.name(), || "an input".to_owned())?;
            let declared = declared_type(input).ok_or_else(|| {
                let name = input.name();
                match input.r#type.as_ref().and_then(|declared| declared.value.as_ref()) {
                    None | Some(type_proto::Value::TensorType(_)) => {
                        Error::invalid(format!("input \"{name}\" declares no dtype, expected one"))
                    }
                    Some(_) => Error::unsupported(format!(
                        "input \"{name}\" is a sequence, map or optional, expected a tensor"
                    )),
                }
            })?;
            self.graph.declared.insert(id, declared);
            self.graph.inputs.push(id);
        }
        limits::check_port_count("inputs", self.graph.inputs.len())
    }

    /// The initialiser of this name.
    fn weight_named(&self, name: &str) -> Option<(ValueId, &Weight)> {
        let id = *self.ids.get(name)?;
        Some((id, self.graph.weights.get(&id)?))
    }

    /// An input that has a value where the caller leaves it out.
    fn index_optional_input(&mut self, id: ValueId, input: &ValueInfoProto, default: InputDefault) {
        let Some(Weight::Dense { dtype, .. }) = self.graph.weights.remove(&id) else { return };
        let declared = declared_type(input);
        let declared = declared.filter(|declared| declared.can_accept(dtype, &default.shape));
        let dims = default.shape.iter().map(|&size| Dim::Fixed(size)).collect();
        let own = || TensorType::new(dtype, dims);
        self.graph.declared.insert(id, declared.unwrap_or_else(own));
        self.graph.optional.insert(id, default);
        self.graph.inputs.push(id);
    }

    fn index_nodes(&mut self, protos: Vec<NodeProto>) -> Result<()> {
        // All outputs first: a file may list its nodes in any order.
        for node in &protos {
            for output in node.output.iter().filter(|name| !name.is_empty()) {
                self.define_value(output, || proto_label(node))?;
            }
        }
        for mut proto in protos {
            let label = proto_label(&proto);
            let domain = canonical_domain(proto.domain()).to_owned();
            let opset = self.graph.opsets.get(&domain).copied().ok_or_else(|| {
                let shown = if domain.is_empty() { "ai.onnx" } else { &domain };
                Error::invalid(format!("{label}: the model imports no opset of \"{shown}\""))
            })?;
            operators::since_version(&domain, proto.op_type(), opset)
                .map_err(|error| error.with_context(&label))?;
            if domain.is_empty() && proto.op_type() == "Constant" {
                let weight = constants::constant_value(&mut proto)
                    .map_err(|error| error.with_context(&label))?;
                if let [output] = proto.output.as_slice() {
                    let id = self.resolve_value(output)?;
                    self.graph.weights.insert(id, weight);
                    continue;
                }
                return Err(Error::invalid(format!("{label}: expected one output")));
            }
            self.index_node(proto, domain).map_err(|error| error.with_context(&label))?;
        }
        Ok(())
    }

    fn index_node(&mut self, proto: NodeProto, domain: String) -> Result<()> {
        let mut inputs = Vec::with_capacity(proto.input.len());
        for name in &proto.input {
            inputs.push(if name.is_empty() { None } else { Some(self.resolve_value(name)?) });
        }
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        let mut outputs = Vec::with_capacity(proto.output.len());
        for name in &proto.output {
            outputs.push(if name.is_empty() { None } else { Some(self.resolve_value(name)?) });
        }
        while outputs.last() == Some(&None) {
            outputs.pop();
        }
        let mut attributes = proto.attribute;
        attributes.sort_by(|a, b| a.name().cmp(b.name()));
        if let Some(pair) = attributes.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
            return Err(Error::invalid(format!("attribute \"{}\" is given twice", pair[0].name())));
        }
        for attribute in &mut attributes {
            attribute.doc_string = None;
            tensors::normalise_attribute(attribute)?;
            if !attribute.ref_attr_name().is_empty() {
                return Err(Error::invalid(format!(
                    "attribute \"{}\" refers to a function's attribute, expected a value",
                    attribute.name()
                )));
            }
        }
        let captured = body::normalise_bodies(&mut attributes, &self.graph.opsets)?;
        let captures = captured
            .iter()
            .map(|name| self.resolve_value(name))
            .collect::<Result<Vec<ValueId>>>()?;
        let name = proto.name.unwrap_or_default();
        let op_type = proto.op_type.unwrap_or_default();
        self.graph.nodes.push(GraphNode {
            name,
            domain,
            op_type,
            inputs,
            outputs,
            captures,
            attributes,
        });
        Ok(())
    }

    fn index_outputs(&mut self, outputs: &[ValueInfoProto]) -> Result<()> {
        if outputs.is_empty() {
            return Err(Error::invalid("the graph has no outputs"));
        }
        for output in outputs {
            let id = self.resolve_value(output.name()).map_err(|_| {
                Error::invalid(format!(
                    "output \"{}\": nothing produces it, expected a node to",
                    output.name()
                ))
            })?;
            if !self.graph.add_output(id) {
                return Err(Error::invalid(format!(
                    "output \"{}\" is listed twice",
                    output.name()
                )));
            }
        }
        Ok(())
    }

    fn define_value(&mut self, name: &str, by: impl Fn() -> String) -> Result<ValueId> {
        if name.is_empty() {
            return Err(Error::invalid(format!("{} has no name", by())));
        }
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                let id = u32::try_from(self.graph.names.len())
                    .map(ValueId)
                    .map_err(|_| Error::invalid("more than 4 billion tensors"))?;
                self.ids.insert(name.to_owned(), id);
                self.graph.names.push(name.to_owned());
                self.defined.push(None);
                id
            }
        };
        if let Some(first) = &self.defined[id.index()] {
            return Err(Error::invalid(format!(
                "tensor \"{name}\" is defined twice, by {first} and by {}",
                by()
            )));
        }
        self.defined[id.index()] = Some(by());
        Ok(id)
    }

    fn resolve_value(&self, name: &str) -> Result<ValueId> {
        self.ids.get(name).copied().ok_or_else(|| {
            Error::invalid(format!(
                "tensor \"{name}\" is not defined, expected an input, an initialiser or a node's output"
            ))
        })
    }
}

fn proto_label(node: &NodeProto) -> String {
    let name = match (node.name(), node.output.first()) {
        ("", Some(output)) => format!("→\"{output}\""),
        (name, _) => format!("\"{name}\""),
    };
    format!("node {name} ({})", node.op_type())
}

/// The tensor type that a value declares; `None` where it declares none or another kind of value.
fn declared_type(info: &ValueInfoProto) -> Option<TensorType> {
    tensor_type(info.r#type.as_ref()?)
}

/// The tensor type that a `TypeProto` describes.
pub(crate) fn tensor_type(proto: &TypeProto) -> Option<TensorType> {
    let Some(type_proto::Value::TensorType(tensor)) = &proto.value else {
        return None;
    };
    let dtype = DType::from_onnx(tensor.elem_type())?;
    let dims = tensor.shape.as_ref().map(|shape| {
        let dim = |dim: &tensor_shape_proto::Dimension| match &dim.value {
            Some(tensor_shape_proto::dimension::Value::DimValue(size)) => {
                usize::try_from(*size).map_or(Dim::Unknown, Dim::Fixed)
            }
            Some(tensor_shape_proto::dimension::Value::DimParam(name)) if is_identifier(name) => {
                Dim::Symbol(name.clone())
            }
            _ => Dim::Unknown,
        };
        shape.dim.iter().map(dim).collect()
    });
    Some(TensorType { dtype, dims })
}

/// Whether a dimension has a name. Exporters also write `?` for each that is open, or expressions.
fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_alphanumeric() || "_.-".contains(letter))
}
