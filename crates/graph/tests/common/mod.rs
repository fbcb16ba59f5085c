//! What the tests share: reading and splitting in one word, an interpreter of element-wise graphs
//! that runs a model whole and in pieces, and random graphs.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "every test file uses a part of this, and tests fail by panicking"
)]

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use tessera_core::{ContentHash, DType, Error};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::infer::infer_types;
use tessera_graph::onnx::{
    FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, tensor_proto,
};
use tessera_graph::{
    Block, ExitSpec, Graph, InferredTypes, NoExternalData, NodeId, Partition, Split, TensorSource,
    ValueId, Weight, cut_points, read_model, split_into_chain,
};

/// A model that was read, with its types.
pub struct Model {
    pub graph: Graph,
    pub types: InferredTypes,
}

impl Model {
    pub fn of(builder: GraphBuilder) -> Self {
        Self::read(&builder.build_model())
    }

    pub fn read(proto: &ModelProto) -> Self {
        let graph = try_read(proto).unwrap_or_else(|error| panic!("{error}"));
        let types = infer_types(&graph, &BTreeMap::new()).unwrap();
        Self { graph, types }
    }

    pub fn id(&self, name: &str) -> ValueId {
        self.graph.find_value(name).unwrap_or_else(|| panic!("no value {name}"))
    }

    /// The operators of the nodes, in order.
    pub fn op_types(&self) -> Vec<&str> {
        let nodes = self.graph.nodes().iter();
        nodes.map(|node| node.op_type.as_str()).collect()
    }

    /// The names of the cut points, in order.
    pub fn cuts(&self, exits: &[ExitSpec]) -> Vec<String> {
        let points = cut_points(&self.graph, &self.types, exits).unwrap();
        points.cuts.iter().map(|cut| self.graph.value_name(cut.tensor).to_owned()).collect()
    }

    pub fn split(&self, how: &Split, exits: &[ExitSpec]) -> Partition {
        split_into_chain(&self.graph, &self.types, how, exits)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The model as one block.
    pub fn whole(&self) -> Block {
        let partition = self.split(&Split::Blocks(1), &[]);
        assert_eq!(partition.graph.blocks.len(), 1);
        partition.blocks[&partition.graph.blocks[0].block].clone()
    }

    /// What the model computes from made-up inputs.
    pub fn run(&self) -> BTreeMap<String, Vec<f64>> {
        run_graph(&self.graph, &self.inputs())
    }

    /// What the pieces compute from the same inputs.
    pub fn run_pieces(&self, partition: &Partition) -> BTreeMap<String, Vec<f64>> {
        run_partition(partition, &self.inputs())
    }

    fn inputs(&self) -> HashMap<String, Vec<f64>> {
        let made_up = |(number, &id): (usize, &ValueId)| {
            let shape = self.types.get(id).unwrap().fixed_shape().unwrap();
            let count: usize = shape.iter().product();
            let element = |at: usize| ((at * 7 + number * 13) % 11) as f64 / 4.0 - 1.25;
            let values = (0..count).map(element).collect();
            (self.graph.value_name(id).to_owned(), values)
        };
        self.graph.inputs().iter().enumerate().map(made_up).collect()
    }
}

pub fn try_read(proto: &ModelProto) -> Result<Graph, Error> {
    read_model(proto.encode_to_vec().into(), &mut NoExternalData)
}

/// The message of an error, which must be one line.
pub fn one_line(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.is_empty(), "an error without a message");
    assert!(!text.contains(['\n', '\r']), "{text:?}");
    text
}

/// Why a model is refused.
pub fn refusal(proto: &ModelProto) -> String {
    one_line(&try_read(proto).expect_err("should be refused"))
}

/// Asserts that a message has all these parts.
#[track_caller]
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
}

pub fn exit(output: &str, threshold: f32) -> ExitSpec {
    ExitSpec { output: output.to_owned(), threshold }
}

pub fn graph_mut(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

pub fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// A node by hand.
pub fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        input: owned(inputs),
        output: owned(outputs),
        name: Some(format!("make {}", outputs.first().unwrap_or(&"nothing"))),
        op_type: Some(op_type.to_owned()),
        ..NodeProto::default()
    }
}

/// A call of a function of the domain `local`.
pub fn call(function: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("local".to_owned()), ..node(function, inputs, outputs) }
}

