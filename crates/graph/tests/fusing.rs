//! Blocks that are fused compute what they computed one after the other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::{BTreeMap, HashMap, HashSet};

use common::{Model, any_graph, assert_says, exit, graph_mut, made_up, node, program};
use proptest::prelude::*;
use tessera_core::{ContentHash, DType, Dim, ErrorKind, Result};
use tessera_graph::builder::{GraphBuilder, graph_attribute, int_attribute, raw_tensor};
use tessera_graph::onnx::{GraphProto, ModelProto, NodeProto};
use tessera_graph::{
    Block, BlockGraph, BlockNode, Partition, Split, TensorPort, TensorSource, fuse_blocks,
};

/// The pieces of a model as one block.
fn fused(partition: &Partition) -> Result<(Block, BlockGraph)> {
    fuse_blocks(&partition.graph, &|hash| Ok(partition.blocks[&hash].clone()))
}

/// The same as a partition of that one block.
fn as_partition(partition: &Partition) -> Partition {
    let (block, graph) = fused(partition).unwrap();
    assert!(graph.is_sound());
    assert_eq!(graph.blocks.len(), 1);
    assert_eq!(graph.blocks[0].block, block.hash());
    Partition {
        graph,
        blocks: HashMap::from([(block.hash(), block)]),
        weights: partition.weights.clone(),
        nodes: vec![partition.nodes.concat()],
    }
}

/// Layers of a weight each, large enough to be stored on its own.
fn layers(seeds: &[u32]) -> Model {
    const WIDTH: usize = 1200;
    let mut builder = GraphBuilder::new("layers");
    let mut value = builder.add_input("x", DType::F32, [WIDTH]);
    for &seed in seeds {
        let w = builder.add_weight("w", &[WIDTH], made_up(seed, WIDTH));
        let scaled = builder.add_node("Mul", &[&value, &w], []);
        value = builder.add_node("Relu", &[&scaled], []);
    }
    builder.add_output(&value);
    Model::of(builder)
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_was_cut_and_is_fused_computes_what_it_did(random in any_graph()) {
        let model = Model::read(&random.build());
        let pieces = model.split(&Split::Every, &[]);
        if pieces.graph.blocks.len() > 1 {
            let one = as_partition(&pieces);
            prop_assert_eq!(model.run_pieces(&one), model.run());
            // And the same bytes every time.
            let (first, second) = (fused(&pieces).unwrap(), fused(&pieces).unwrap());
            prop_assert_eq!(first.0.hash(), second.0.hash());
        }
    }
}

#[test]
fn a_fused_block_has_the_nodes_and_weights_of_the_whole_and_takes_and_gives_the_same() {
    // Some layers are the same, so that a block comes several times.
    for seeds in [&[1, 2, 3][..], &[1, 1, 1], &[1, 2, 1]] {
        let model = layers(seeds);
        let pieces = model.split(&Split::Every, &[]);
        let (block, graph) = fused(&pieces).unwrap();
        let whole = model.whole();
        assert_eq!(block.node_count(), whole.node_count());
        let hashes = |block: &Block| -> HashSet<ContentHash> {
            block.weights().iter().map(|weight| weight.hash).collect()
        };
        assert_eq!(hashes(&block), hashes(&whole));
        assert_eq!(graph.inputs, pieces.graph.inputs);
        let ports = |graph: &BlockGraph| -> Vec<TensorPort> {
            graph.outputs.iter().map(|(port, _)| port.clone()).collect()
        };
        assert_eq!(ports(&graph), ports(&pieces.graph));
        assert_eq!(model.run_pieces(&as_partition(&pieces)), model.run());
    }
}

#[test]
fn outputs_come_in_the_order_of_the_graph() {
    let model = layers(&[1, 2, 3]);
    let mut pieces = model.split(&Split::Blocks(3), &[]);
    let port = |block: usize| pieces.graph.blocks[block].outputs[0].clone();
    let given = |block: usize| (port(block), TensorSource::Block { block, output: 0 });
    let turned = vec![given(2), given(0), given(1)];
    let expected: Vec<String> = turned.iter().map(|(port, _)| port.name.clone()).collect();
    pieces.graph.outputs = turned;
    let apart = model.run_pieces(&pieces);
    let one = as_partition(&pieces);
    let names: Vec<&str> = one.graph.outputs.iter().map(|(port, _)| port.name.as_str()).collect();
    assert_eq!(names, expected);
    assert_eq!(model.run_pieces(&one), apart);
}

