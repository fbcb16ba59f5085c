//! Runs on a GPU that are captured as CUDA graphs: what is replayed is what a plain run gives, and
//! what can't be replayed never is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use tessera_core::{DType, Device, Tensor};
use tessera_engine::{CudaEngineSession, Engine, LoadOptions, OnnxRuntime, to_host};
use tessera_graph::builder::{self, GraphBuilder};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{NoExternalData, onnx};

use common::program_of;

/// How long it may take until a run is replayed.
const PATIENCE: Duration = Duration::from_secs(20);

/// For how long a run that must not be replayed is tried.
const DOUBT: Duration = Duration::from_secs(3);

const OPTIONS: fn() -> LoadOptions =
    || LoadOptions { device: Device::Cuda(0), ..LoadOptions::default() };

fn engine() -> Option<OnnxRuntime> {
    let found = tessera_cuda::list_gpus().and_then(|_| OnnxRuntime::new());
    found.inspect_err(|error| eprintln!("SKIPPED on the GPU: {error}")).ok()
}

fn load(engine: &OnnxRuntime, model: ModelProto) -> Box<dyn CudaEngineSession> {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let program = program_of(&graph);
    engine.load_cuda_program(&program, &OPTIONS()).unwrap()
}

fn run(session: &mut dyn CudaEngineSession, input: &Tensor) -> Vec<f64> {
    let outputs = session.run_inference(std::slice::from_ref(input), vec![None]).unwrap();
    to_host(&outputs[0]).unwrap().wait_fence_on_host().unwrap().to_f64().unwrap()
}

fn input(rows: usize, number: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * 3 * 32 * 32)
        .map(|index| (((index * 7 + number * 13) % 29) as f32 - 14.0) / 8.0)
        .collect();
    Tensor::from_f32(&[rows, 3, 32, 32], &values).unwrap()
}

/// Convolutions in a row.
fn network() -> ModelProto {
    let mut graph = GraphBuilder::new("network");
    let dims = [tessera_core::Dim::Unknown].into_iter();
    let dims: Vec<_> = dims.chain([3, 32, 32].map(tessera_core::Dim::Fixed)).collect();
    let mut value = graph.add_input("x", DType::F32, dims);
    for layer in 0..6 {
        let (from, to) = (if layer == 0 { 3 } else { 16 }, 16);
        let weights = (0..to * from * 9).map(|index| ((index * 5 % 23) as f32 - 11.0) / 64.0);
        let w = graph.add_weight(&format!("w{layer}"), &[to, from, 3, 3], weights.collect());
        let made =
            graph.add_node("Conv", &[&value, &w], [builder::ints_attribute("pads", &[1, 1, 1, 1])]);
        value = graph.add_node("Relu", &[&made], []);
    }
    graph.add_output_of_any_shape(&value, DType::F32);
    graph.build_model()
}