/// A function of the domain `local`.
pub fn function(
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
) -> FunctionProto {
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some("local".to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        node: nodes,
        opset_import: vec![opset("", 17), opset("local", 1)],
        ..FunctionProto::default()
    }
}

/// A model of these nodes and functions: `x` of f32[4] in, `y` out.
pub fn calling(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    let mut builder = GraphBuilder::new("calling");
    builder.add_input("x", DType::F32, [4]);
    builder.add_typed_output("y", DType::F32, [4]);
    let mut model = builder.build_model();
    graph_mut(&mut model).node = nodes;
    model.opset_import.push(opset("local", 1));
    model.functions = functions;
    model
}

/// Weights that differ from seed to seed, between -1 and 1, in steps that f32 holds exactly.
pub fn made_up(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 20) as f32 / 2048.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn apply(op: &str, inputs: &[Vec<f64>]) -> Vec<f64> {
    let one = |f: fn(f64) -> f64| -> Vec<f64> { inputs[0].iter().map(|&a| f(a)).collect() };
    let two = |f: fn(f64, f64) -> f64| -> Vec<f64> {
        assert_eq!(inputs[0].len(), inputs[1].len(), "{op}");
        inputs[0].iter().zip(&inputs[1]).map(|(&a, &b)| f(a, b)).collect()
    };
    match op {
        "Add" => two(|a, b| a + b),
        "Sub" => two(|a, b| a - b),
        // Clamped, so that no random graph gets to infinity and from there to NaN.
        "Mul" => two(|a, b| (a * b).clamp(-1e6, 1e6)),
        "Max" => two(f64::max),
        "Relu" => one(|a| a.max(0.0)),
        "Sigmoid" => one(|a| 1.0 / (1.0 + (-a).exp())),
        "Tanh" => one(f64::tanh),
        "Neg" => one(|a| -a),
        "Identity" => one(|a| a),
        "Softmax" => {
            let sum: f64 = inputs[0].iter().map(|a| a.exp()).sum();
            inputs[0].iter().map(|a| a.exp() / sum).collect()
        }
        other => panic!("the interpreter knows no {other}"),
    }
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(4)
        .map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap()).into())
        .collect()
}

fn run_graph(graph: &Graph, inputs: &HashMap<String, Vec<f64>>) -> BTreeMap<String, Vec<f64>> {
    let mut values: HashMap<ValueId, Vec<f64>> = HashMap::new();
    for (id, weight) in graph.weights() {
        if let Weight::Dense { bytes, .. } = weight {
            values.insert(id, floats(bytes));
        }
    }
    for &id in graph.inputs() {
        values.insert(id, inputs[graph.value_name(id)].clone());
    }
    for node in graph.nodes() {
        let used: Vec<Vec<f64>> =
            node.inputs.iter().map(|id| values[&id.unwrap()].clone()).collect();
        values.insert(node.outputs[0].unwrap(), apply(&node.op_type, &used));
    }
    graph
        .outputs()
        .iter()
        .map(|id| (graph.value_name(*id).to_owned(), values[id].clone()))
        .collect()
}

fn run_partition(
    partition: &Partition,
    inputs: &HashMap<String, Vec<f64>>,
) -> BTreeMap<String, Vec<f64>> {
    assert!(partition.graph.is_sound());
    let graph = &partition.graph;
    let mut made: Vec<Vec<Vec<f64>>> = Vec::new();
    let fetch = |made: &[Vec<Vec<f64>>], source: TensorSource| match source {
        TensorSource::Input(index) => inputs[&graph.inputs[index].name].clone(),
        TensorSource::Block { block, output } => made[block][output].clone(),
    };
    for place in &graph.blocks {
        let block = &partition.blocks[&place.block];
        assert_eq!(block.inputs().len(), place.inputs.len());
        assert_eq!(block.outputs().len(), place.outputs.len());
        let given = place.inputs.iter().map(|&source| fetch(&made, source));
        let given: Vec<Vec<f64>> = given.collect();
        made.push(run_block(block, &partition.weights, given));
    }
    let mut results: BTreeMap<String, Vec<f64>> = graph
        .outputs
        .iter()
        .map(|(port, source)| (port.name.clone(), fetch(&made, *source)))
        .collect();
    for exit in &graph.exits {
        let ports = &graph.blocks[exit.head].outputs;
        let at = ports.iter().position(|port| port.name == exit.output);
        results.insert(exit.output.clone(), made[exit.head][at.unwrap()].clone());
    }
    results
}

