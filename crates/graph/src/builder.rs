//! Makes ONNX graphs in code: the zoo's architectures, and small graphs for tests.
//!
//! Values are handled by name: whatever makes a value returns its name, and the next node takes
//! it. Nothing is checked here, so that tests can make graphs that are wrong on purpose.

use std::collections::HashSet;

use bytes::Bytes;
use tessera_core::{DType, Dim};

use crate::onnx::attribute_proto::AttributeType;
use crate::onnx::tensor_shape_proto::{Dimension, dimension};
use crate::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};

/// The version of the file format that goes with opset 17.
const IR_VERSION: i64 = 8;

/// The opset of a graph that asks for none: the first with `LayerNormalization`.
const DEFAULT_OPSET: i64 = 17;

/// What the dimensions of a value may be written as: `[1, 3]`, or [`Dim`]s where some have names.
pub trait IntoDims {
    /// The dimensions.
    fn into_dims(self) -> Vec<Dim>;
}

impl<const RANK: usize> IntoDims for [usize; RANK] {
    fn into_dims(self) -> Vec<Dim> {
        self.into_iter().map(Dim::Fixed).collect()
    }
}

impl<const RANK: usize> IntoDims for [Dim; RANK] {
    fn into_dims(self) -> Vec<Dim> {
        self.into()
    }
}

impl IntoDims for &[usize] {
    fn into_dims(self) -> Vec<Dim> {
        self.iter().copied().map(Dim::Fixed).collect()
    }
}

impl IntoDims for &[Dim] {
    fn into_dims(self) -> Vec<Dim> {
        self.to_vec()
    }
}

impl IntoDims for Vec<Dim> {
    fn into_dims(self) -> Vec<Dim> {
        self
    }
}

