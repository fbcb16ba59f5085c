//! Files that ask for much: bounded time and memory, and an error that names the limit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{assert_says, call, calling, function, graph_mut, node, one_line, refusal, try_read};
use tessera_core::{DType, Dim};
use tessera_graph::builder::{GraphBuilder, i64_tensor, int_attribute};
use tessera_graph::infer::infer_types;
use tessera_graph::onnx::{ModelProto, ValueInfoProto};
use tessera_graph::{
    LONGEST_NAME, MOST_PORTS, MOST_UNIT_NODES, Split, check_constants, cut_points, fold_shapes,
    fuse_blocks, split_into_chain,
};

/// What the work gives; fails where it takes longer. All of this takes a second or two where the
/// machine is free.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()).ok());
    result.recv_timeout(Duration::from_secs(60)).expect("it should have ended by now")
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

/// A model in which every one of `outputs` is made of the input by a node of its own.
fn with_outputs(outputs: usize) -> ModelProto {
    let names = names("out", outputs);
    let mut model =
        calling(names.iter().map(|name| node("Relu", &["x"], &[name])).collect(), vec![]);
    let port = |name: &String| ValueInfoProto { name: Some(name.clone()), ..Default::default() };
    graph_mut(&mut model).output = names.iter().map(port).collect();
    model
}

#[test]
fn too_many_outputs_are_refused_at_once_with_the_limit() {
    let message = in_time(|| refusal(&with_outputs(100_000)));
    assert_says(&message, &["100000 outputs", "at most 4096"]);
}

