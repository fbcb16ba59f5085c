//! Blocks of very many nodes: run where they can be, refused with the limit where they can't.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;

use tessera_core::{DType, Tensor};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, Program, Rten};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{Block, MOST_UNIT_NODES, NoExternalData, Split, infer, onnx, split_into_chain};

/// A block of so many nodes, each of which needs the one before.
fn chain(nodes: usize) -> Block {
    let mut builder = GraphBuilder::new("chain");
    let mut value = builder.add_input("x", DType::F32, [2]);
    for _ in 0..nodes {
        value = builder.add_node("Neg", &[&value], []);
    }
    builder.add_output(&value);
    let graph = onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    let made = split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap();
    made.blocks.into_values().next().unwrap()
}

fn run_twice(engine: &dyn Engine, nodes: usize) {
    let program = Program::new(chain(nodes), Vec::new()).unwrap();
    let mut session = engine.load_program(&program, &LoadOptions::default()).unwrap();
    for _ in 0..2 {
        let x = Tensor::from_f32(&[2], &[1.0, -2.0]).unwrap();
        let outputs = session.run_inference(&[x], vec![None]).unwrap();
        assert_eq!(outputs[0].to_f64().unwrap(), [1.0, -2.0]);
    }
}

#[test]
fn a_path_of_as_many_nodes_as_there_may_be_runs_on_any_thread() {
    // The stack that threads have of which nobody says more.
    let small = || std::thread::Builder::new().stack_size(2 << 20);
    let rten = small().spawn(|| run_twice(&Rten::new(), MOST_UNIT_NODES)).unwrap();
    rten.join().unwrap();
    if let Ok(engine) = OnnxRuntime::new() {
        small().spawn(move || run_twice(&engine, MOST_UNIT_NODES)).unwrap().join().unwrap();
    }
}

#[test]
fn a_block_of_more_nodes_is_refused_with_the_limit() {
    let block = chain(MOST_UNIT_NODES + 1);
    let message = Program::new(block, Vec::new()).err().unwrap().to_string();
    assert!(message.contains("20001 nodes"), "{message}");
    assert!(message.contains("at most 20000"), "{message}");
}