/// Builds one graph, node by node.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    graph: GraphProto,
    opset: i64,
    /// Names of values that are taken.
    values: HashSet<String>,
    /// Names of nodes that are taken.
    nodes: HashSet<String>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            graph: GraphProto { name: Some(name.into()), ..GraphProto::default() },
            opset: DEFAULT_OPSET,
            values: HashSet::new(),
            nodes: HashSet::new(),
        }
    }

    /// The same graph for another version of the operators (17 unless told).
    #[must_use]
    pub fn with_opset(mut self, version: i64) -> Self {
        self.opset = version;
        self
    }

    /// Adds an input; returns its name.
    pub fn add_input(&mut self, name: &str, dtype: DType, dims: impl IntoDims) -> String {
        let name = unique_name(&mut self.values, name);
        self.graph.input.push(value_info(&name, dtype, Some(dims.into_dims())));
        name
    }

    /// Adds an input of which only the dtype is known; returns its name.
    pub fn add_input_of_any_shape(&mut self, name: &str, dtype: DType) -> String {
        let name = unique_name(&mut self.values, name);
        self.graph.input.push(value_info(&name, dtype, None));
        name
    }

    /// Makes `value` an output, without saying of what type.
    pub fn add_output(&mut self, value: &str) {
        self.graph
            .output
            .push(ValueInfoProto { name: Some(value.to_owned()), ..ValueInfoProto::default() });
    }

    /// Makes `value` an output of this type.
    pub fn add_typed_output(&mut self, value: &str, dtype: DType, dims: impl IntoDims) {
        self.graph.output.push(value_info(value, dtype, Some(dims.into_dims())));
    }

    /// Makes `value` an output of which only the dtype is known.
    pub fn add_output_of_any_shape(&mut self, value: &str, dtype: DType) {
        self.graph.output.push(value_info(value, dtype, None));
    }

    /// Declares the type of a value between nodes.
    pub fn declare_type(&mut self, value: &str, dtype: DType, dims: impl IntoDims) {
        self.graph.value_info.push(value_info(value, dtype, Some(dims.into_dims())));
    }

    /// Adds an f32 weight; returns its name.
    pub fn add_weight(&mut self, name: &str, dims: &[usize], data: Vec<f32>) -> String {
        self.add_initializer(f32_tensor(name, dims, &data))
    }

    /// Adds an i64 weight; returns its name.
    pub fn add_i64_weight(&mut self, name: &str, dims: &[usize], data: Vec<i64>) -> String {
        self.add_initializer(i64_tensor(name, dims, &data))
    }

    /// Adds a weight from its little-endian bytes; returns its name.
    ///
    /// `data_type` is a number of ONNX's `TensorProto.DataType`, known to Tessera or not.
    pub fn add_raw_weight(
        &mut self,
        name: &str,
        data_type: i32,
        dims: &[usize],
        data: Bytes,
    ) -> String {
        self.add_initializer(raw_tensor(name, data_type, dims, data))
    }

    /// Adds a weight that is a tensor already; returns its name.
    pub fn add_initializer(&mut self, mut tensor: TensorProto) -> String {
        let name = unique_name(&mut self.values, tensor.name.as_deref().unwrap_or("weight"));
        tensor.name = Some(name.clone());
        self.graph.initializer.push(tensor);
        name
    }

    /// Adds a node with one output and a made-up name; returns the output's name.
    ///
    /// An input that is left out is the empty name.
    pub fn add_node(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attributes: impl IntoIterator<Item = AttributeProto>,
    ) -> String {
        let name = self.made_up_name(op_type);
        self.add_named_node(&name, op_type, inputs, attributes)
    }

    /// Adds a node with one output, `<name>_output_0`; returns the output's name.
    pub fn add_named_node(
        &mut self,
        name: &str,
        op_type: &str,
        inputs: &[&str],
        attributes: impl IntoIterator<Item = AttributeProto>,
    ) -> String {
        let output = unique_name(&mut self.values, &format!("{name}_output_0"));
        self.add_node_into(name, op_type, inputs, &[&output], attributes);
        output
    }

    /// Adds a node with `outputs` outputs and a made-up name; returns the outputs' names.
    pub fn add_node_with_outputs(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        outputs: usize,
        attributes: impl IntoIterator<Item = AttributeProto>,
    ) -> Vec<String> {
        let name = self.made_up_name(op_type);
        let outputs: Vec<String> = (0..outputs)
            .map(|number| unique_name(&mut self.values, &format!("{name}_output_{number}")))
            .collect();
        let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
        self.add_node_into(&name, op_type, inputs, &names, attributes);
        outputs
    }

    /// Adds a node whose outputs have these very names.
    pub fn add_node_into(
        &mut self,
        name: &str,
        op_type: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: impl IntoIterator<Item = AttributeProto>,
    ) {
        let name = unique_name(&mut self.nodes, name);
        self.values.extend(outputs.iter().map(|&output| output.to_owned()));
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: outputs.iter().map(|&output| output.to_owned()).collect(),
            name: Some(name),
            op_type: Some(op_type.to_owned()),
            attribute: attributes.into_iter().collect(),
            ..NodeProto::default()
        });
    }

    /// The graph alone, as the body of an `If` or a `Loop`.
    pub fn build_graph(self) -> GraphProto {
        self.graph
    }

    /// The graph as a model.
    pub fn build_model(self) -> ModelProto {
        ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: vec![OperatorSetIdProto {
                domain: Some(String::new()),
                version: Some(self.opset),
            }],
            producer_name: Some("tessera".to_owned()),
            graph: Some(self.graph),
            ..ModelProto::default()
        }
    }

    fn made_up_name(&self, op_type: &str) -> String {
        format!("{op_type}_{}", self.graph.node.len())
    }
}

/// Takes `wanted`, or the first of `wanted_1`, `wanted_2`, … that is free.
fn unique_name(taken: &mut HashSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    let mut number = 0;
    while !taken.insert(name.clone()) {
        number += 1;
        name = format!("{wanted}_{number}");
    }
    name
}

fn value_info(name: &str, dtype: DType, dims: Option<Vec<Dim>>) -> ValueInfoProto {
    let shape =
        dims.map(|dims| TensorShapeProto { dim: dims.into_iter().map(proto_dimension).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(dtype.to_onnx()), shape };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

fn proto_dimension(dim: Dim) -> Dimension {
    let value = match dim {
        Dim::Fixed(size) => Some(dimension::Value::DimValue(size as i64)),
        Dim::Symbol(name) => Some(dimension::Value::DimParam(name)),
        Dim::Unknown => None,
    };
    Dimension { value, ..Dimension::default() }
}

/// A tensor from its little-endian bytes.
pub fn raw_tensor(name: &str, data_type: i32, dims: &[usize], data: Bytes) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(data_type),
        dims: dims.iter().map(|&size| size as i64).collect(),
        raw_data: Some(data),
        ..TensorProto::default()
    }
}

/// An f32 tensor.
pub fn f32_tensor(name: &str, dims: &[usize], data: &[f32]) -> TensorProto {
    let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    raw_tensor(name, DType::F32.to_onnx(), dims, bytes.into())
}

