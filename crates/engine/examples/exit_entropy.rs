//! Is the entropy of an exit's scores quicker as ONNX nodes that are appended to the exit's head, or
//! as code of ours after it? Prints a line for each engine, number of rows and number of classes:
//!
//! `cargo run --release -p tessera-engine --example exit_entropy`
//!
//! The nodes are those that favour the nodes: softmax, log-softmax, product and sum, without what
//! garbage (NaN, minus infinity) would need; the host scales the sum.

use std::collections::BTreeMap;
use std::time::Instant;

use tessera_core::{DType, Device, Dim, Error, MemoryLocation, Result, Tensor};
use tessera_engine::{
    CudaEngineSession, Engine, EngineSession, LoadOptions, OnnxRuntime, Program, ProgramWeight,
    Rten, entropy_on_device, to_gpu, to_host,
};
use tessera_graph::builder::{GraphBuilder, int_attribute};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{
    NoExternalData, ScoreKind, Split, infer, normalised_entropy, onnx, split_into_chain,
};

/// Features that the head is given for each row.
const FEATURES: usize = 512;

/// Runs before those that count, so that CUDA graphs are captured.
const WARM_UP: usize = 400;

/// Runs that count, of each kind, in turns.
const RUNS: usize = 1_000;

fn main() -> Result<()> {
    println!("engine        rows  classes  head µs  + code µs  + nodes µs  worst difference");
    for classes in [10, 100, 1_000] {
        for rows in [1, 8, 64] {
            compare_on_cpu(&Rten::new(), rows, classes)?;
            match OnnxRuntime::new() {
                Ok(engine) => {
                    compare_on_cpu(&engine, rows, classes)?;
                    compare_on_gpu(&engine, rows, classes)?;
                }
                Err(error) => println!("SKIPPED with ONNX Runtime: {error}"),
            }
        }
    }
    Ok(())
}

fn compare_on_cpu(engine: &dyn Engine, rows: usize, classes: usize) -> Result<()> {
    let options = LoadOptions::default();
    let mut plain = engine.load_program(&program(head(classes, false))?, &options)?;
    let mut with_nodes = engine.load_program(&program(head(classes, true))?, &options)?;
    let input = features(rows)?;
    print_comparison(
        engine.name(),
        rows,
        classes,
        || run(plain.as_mut(), &input, 1),
        || run(with_nodes.as_mut(), &input, 2),
    )
}

fn compare_on_gpu(engine: &OnnxRuntime, rows: usize, classes: usize) -> Result<()> {
    if let Err(error) = tessera_cuda::list_gpus() {
        println!("SKIPPED on the GPU: {error}");
        return Ok(());
    }
    let options = LoadOptions { device: Device::Cuda(0), ..LoadOptions::default() };
    let load = |model| -> Result<Box<dyn CudaEngineSession>> {
        let mut session = engine.load_cuda_program(&program(model)?, &options)?;
        session.capture_cuda_graphs();
        Ok(session)
    };
    let (mut plain, mut with_nodes) = (load(head(classes, false))?, load(head(classes, true))?);
    let input = to_gpu(0, &features(rows)?)?;
    print_comparison(
        "cuda",
        rows,
        classes,
        || run(plain.as_mut(), &input, 1),
        || run(with_nodes.as_mut(), &input, 2),
    )?;
    let replayed = [plain.replayed_runs(), with_nodes.replayed_runs()];
    println!("              of {} runs {replayed:?} were replayed", WARM_UP + 2 * RUNS);
    Ok(())
}

/// A classifier of features; with nodes for the entropy of its scores, or without.
fn head(classes: usize, with_entropy: bool) -> ModelProto {
    let mut graph = GraphBuilder::new("head");
    let input = graph.add_input("x", DType::F32, vec![Dim::Unknown, Dim::Fixed(FEATURES)]);
    let values = (0..FEATURES * classes).map(|index| ((index * 7919 % 101) as f32 - 50.0) / 400.0);
    let weights = graph.add_weight("w", &[FEATURES, classes], values.collect());
    let scores = graph.add_node("MatMul", &[&input, &weights], []);
    graph.add_output_of_any_shape(&scores, DType::F32);
    if with_entropy {
        let last = || [int_attribute("axis", -1)];
        let probabilities = graph.add_node("Softmax", &[&scores], last());
        let logarithms = graph.add_node("LogSoftmax", &[&scores], last());
        let products = graph.add_node("Mul", &[&probabilities, &logarithms], []);
        let axes = graph.add_i64_weight("axes", &[1], vec![-1]);
        let sums = graph.add_node("ReduceSum", &[&products, &axes], [int_attribute("keepdims", 0)]);
        graph.add_output_of_any_shape(&sums, DType::F32);
    }
    graph.build_model()
}

