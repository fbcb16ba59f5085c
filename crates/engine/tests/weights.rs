//! Loading a block again costs no second copy of its weights, also for other numbers of threads.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use tessera_core::{ContentHash, DType, Tensor, TensorType};
use tessera_engine::{Engine, EngineSession, LoadOptions, OnnxRuntime, Rten};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{NoExternalData, Split, infer, onnx, split_into_chain};
use tessera_repository::Repository;

const WIDTH: usize = 2048;
const LAYERS: usize = 4;
const WEIGHT_BYTES: u64 = (LAYERS * WIDTH * WIDTH * size_of::<f32>()) as u64;

/// Memory is measured for the whole process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A repository with one block of 64 MB of weights.
fn store(folder: &std::path::Path) -> (Repository, ContentHash, Vec<TensorType>) {
    let mut builder = GraphBuilder::new("wide");
    let mut value = builder.add_input("x", DType::F32, [1, WIDTH]);
    for layer in 0..LAYERS {
        let mut data = Vec::with_capacity(WIDTH * WIDTH * size_of::<f32>());
        for index in 0..WIDTH * WIDTH {
            let element = ((index * 31 + layer * 7919) % 1021) as f32 / 1021.0 - 0.5;
            data.extend_from_slice(&(element / 16.0).to_le_bytes());
        }
        let w = builder.add_raw_weight("w", DType::F32.to_onnx(), &[WIDTH, WIDTH], data.into());
        value = builder.add_node("MatMul", &[&value, &w], []);
    }
    builder.add_output(&value);
    let graph = onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    let partition = split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap();
    assert_eq!(partition.weight_bytes() as u64, WEIGHT_BYTES);
    let repository = Repository::open_or_create(folder).unwrap();
    repository.put_model("wide", &partition).unwrap();
    let inputs = partition.graph.inputs.iter();
    let inputs = inputs.map(|port| port.tensor_type.clone()).collect();
    (repository, partition.graph.blocks[0].block, inputs)
}

/// The memory of this process that is resident.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

fn run(session: &mut dyn EngineSession) -> Vec<f64> {
    let values: Vec<f32> = (0..WIDTH).map(|index| (index % 7) as f32 - 3.0).collect();
    let x = Tensor::from_f32(&[1, WIDTH], &values).unwrap();
    session.run_inference(&[x], vec![None]).unwrap()[0].to_f64().unwrap()
}

fn further_sessions_share_the_weights(engine: &dyn Engine) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let (repository, block, inputs) = store(folder.path());
    let load = |threads: usize| {
        let threads = NonZeroUsize::new(threads).unwrap();
        let options = LoadOptions { threads, ..LoadOptions::default() };
        let program = repository.load_program(block).unwrap();
        let program = program.with_input_types(&inputs).unwrap();
        engine.load_program(&program, &options).unwrap()
    };
    let mut first = load(1);
    let expected = run(first.as_mut());
    let before = resident_bytes();
    let mut more: Vec<Box<dyn EngineSession>> = (1..=4).map(load).collect();
    for session in &mut more {
        assert!(near(&run(session.as_mut()), &expected));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown <= WEIGHT_BYTES / 2,
        "{}: four more sessions of a block with {WEIGHT_BYTES} bytes of weights took {grown}",
        engine.name()
    );
    assert!(near(&run(first.as_mut()), &expected));
}

/// Another number of threads may add up in another order.
fn near(found: &[f64], expected: &[f64]) -> bool {
    let largest = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * largest;
    found.len() == expected.len() && found.iter().zip(expected).all(close)
}

#[test]
fn further_sessions_on_rten_share_the_weights_of_the_first() {
    further_sessions_share_the_weights(&Rten::new());
}

#[test]
fn further_sessions_on_onnx_runtime_share_the_weights_of_the_first() {
    if tessera_engine::find_library().is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must have ONNX Runtime, and no libonnxruntime was found"
        );
        eprintln!("SKIPPED: no libonnxruntime found");
        return;
    }
    further_sessions_share_the_weights(&OnnxRuntime::new().unwrap());
}