/// Runs it until it is replayed.
fn replay(session: &mut dyn CudaEngineSession, input: &Tensor) -> Vec<f64> {
    let begun = Instant::now();
    while session.replayed_runs() == 0 {
        run(session, input);
        assert!(begun.elapsed() < PATIENCE, "nothing was replayed");
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("replayed after {:?}", begun.elapsed());
    run(session, input)
}

#[test]
fn what_is_replayed_is_what_a_plain_run_gives() {
    let Some(engine) = engine() else { return };
    let (mut plain, mut captured) = (load(&engine, network()), load(&engine, network()));
    captured.capture_cuda_graphs();
    replay(captured.as_mut(), &input(2, 0));
    let before = captured.replayed_runs();
    for number in 0..50 {
        // Other values, in the same memory or not.
        let given = input(2, number);
        assert_eq!(run(captured.as_mut(), &given), run(plain.as_mut(), &given), "run {number}");
    }
    let replayed = captured.replayed_runs() - before;
    println!("{replayed} of 50 were replayed");
    assert!(replayed >= 25, "{replayed} of 50 were replayed");
}

#[test]
fn another_shape_is_run_the_plain_way() {
    let Some(engine) = engine() else { return };
    let (mut plain, mut captured) = (load(&engine, network()), load(&engine, network()));
    captured.capture_cuda_graphs();
    replay(captured.as_mut(), &input(2, 0));
    let before = captured.replayed_runs();
    for rows in [1, 3, 5] {
        let given = input(rows, rows);
        assert_eq!(run(captured.as_mut(), &given), run(plain.as_mut(), &given));
    }
    assert_eq!(captured.replayed_runs(), before);
    // And the shape that it was captured for is replayed still.
    replay(captured.as_mut(), &input(2, 1));
}

#[test]
fn results_that_somebody_keeps_are_not_written_again() {
    let Some(engine) = engine() else { return };
    let mut captured = load(&engine, network());
    captured.capture_cuda_graphs();
    replay(captured.as_mut(), &input(1, 0));
    let given: Vec<Tensor> = (0..8).map(|number| input(1, number)).collect();
    let expected: Vec<Vec<f64>> = given.iter().map(|given| run(captured.as_mut(), given)).collect();
    for _ in 0..20 {
        // All of them are there at the same time.
        let kept: Vec<Tensor> = given
            .iter()
            .map(|given| {
                captured.run_inference(std::slice::from_ref(given), vec![None]).unwrap().remove(0)
            })
            .collect();
        for (kept, expected) in kept.iter().zip(&expected) {
            let found = to_host(kept).unwrap().wait_fence_on_host().unwrap().to_f64().unwrap();
            assert_eq!(&found, expected);
        }
    }
    println!("{} were replayed", captured.replayed_runs());
}

#[test]
fn a_session_that_goes_while_it_is_captured_leaves_nothing_behind() {
    let Some(engine) = engine() else { return };
    for number in 0..5 {
        let mut captured = load(&engine, network());
        captured.capture_cuda_graphs();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100 * number) {
            run(captured.as_mut(), &input(1, 0));
        }
    }
    let mut captured = load(&engine, network());
    captured.capture_cuda_graphs();
    replay(captured.as_mut(), &input(1, 0));
}

#[test]
fn what_is_drawn_at_random_is_never_replayed() {
    let Some(engine) = engine() else { return };
    let mut graph = GraphBuilder::new("noise");
    let x = graph.add_input("x", DType::F32, [1usize, 3, 32, 32]);
    let noise = graph.add_node("RandomNormalLike", &[&x], []);
    let sum = graph.add_node("Add", &[&x, &noise], []);
    graph.add_output_of_any_shape(&sum, DType::F32);
    let mut session = load(&engine, graph.build_model());
    never_replayed(session.as_mut(), |session| {
        let given = input(1, 0);
        assert_ne!(run(session, &given), run(session, &given));
    });
}

#[test]
fn what_depends_on_more_than_shapes_is_never_replayed() {
    let Some(engine) = engine() else { return };
    let mut graph = GraphBuilder::new("found");
    let x = graph.add_input("x", DType::F32, [1usize, 3, 32, 32]);
    let found = graph.add_node("NonZero", &[&x], []);
    let y = graph.add_node(
        "Cast",
        &[&found],
        [builder::int_attribute("to", i64::from(DType::F32.to_onnx()))],
    );
    graph.add_output_of_any_shape(&y, DType::F32);
    let mut session = load(&engine, graph.build_model());
    let mut number = 0;
    never_replayed(session.as_mut(), |session| {
        number += 1;
        let given = input(1, number);
        let count = given.to_f64().unwrap().iter().filter(|value| **value != 0.0).count();
        assert_eq!(run(session, &given).len(), 4 * count);
    });
}