/// An i64 tensor.
pub fn i64_tensor(name: &str, dims: &[usize], data: &[i64]) -> TensorProto {
    let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    raw_tensor(name, DType::I64.to_onnx(), dims, bytes.into())
}

/// An integer attribute.
pub fn int_attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..empty_attribute(name, AttributeType::Int) }
}

/// An attribute that lists integers.
pub fn ints_attribute(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..empty_attribute(name, AttributeType::Ints) }
}

/// A floating-point attribute.
pub fn float_attribute(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..empty_attribute(name, AttributeType::Float) }
}

/// A text attribute.
pub fn string_attribute(name: &str, value: &str) -> AttributeProto {
    let value = Bytes::copy_from_slice(value.as_bytes());
    AttributeProto { s: Some(value), ..empty_attribute(name, AttributeType::String) }
}

/// An attribute that holds a tensor.
pub fn tensor_attribute(name: &str, value: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(value), ..empty_attribute(name, AttributeType::Tensor) }
}

/// An attribute that holds a graph, such as a branch of an `If`.
pub fn graph_attribute(name: &str, value: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(value), ..empty_attribute(name, AttributeType::Graph) }
}

fn empty_attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(kind as i32),
        ..AttributeProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_graph_holds_what_was_added_in_order() {
        let mut builder = GraphBuilder::new("small");
        let batch = Dim::Symbol("batch".to_owned());
        let x = builder.add_input("x", DType::F32, [batch.clone(), Dim::Fixed(2)]);
        let w = builder.add_weight("w", &[3, 2], vec![1.0; 6]);
        let hidden = builder.add_node("Gemm", &[&x, &w], [int_attribute("transB", 1)]);
        let y = builder.add_named_node("/relu/Relu", "Relu", &[&hidden], []);
        builder.add_typed_output(&y, DType::F32, [batch, Dim::Fixed(3)]);
        let model = builder.build_model();

        assert_eq!(model.ir_version, Some(8));
        assert_eq!(model.opset_import[0].version, Some(17));
        let graph = model.graph.unwrap();
        assert_eq!(graph.name.as_deref(), Some("small"));
        assert_eq!(graph.node[0].input, ["x", "w"]);
        assert_eq!(graph.node[1].input, graph.node[0].output);
        assert_eq!(graph.node[1].output, ["/relu/Relu_output_0"]);
        assert_eq!(graph.initializer[0].dims, [3, 2]);
        assert_eq!(graph.initializer[0].raw_data.as_ref().unwrap().len(), 24);
        assert_eq!(graph.output[0].name.as_deref(), Some("/relu/Relu_output_0"));
    }

    #[test]
    fn names_that_are_taken_get_a_number() {
        let mut builder = GraphBuilder::new("names");
        let x = builder.add_input("x", DType::F32, [1]);
        let first = builder.add_named_node("relu", "Relu", &[&x], []);
        let second = builder.add_named_node("relu", "Relu", &[&first], []);
        assert_ne!(first, second);
        assert_ne!(builder.add_weight("x", &[1], vec![0.0]), x);
        let graph = builder.build_graph();
        assert_eq!(graph.node[1].name.as_deref(), Some("relu_1"));
    }

    #[test]
    fn a_node_may_have_several_outputs() {
        let mut builder = GraphBuilder::new("split");
        let x = builder.add_input_of_any_shape("x", DType::F32);
        let halves = builder.add_node_with_outputs("Split", &[&x], 2, [int_attribute("axis", 0)]);
        assert_eq!(halves.len(), 2);
        assert_ne!(halves[0], halves[1]);
        assert_eq!(builder.build_graph().node[0].output, halves);
    }

    #[test]
    fn a_branch_is_an_attribute() {
        let mut branch = GraphBuilder::new("then");
        branch.add_node_into("copy", "Identity", &["outer"], &["result"], []);
        branch.add_output("result");
        let mut builder = GraphBuilder::new("outside").with_opset(13);
        let condition = builder.add_input("condition", DType::Bool, [1]);
        builder.add_node(
            "If",
            &[&condition],
            [graph_attribute("then_branch", branch.build_graph())],
        );
        let model = builder.build_model();
        assert_eq!(model.opset_import[0].version, Some(13));
        let node = &model.graph.unwrap().node[0];
        assert_eq!(node.attribute[0].g.as_ref().unwrap().node[0].input, ["outer"]);
    }
}