#[test]
fn an_exit_between_blocks_keeps_them_from_being_fused() {
    let mut builder = GraphBuilder::new("exit");
    let x = builder.add_input("x", DType::F32, [4]);
    let hidden = builder.add_node("Relu", &[&x], []);
    builder.add_node_into("head", "Tanh", &[&hidden], &["early"], []);
    let hidden = builder.add_node("Sigmoid", &[&hidden], []);
    builder.add_node_into("end", "Neg", &[&hidden], &["late"], []);
    builder.add_output("late");
    builder.add_output("early");
    let pieces = Model::of(builder).split(&Split::Every, &[exit("early", 0.5)]);
    let error = fused(&pieces).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_says(&error.to_string(), &["exit"]);
}

/// A model of one node, `y` of `x`, for this version of the operators.
fn one_node(op_type: &str, opset: i64) -> Model {
    let mut builder = GraphBuilder::new("one").with_opset(opset);
    builder.add_input("x", DType::F32, [2, 4]);
    builder.add_node_into("only", op_type, &["x"], &["y"], [int_attribute("axis", 1)]);
    builder.add_typed_output("y", DType::F32, [2, 4]);
    Model::of(builder)
}

/// Two models of one block each, one after the other.
fn one_after_the_other(first: &Model, second: &Model) -> (BlockGraph, Vec<Block>) {
    let (first, second) = (first.split(&Split::Every, &[]), second.split(&Split::Every, &[]));
    let [before] = first.graph.blocks.as_slice() else {
        panic!("{:?}", first.graph);
    };
    let [after] = second.graph.blocks.as_slice() else {
        panic!("{:?}", second.graph);
    };
    let after =
        BlockNode { inputs: vec![TensorSource::Block { block: 0, output: 0 }], ..after.clone() };
    let outputs = second.graph.outputs.iter();
    let graph = BlockGraph {
        inputs: first.graph.inputs.clone(),
        outputs: outputs
            .map(|(port, _)| (port.clone(), TensorSource::Block { block: 1, output: 0 }))
            .collect(),
        blocks: vec![before.clone(), after],
        exits: Vec::new(),
        row_obstacle: None,
        relies_on_dim_names: false,
    };
    (graph, first.blocks.into_values().chain(second.blocks.into_values()).collect())
}

#[test]
fn blocks_of_different_opsets_are_fused_where_operators_mean_the_same_in_both() {
    // Softmax was given another meaning in opset 13; since then it has kept it.
    for (before, after, fits) in [(11, 13, false), (13, 11, false), (13, 17, true), (17, 17, true)]
    {
        let (first, second) = (one_node("Softmax", before), one_node("Softmax", after));
        let (graph, blocks) = one_after_the_other(&first, &second);
        let find = |hash: ContentHash| -> Result<Block> {
            Ok(blocks.iter().find(|block| block.hash() == hash).unwrap().clone())
        };
        let fused = fuse_blocks(&graph, &find);
        if fits {
            assert_eq!(fused.unwrap().0.node_count(), 2, "{before} {after}");
        } else {
            let error = fused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{before} {after}");
            assert_says(&error.to_string(), &["Softmax"]);
        }
    }
}

/// Names that a graph uses and neither it nor `outer` has.
fn unknown(graph: &GraphProto, outer: &HashSet<String>) -> Vec<String> {
    let mut known = outer.clone();
    known.extend(graph.initializer.iter().map(|tensor| tensor.name().to_owned()));
    known.extend(graph.input.iter().map(|port| port.name().to_owned()));
    let mut missing = Vec::new();
    for node in &graph.node {
        let used = node.input.iter().filter(|name| !name.is_empty() && !known.contains(*name));
        missing.extend(used.cloned());
        for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            missing.extend(unknown(body, &known));
        }
        known.extend(node.output.iter().cloned());
    }
    let given = graph.output.iter().map(|port| port.name().to_owned());
    missing.extend(given.filter(|name| !known.contains(name)));
    missing
}

fn body(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    let mut body = GraphBuilder::new("body");
    body.add_output(output);
    GraphProto { node: nodes, ..body.build_graph() }
}