fn never_replayed(
    session: &mut dyn CudaEngineSession,
    mut check: impl FnMut(&mut dyn CudaEngineSession),
) {
    session.capture_cuda_graphs();
    let begun = Instant::now();
    while begun.elapsed() < DOUBT {
        check(session);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(session.replayed_runs(), 0);
}

#[test]
fn products_of_matrices_are_replayed_with_any_number_of_rows() {
    let Some(engine) = engine() else { return };
    let mut graph = GraphBuilder::new("dense");
    let dims = [tessera_core::Dim::Unknown, tessera_core::Dim::Fixed(2048)];
    let x = graph.add_input("x", DType::F32, dims);
    let weights = (0..2048 * 1000).map(|index| ((index * 5 % 23) as f32 - 11.0) / 64.0).collect();
    let w = graph.add_weight("w", &[2048, 1000], weights);
    let b = graph.add_weight("b", &[1000], (0..1000).map(|index| index as f32 / 500.0).collect());
    let y = graph.add_node("Gemm", &[&x, &w, &b], []);
    graph.add_output_of_any_shape(&y, DType::F32);
    let model = graph.build_model();
    for rows in [1, 4, 8, 32, 128] {
        let values: Vec<f32> =
            (0..rows * 2048).map(|index| (index % 29) as f32 / 8.0 - 1.5).collect();
        let given = Tensor::from_f32(&[rows, 2048], &values).unwrap();
        let (mut plain, mut captured) =
            (load(&engine, model.clone()), load(&engine, model.clone()));
        captured.capture_cuda_graphs();
        println!("{rows} rows");
        let replayed = replay(captured.as_mut(), &given);
        assert_eq!(replayed, run(plain.as_mut(), &given));
    }
}

/// Bytes of the GPU that are in use.
fn used_bytes() -> i64 {
    let gpu = tessera_cuda::Gpu::open(0).unwrap();
    gpu.synchronise_stream().unwrap();
    let (free, all) = gpu.memory_info().unwrap();
    (all - free) as i64
}

/// Others may use the GPU at the same time: what is found here is told, and only much too much
/// fails.
#[test]
fn cuda_graphs_share_the_memory_that_they_need() {
    const ROWS: [usize; 3] = [2048, 1900, 1750];
    let Some(engine) = engine() else { return };
    // All that plain runs need is there before.
    let mut sessions: Vec<_> = ROWS.map(|_| load(&engine, network())).into();
    for (session, rows) in sessions.iter_mut().zip(ROWS) {
        run(session.as_mut(), &input(rows, 0));
    }
    let mut before = used_bytes();
    let mut step = |what: &str| {
        let now = used_bytes();
        let took = (now - before) as f64 / 1e6;
        println!("{what}: {took:.1} MB");
        before = now;
        took
    };
    for (index, (session, rows)) in sessions.iter_mut().zip(ROWS).enumerate() {
        session.capture_cuda_graphs();
        replay(session.as_mut(), &input(rows, 0));
        let took = step(&format!("CUDA graphs of {rows} rows"));
        // What is between two layers has 100 MB and more.
        assert!(index == 0 || took < 150.0, "{took} MB for CUDA graphs of {rows} rows");
    }
    // Results that are kept make for other memory each time: that of the results, and no other.
    let mut kept = Vec::new();
    let begun = Instant::now();
    while kept.len() < 12 && begun.elapsed() < PATIENCE {
        kept.push(sessions[0].run_inference(&[input(ROWS[0], 0)], vec![None]).unwrap());
        std::thread::sleep(Duration::from_millis(30));
    }
    step("12 results and CUDA graphs");
}

#[test]
fn what_needs_more_memory_than_cuda_graphs_may_have_is_run_the_plain_way() {
    let Some(engine) = engine() else { return };
    // The product of a column and a row is larger than that.
    let (_, all) = tessera_cuda::Gpu::open(0).unwrap().memory_info().unwrap();
    let rows = ((all / 32 / 4) as f64 * 1.1).sqrt() as usize;
    let mut graph = GraphBuilder::new("large");
    let x = graph.add_input("x", DType::F32, [rows, 1]);
    let turned = graph.add_node("Transpose", &[&x], [builder::ints_attribute("perm", &[1, 0])]);
    let product = graph.add_node("MatMul", &[&x, &turned], []);
    let mean =
        graph.add_node("ReduceMean", &[&product], [builder::ints_attribute("axes", &[0, 1])]);
    graph.add_output_of_any_shape(&mean, DType::F32);
    let mut large = load(&engine, graph.build_model());
    let given = Tensor::from_f32(&[rows, 1], &vec![0.5; rows]).unwrap();
    never_replayed(large.as_mut(), |session| {
        let found = run(session, &given);
        assert!((found[0] - 0.25).abs() < 1e-4, "{found:?}");
    });
    // And the GPU is as it was.
    let mut captured = load(&engine, network());
    captured.capture_cuda_graphs();
    replay(captured.as_mut(), &input(2, 0));
}