/// Decodes the file of a block and runs it.
fn run_block(
    block: &Block,
    weights: &HashMap<ContentHash, Bytes>,
    inputs: Vec<Vec<f64>>,
) -> Vec<Vec<f64>> {
    let graph = program(block);
    let mut values: HashMap<String, Vec<f64>> = HashMap::new();
    for tensor in &graph.initializer {
        values.insert(tensor.name().to_owned(), floats(&data(tensor, weights)));
    }
    for (port, value) in graph.input.iter().zip(inputs) {
        values.insert(port.name().to_owned(), value);
    }
    for node in &graph.node {
        let used: Vec<Vec<f64>> = node.input.iter().map(|name| values[name].clone()).collect();
        values.insert(node.output[0].clone(), apply(node.op_type(), &used));
    }
    graph.output.iter().map(|port| values[port.name()].clone()).collect()
}

fn data(tensor: &TensorProto, weights: &HashMap<ContentHash, Bytes>) -> Bytes {
    if tensor.data_location() != tensor_proto::DataLocation::External {
        return tensor.raw_data.clone().unwrap();
    }
    let location =
        tensor.external_data.iter().find(|entry| entry.key() == "location").unwrap().value();
    let hash: ContentHash = location.strip_suffix(".data").unwrap().parse().unwrap();
    weights[&hash].clone()
}

/// The graph in the file of a block.
pub fn program(block: &Block) -> GraphProto {
    ModelProto::decode(block.program().clone()).unwrap().graph.unwrap()
}

/// The block at a place of a partition.
pub fn block_at(partition: &Partition, place: usize) -> &Block {
    &partition.blocks[&partition.graph.blocks[place].block]
}

/// A random element-wise graph: which operator each node is, and what it uses.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    pub inputs: usize,
    /// Operator, and two numbers that choose the operands.
    pub nodes: Vec<(usize, usize, usize)>,
}

pub fn any_graph() -> impl Strategy<Value = RandomGraph> {
    let nodes = prop::collection::vec((0usize..7, 0usize..64, 0usize..64), 1..16);
    (1usize..3, nodes).prop_map(|(inputs, nodes)| RandomGraph { inputs, nodes })
}

impl RandomGraph {
    /// The model: every node lies on a way from an input to the only output.
    pub fn build(&self) -> ModelProto {
        let mut builder = GraphBuilder::new("random");
        let mut values: Vec<String> = (0..self.inputs)
            .map(|number| builder.add_input(&format!("x{number}"), DType::F32, [4]))
            .collect();
        let weights: Vec<String> =
            (0..3).map(|seed| builder.add_weight("w", &[4], made_up(seed, 4))).collect();
        let mut unused: HashSet<String> = values.iter().cloned().collect();
        // Operands are among the latest values, or hardly any graph would have a cut point.
        let recent = |values: &[String], pick: usize| {
            values[values.len() - 1 - pick % values.len().min(3)].clone()
        };
        for &(op, first, second) in &self.nodes {
            let first = recent(&values, first);
            let made = match ["Relu", "Sigmoid", "Neg", "Add", "Sub", "Mul", "Max"][op] {
                op @ ("Relu" | "Sigmoid" | "Neg") => {
                    unused.remove(&first);
                    builder.add_node(op, &[&first], [])
                }
                op => {
                    let other = match second % 3 {
                        0 => weights[second / 3 % weights.len()].clone(),
                        _ => recent(&values, second / 3),
                    };
                    unused.remove(&first);
                    unused.remove(&other);
                    builder.add_node(op, &[&first, &other], [])
                }
            };
            unused.insert(made.clone());
            values.push(made);
        }
        let mut ends: Vec<String> = values.into_iter().filter(|v| unused.contains(v)).collect();
        while let [.., before, last] = ends.as_slice() {
            let joined = builder.add_node("Add", &[before, last], []);
            ends.truncate(ends.len() - 2);
            ends.push(joined);
        }
        builder.add_output(&ends[0]);
        builder.build_model()
    }
}

/// The nodes of all blocks, to see that each is there once.
pub fn all_nodes(partition: &Partition) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = partition.nodes.iter().flatten().copied().collect();
    nodes.sort_unstable();
    nodes
}