/// An `If` on the constant `yes` whose branches use `capture`.
fn choice(capture: &str, output: &str) -> NodeProto {
    let branch =
        |op: &str| body(vec![node(op, &[capture], &["i"]), node("Neg", &["i"], &["r"])], "r");
    let attribute = vec![
        graph_attribute("then_branch", branch("Relu")),
        graph_attribute("else_branch", branch("Tanh")),
    ];
    NodeProto { attribute, ..node("If", &["yes"], &[output]) }
}

/// The model of these nodes from `x` to `y`, with the constant `yes`.
fn branching(nodes: Vec<NodeProto>) -> ModelProto {
    let mut builder = GraphBuilder::new("branching");
    builder.add_input("x", DType::F32, [4]);
    builder.add_typed_output("y", DType::F32, [4]);
    let mut model = builder.build_model();
    let inner = graph_mut(&mut model);
    inner.node = nodes;
    inner.initializer.push(raw_tensor("yes", DType::Bool.to_onnx(), &[], vec![1u8].into()));
    model
}

#[test]
fn bodies_find_what_they_capture_under_its_new_name() {
    let model = Model::read(&branching(vec![
        node("Sigmoid", &["x"], &["t"]),
        choice("t", "u"),
        node("Tanh", &["u"], &["v"]),
        choice("v", "w"),
        node("Neg", &["w"], &["y"]),
    ]));
    let pieces = model.split(&Split::Every, &[]);
    assert!(pieces.graph.blocks.len() > 2, "{:?}", pieces.graph);
    let (block, _) = fused(&pieces).unwrap();
    let program = program(&block);
    assert_eq!(unknown(&program, &HashSet::new()), Vec::<String>::new());
    // Every value has one name, and one maker.
    let mut makers: BTreeMap<&str, usize> = BTreeMap::new();
    for name in program.node.iter().flat_map(|node| &node.output) {
        *makers.entry(name).or_default() += 1;
    }
    assert!(makers.values().all(|&count| count == 1), "{makers:?}");
    // Each branch uses what the node right before it makes.
    let nodes: Vec<&NodeProto> = program.node.iter().collect();
    for pair in nodes.windows(2).filter(|pair| pair[1].op_type() == "If") {
        for attribute in &pair[1].attribute {
            let branch = attribute.g.as_ref().unwrap();
            assert_eq!(branch.node[0].input, pair[0].output);
            assert_eq!(branch.node[1].input, branch.node[0].output);
            assert_eq!(branch.output[0].name(), branch.node[1].output[0]);
        }
    }
}

#[test]
fn a_loop_in_a_fused_block_keeps_its_state_and_its_captures() {
    let scalar = Vec::<Dim>::new;
    let mut inner = GraphBuilder::new("body");
    inner.add_input("iteration", DType::I64, scalar());
    let keep_going = inner.add_input("keep_going", DType::Bool, scalar());
    let state = inner.add_input("state", DType::F32, [4]);
    let keep_going = inner.add_node("Identity", &[&keep_going], []);
    let next = inner.add_node("Mul", &[&state, "scale"], []);
    inner.add_output(&keep_going);
    inner.add_output(&next);
    let mut builder = GraphBuilder::new("loop");
    let x = builder.add_input("x", DType::F32, [4]);
    builder.add_node_into("scale", "Sigmoid", &[&x], &["scale"], []);
    let trips = builder.add_i64_weight("trips", &[], vec![3]);
    let body = inner.build_graph();
    let looped = builder.add_node("Loop", &[&trips, "", "scale"], [graph_attribute("body", body)]);
    let rest = builder.add_node("Tanh", &[&looped], []);
    builder.add_node_into("end", "Neg", &[&rest], &["y"], []);
    builder.add_typed_output("y", DType::F32, [4]);
    let pieces = Model::of(builder).split(&Split::Every, &[]);
    assert!(pieces.graph.blocks.len() > 2, "{:?}", pieces.graph);
    let (block, _) = fused(&pieces).unwrap();
    let program = program(&block);
    assert_eq!(unknown(&program, &HashSet::new()), Vec::<String>::new());
    let find = |op: &str| program.node.iter().find(|node| node.op_type() == op).unwrap();
    let body = find("Loop").attribute[0].g.as_ref().unwrap();
    let product = body.node.iter().find(|node| node.op_type() == "Mul").unwrap();
    assert_eq!(product.input[0], body.input[2].name());
    assert_eq!(product.input[1], find("Sigmoid").output[0]);
    assert_eq!(find("Loop").input[2], find("Sigmoid").output[0]);
}