fn program(model: ModelProto) -> Result<Program> {
    let graph = onnx::read::from_proto(model, &mut NoExternalData)?;
    let types = infer::infer_types(&graph, &BTreeMap::new())?;
    let cut = split_into_chain(&graph, &types, &Split::Blocks(1), &[])?;
    let block = cut.blocks.values().next().ok_or_else(|| Error::invalid("no block"))?.clone();
    let weights = block.weights().iter().map(|weight| {
        let bytes = cut.weights[&weight.hash].clone();
        let tensor = Tensor::from_bytes(weight.dtype, &weight.shape, bytes)?;
        Ok(ProgramWeight { tensor, mapping: None })
    });
    let weights = weights.collect::<Result<Vec<_>>>()?;
    Program::new(block, weights)
}

fn features(rows: usize) -> Result<Tensor> {
    let values: Vec<f32> =
        (0..rows * FEATURES).map(|index| ((index * 31 % 97) as f32 - 48.0) / 24.0).collect();
    Tensor::from_f32(&[rows, FEATURES], &values)
}

fn run<S: EngineSession + ?Sized>(
    session: &mut S,
    input: &Tensor,
    outputs: usize,
) -> Result<Vec<Tensor>> {
    session.run_inference(std::slice::from_ref(input), (0..outputs).map(|_| None).collect())
}

/// By code of ours, where the scores are.
fn entropy_by_code(scores: &Tensor) -> Result<Vec<f64>> {
    if let MemoryLocation::Cuda(_) = scores.location() {
        let found = entropy_on_device(scores, false)?;
        return on_host(&found.ok_or_else(|| Error::unsupported("no kernel for such scores"))?);
    }
    let classes = scores.shape().last().copied().unwrap_or(1);
    let scores = on_host(scores)?;
    let rows = scores.chunks(classes);
    Ok(rows.map(|row| normalised_entropy(row, ScoreKind::Logits)).collect())
}

/// From the sums that the nodes give: the output that has no classes.
fn entropy_by_nodes(outputs: &[Tensor], classes: usize) -> Result<Vec<f64>> {
    let sums = outputs.iter().find(|output| output.shape().len() == 1);
    let sums = sums.ok_or_else(|| Error::engine("no output is the sums"))?;
    let scale = -1.0 / (classes as f64).ln();
    Ok(on_host(&to_host(sums)?)?.into_iter().map(|sum| sum * scale).collect())
}

fn on_host(tensor: &Tensor) -> Result<Vec<f64>> {
    let numbers = tensor.clone().wait_fence_on_host()?.to_f64();
    numbers.ok_or_else(|| Error::unsupported("these are no numbers"))
}

fn print_comparison(
    engine: &str,
    rows: usize,
    classes: usize,
    mut plain: impl FnMut() -> Result<Vec<Tensor>>,
    mut with_nodes: impl FnMut() -> Result<Vec<Tensor>>,
) -> Result<()> {
    let (mut bare_us, mut code_us, mut nodes_us) = (Vec::new(), Vec::new(), Vec::new());
    let mut worst: f64 = 0.0;
    for number in 0..WARM_UP + RUNS {
        let begun = Instant::now();
        // The scores themselves are waited for, and nothing is made of them.
        drop(plain()?.remove(0).wait_fence_on_host()?);
        let bare = begun.elapsed();
        let begun = Instant::now();
        let by_code = entropy_by_code(&plain()?[0])?;
        let code = begun.elapsed();
        let begun = Instant::now();
        let by_nodes = entropy_by_nodes(&with_nodes()?, classes)?;
        let nodes = begun.elapsed();
        for (a, b) in by_code.iter().zip(&by_nodes) {
            worst = worst.max((a - b).abs());
        }
        if number >= WARM_UP {
            bare_us.push(bare.as_secs_f64() * 1e6);
            code_us.push(code.as_secs_f64() * 1e6);
            nodes_us.push(nodes.as_secs_f64() * 1e6);
        }
    }
    let [bare, code, nodes] = [bare_us, code_us, nodes_us].map(median);
    println!(
        "{engine:<12}  {rows:>4}  {classes:>7}  {bare:>7.1}  {:>9.1}  {:>10.1}  {worst:.1e}",
        code - bare,
        nodes - bare
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