#[test]
fn too_many_inputs_are_refused_at_once_with_the_limit() {
    let mut builder = GraphBuilder::new("inputs");
    let inputs: Vec<String> = names("in", 100_000);
    for name in &inputs {
        builder.add_input(name, DType::F32, [4]);
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let sum = builder.add_node("Sum", &inputs, []);
    builder.add_output(&sum);
    let message = in_time(|| refusal(&builder.build_model()));
    assert_says(&message, &["100000 inputs", "at most 4096"]);
}

#[test]
fn as_many_outputs_as_there_may_be_are_cut_in_time() {
    let blocks = in_time(|| {
        let graph = try_read(&with_outputs(MOST_PORTS)).unwrap();
        let types = infer_types(&graph, &BTreeMap::new()).unwrap();
        split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap().graph.outputs.len()
    });
    assert_eq!(blocks, MOST_PORTS);
}

#[test]
fn names_that_no_message_could_show_are_refused_wherever_they_are() {
    let long = "n".repeat(LONGEST_NAME + 1);
    let says = |model: &ModelProto, what: &str| {
        let message = refusal(model);
        assert_says(&message, &[what, "4097 bytes", "at most 4096"]);
        assert!(message.len() < 200, "{message}");
    };
    let two = |value: &str| vec![node("Relu", &["x"], &[value]), node("Neg", &[value], &["y"])];
    let mut tensor = calling(two(&long), vec![]);
    graph_mut(&mut tensor).node.iter_mut().for_each(|node| node.name = None);
    says(&tensor, "a tensor");
    let mut named = calling(two("a"), vec![]);
    graph_mut(&mut named).node[0].name = Some(long.clone());
    says(&named, "a node");
    says(&calling(vec![node(&long, &["x"], &["y"])], vec![]), "an operator");
    let mut attribute = calling(two("a"), vec![]);
    graph_mut(&mut attribute).node[0].attribute.push(int_attribute(&long, 1));
    says(&attribute, "an attribute");
    let mut builder = GraphBuilder::new("dims");
    let x = builder.add_input("x", DType::F32, [Dim::Symbol(long)]);
    builder.add_output(&x);
    says(&builder.build_model(), "a dimension");
    // What is just short enough is read, and what goes wrong with it is said.
    let fits = "n".repeat(LONGEST_NAME);
    let mut model = calling(two(&fits), vec![]);
    graph_mut(&mut model).node.iter_mut().for_each(|node| node.name = None);
    try_read(&model).unwrap();
}

/// A model that computes a constant of 7.4 GB from one number.
fn tiled(repeats: i64) -> ModelProto {
    let nodes =
        vec![node("Tile", &["one", "repeats"], &["large"]), node("ReduceMax", &["large"], &["y"])];
    let mut model = calling(nodes, vec![]);
    let graph = graph_mut(&mut model);
    graph.initializer.push(tessera_graph::builder::f32_tensor("one", &[1, 1], &[1.0]));
    graph.initializer.push(i64_tensor("repeats", &[2], &[repeats, repeats]));
    model
}

#[test]
fn a_constant_that_would_fill_the_memory_is_refused_with_its_size_and_the_limit() {
    let check = |repeats: i64| {
        let graph = try_read(&tiled(repeats)).unwrap();
        let types = infer_types(&graph, &BTreeMap::new()).unwrap();
        check_constants(&graph, &types)
    };
    let message = one_line(&check(43_000).unwrap_err());
    let size = "f32[43000,43000]";
    assert_says(
        &message,
        &["constants alone", "7396000004 bytes", "2147483648", "\"large\"", size],
    );
    check(20_000).unwrap();
    // Beyond all numbers.
    assert_says(&one_line(&check(i64::MAX / 2).unwrap_err()), &["constants alone"]);
}

#[test]
fn sizes_that_are_squared_again_and_again_are_given_up_in_time() {
    let mut builder = GraphBuilder::new("squares");
    let mut value = builder.add_input("x", DType::F32, [Dim::Symbol("n".to_owned())]);
    let column = builder.add_i64_weight("column", &[2], vec![-1, 1]);
    let row = builder.add_i64_weight("row", &[2], vec![1, -1]);
    let flat = builder.add_i64_weight("flat", &[1], vec![-1]);
    for _ in 0..40 {
        let first = builder.add_node("Reshape", &[&value, &column], []);
        let second = builder.add_node("Reshape", &[&value, &row], []);
        let square = builder.add_node("Mul", &[&first, &second], []);
        value = builder.add_node("Reshape", &[&square, &flat], []);
    }
    builder.add_output(&value);
    in_time(|| {
        let graph = try_read(&builder.build_model()).unwrap();
        let types = infer_types(&graph, &BTreeMap::new()).unwrap();
        let folded = fold_shapes(graph, &types).unwrap();
        let types = infer_types(&folded, &BTreeMap::new()).unwrap();
        cut_points(&folded, &types, &[]).unwrap()
    });
}

#[test]
fn dimensions_with_long_names_do_not_fill_the_memory_with_types() {
    let mut builder = GraphBuilder::new("names");
    let dims: Vec<Dim> =
        (0..60).map(|axis| Dim::Symbol(format!("{}{axis}", "d".repeat(4_000)))).collect();
    let mut value = builder.add_input("x", DType::F32, dims);
    for _ in 0..6_000 {
        value = builder.add_node("Relu", &[&value], []);
    }
    builder.add_output_of_any_shape(&value, DType::F32);
    let message = in_time(|| {
        let graph = try_read(&builder.build_model()).unwrap();
        one_line(&infer_types(&graph, &BTreeMap::new()).unwrap_err())
    });
    assert_says(&message, &["1073741824 bytes"]);
}

#[test]
fn a_long_way_that_every_block_would_compute_again_is_cut_in_time() {
    const LAYERS: usize = 6_000;
    let mut builder = GraphBuilder::new("again");
    let mut value = builder.add_input("x", DType::F32, [1, 64]);
    let mut scale = builder.add_input("scale", DType::F32, [1]);
    for _ in 0..LAYERS {
        scale = builder.add_node("Neg", &[&scale], []);
    }
    let w = builder.add_weight("w", &[64, 64], vec![0.0; 64 * 64]);
    for _ in 0..LAYERS {
        let product = builder.add_node("MatMul", &[&value, &w], []);
        value = builder.add_node("Add", &[&product, &scale], []);
    }
    builder.add_output(&value);
    let nodes = in_time(|| {
        let graph = try_read(&builder.build_model()).unwrap();
        let types = infer_types(&graph, &BTreeMap::new()).unwrap();
        let made = split_into_chain(&graph, &types, &Split::Every, &[]).unwrap();
        made.graph.blocks.iter().map(|node| made.blocks[&node.block].node_count()).sum::<usize>()
    });
    assert!(nodes < 10 * LAYERS, "{nodes} nodes");
}

#[test]
fn long_names_in_a_function_that_is_called_often_are_refused_in_time() {
    let long = "n".repeat(LONGEST_NAME - 100);
    let body = names(&long, 90).into_iter().map(|name| node("Relu", &["a"], &[&name]));
    let mut body: Vec<_> = body.collect();
    body.push(node("Relu", &["a"], &["b"]));
    let calls = (0..10_000).map(|number| {
        let (from, to) = (format!("c{number}"), format!("c{}", number + 1));
        call(
            "F",
            &[if number == 0 { "x" } else { &from }],
            &[if number == 9_999 { "y" } else { &to }],
        )
    });
    let model = calling(calls.collect(), vec![function("F", &["a"], &["b"], body)]);
    assert_says(&in_time(move || refusal(&model)), &["1000000"]);
}

#[test]
fn blocks_that_an_engine_could_not_load_are_not_fused() {
    let mut builder = GraphBuilder::new("chain");
    let mut value = builder.add_input("x", DType::F32, [4]);
    for _ in 0..=MOST_UNIT_NODES {
        value = builder.add_node("Neg", &[&value], []);
    }
    builder.add_output(&value);
    let graph = try_read(&builder.build_model()).unwrap();
    let types = infer_types(&graph, &BTreeMap::new()).unwrap();
    let made = split_into_chain(&graph, &types, &Split::Blocks(2), &[]).unwrap();
    let fused = fuse_blocks(&made.graph, &|hash| Ok(made.blocks[&hash].clone()));
    assert_says(&one_line(&fused.unwrap_err()), &["20001 nodes", "at most 20000"]);
}
