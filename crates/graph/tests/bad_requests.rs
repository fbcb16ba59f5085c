//! Cuts, exits, parts and shapes that a model can't have: one line that says why.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::{Model, assert_says, calling, exit, graph_mut, node, one_line};
use tessera_core::{DType, Dim, ErrorKind};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::infer::infer_types;
use tessera_graph::{ExitSpec, Split, partition_graph, split_into_chain};

/// `r → (a, b) → s → t → y`, and an exit `e` that hangs from `r`.
fn diamond() -> Model {
    let nodes = vec![
        node("Relu", &["x"], &["r"]),
        node("Sigmoid", &["r"], &["a"]),
        node("Tanh", &["r"], &["b"]),
        node("Add", &["a", "b"], &["s"]),
        node("Relu", &["s"], &["t"]),
        node("Neg", &["t"], &["y"]),
        node("Neg", &["r"], &["h"]),
        node("Softmax", &["h"], &["e"]),
    ];
    let mut model = calling(nodes, vec![]);
    let mut output = graph_mut(&mut model).output[0].clone();
    output.name = Some("e".to_owned());
    graph_mut(&mut model).output.push(output.clone());
    output.name = Some("t".to_owned());
    graph_mut(&mut model).output.push(output);
    Model::read(&model)
}

fn split_refusal(how: &Split, exits: &[ExitSpec]) -> String {
    let model = diamond();
    let error = split_into_chain(&model.graph, &model.types, how, exits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    one_line(&error)
}

#[test]
fn a_cut_where_none_is_possible_says_why_and_where_else() {
    let at = |name: &str| split_refusal(&Split::At(vec![name.to_owned()]), &[exit("e", 0.5)]);
    assert_says(
        &at("a"),
        &["\"a\"", "2 tensors are alive", "expected one", "nearest", "\"r\"", "\"s\""],
    );
    assert_says(&at("ghost"), &["no tensor \"ghost\""]);
    assert_says(&at("x"), &["\"x\" is no cut point", "an input"]);
    assert_says(&at("h"), &["\"h\" is no cut point", "exit"]);
    assert_says(&at("y"), &["\"y\" is no cut point", "nothing comes after it"]);
}

#[test]
fn an_exit_that_is_none_is_refused_by_name() {
    let refused = |exits: &[ExitSpec]| split_refusal(&Split::Every, exits);
    assert_says(&refused(&[exit("a", 0.5)]), &["exit \"a\"", "no output", "y, e, t"]);
    assert_says(&refused(&[exit("t", 0.5)]), &["exit \"t\"", "no branch of its own"]);
    assert_says(&refused(&[exit("e", 2.0)]), &["exit \"e\"", "threshold 2", "0 to 1"]);
    assert_says(&refused(&[exit("e", f32::NAN)]), &["exit \"e\"", "threshold"]);
    assert_says(&refused(&[exit("e", 0.1), exit("e", 0.2)]), &["exit \"e\"", "twice"]);
    assert_says(&refused(&[exit("e", 0.1), exit("t", 0.1), exit("y", 0.1)]), &["every output"]);
}

#[test]
fn a_number_of_blocks_that_cannot_be_is_refused() {
    assert_says(&split_refusal(&Split::Blocks(0), &[]), &["0 blocks", "1 or more"]);
    assert_says(
        &split_refusal(&Split::Blocks(9), &[]),
        &["9 blocks", "8 cut points", "the model has 3"],
    );
    assert_says(
        &split_refusal(&Split::Blocks(1), &[exit("e", 0.5)]),
        &["1 blocks", "exits", "expected 2 or more"],
    );
}

#[test]
fn a_dead_node_on_the_branch_of_an_exit_does_no_harm() {
    let mut proto = calling(
        vec![
            node("Relu", &["x"], &["r"]),
            node("Neg", &["r"], &["h"]),
            node("Softmax", &["h"], &["e"]),
            node("Sigmoid", &["h"], &["dead"]),
            node("Tanh", &["r"], &["t"]),
            node("Neg", &["t"], &["y"]),
        ],
        vec![],
    );
    let mut output = graph_mut(&mut proto).output[0].clone();
    output.name = Some("e".to_owned());
    graph_mut(&mut proto).output.push(output);
    let model = Model::read(&proto);
    let exits = [exit("e", 0.5)];
    assert_eq!(model.cuts(&exits), ["r", "t"]);
    let made = model.split(&Split::Every, &exits);
    assert_eq!(model.run_pieces(&made), model.run());
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let nodes = vec![
        node("Relu", &["x"], &["a"]),
        node("Neg", &["a"], &["b"]),
        node("Relu", &["b"], &["y"]),
    ];
    let model = Model::read(&calling(nodes, vec![]));
    let refused = |parts: &[usize]| {
        let error = partition_graph(&model.graph, &model.types, parts, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        one_line(&error)
    };
    assert_says(&refused(&[0, 7, 0]), &["parts 0, 7", "no cycle"]);
    assert_says(&refused(&[0, 1]), &["2 nodes", "the graph has 3"]);
    assert_says(&refused(&[]), &["0 nodes", "the graph has 3"]);
    let largest = [usize::MAX; 3];
    assert!(partition_graph(&model.graph, &model.types, &largest, &[]).is_ok());
}

#[test]
fn a_shape_that_no_input_can_have_is_refused_by_name() {
    let mut builder = GraphBuilder::new("shapes");
    let x = builder.add_input("x", DType::F32, [Dim::Symbol("n".to_owned()), Dim::Fixed(4)]);
    let y = builder.add_node("Relu", &[&x], []);
    builder.add_output(&y);
    let model = Model::of(builder);
    let refused = |name: &str, shape: &[usize]| {
        let shapes = BTreeMap::from([(name.to_owned(), shape.to_vec())]);
        one_line(&infer_types(&model.graph, &shapes).unwrap_err())
    };
    assert_says(&refused("x", &[1, 5]), &["input \"x\"", "1,5", "f32[n,4]"]);
    assert_says(&refused("x", &[4]), &["input \"x\"", "1 dimensions", "f32[n,4]"]);
    assert_says(&refused("z", &[4]), &["no input \"z\"", "\"x\""]);
}
