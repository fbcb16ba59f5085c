//! Models run block by block as they would in one piece, and leave at exits that are certain.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tessera_core::{ContentHash, DType, Dim, ErrorKind, Result, Tensor};
use tessera_engine::{
    Engine, EngineSession, LoadOptions, OnnxRuntime, Program, Rten, find_library,
};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::onnx::{self, ModelProto};
use tessera_graph::{
    ExitSpec, Graph, InferredTypes, NoExternalData, Partition, ScoreKind, Split, TensorSource,
    infer, partition_graph, split_into_chain,
};
use tessera_node::{ExitPolicy, LoadedModel, ModelLoader, RunResult, compare_output};

fn read(model: ModelProto) -> (Graph, InferredTypes) {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    (graph, types)
}

fn cut(model: ModelProto, how: &Split, exits: &[ExitSpec]) -> Partition {
    let (graph, types) = read(model);
    split_into_chain(&graph, &types, how, exits).unwrap()
}

fn load_on(engine: Arc<dyn Engine>, partition: &Partition) -> LoadedModel {
    let loader = ModelLoader::new(engine, LoadOptions::default());
    loader.load_model(&partition.graph, partition).unwrap()
}

fn load(partition: &Partition) -> LoadedModel {
    load_on(Arc::new(Rten::new()), partition)
}

/// Every engine that this machine has.
fn engines() -> Vec<Arc<dyn Engine>> {
    let mut engines: Vec<Arc<dyn Engine>> = vec![Arc::new(Rten::new())];
    if find_library().is_some() {
        engines.push(Arc::new(OnnxRuntime::new().unwrap()));
    } else {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must have ONNX Runtime, and no libonnxruntime was found"
        );
        eprintln!("SKIPPED for onnxruntime: no libonnxruntime found");
    }
    engines
}

fn row(values: &[f32]) -> Tensor {
    Tensor::from_f32(&[1, values.len()], values).unwrap()
}

/// Names of the outputs that a run gave.
fn names(outputs: &[(String, Tensor)]) -> Vec<&str> {
    outputs.iter().map(|(name, _)| name.as_str()).collect()
}

/// Whether each block ran.
fn ran(result: &RunResult) -> Vec<bool> {
    result.times.iter().map(Option::is_some).collect()
}

/// Two runs gave the same outputs, give or take rounding.
fn assert_same(found: &[(String, Tensor)], expected: &[(String, Tensor)]) {
    assert_eq!(names(found), names(expected));
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = compare_output(name, found, expected).unwrap();
        assert!(difference.max_relative <= 1e-5, "{difference:?}");
    }
}

/// Numbers that look random, below one.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + seed * 104_729) % 1021) as f32 / 1021.0 - 0.5).collect()
}

/// `late = relu(x) · w` with four classes, and the exit `early`, whose scores are the first four
/// elements of `relu(x)`.
fn with_exit(early_is_softmax: bool) -> ModelProto {
    let mut graph = GraphBuilder::new("early");
    let batch = Dim::Symbol("batch".to_owned());
    let x = graph.add_input("x", DType::F32, [batch, Dim::Fixed(8)]);
    let hidden = graph.add_node("Relu", &[&x], []);
    let mut pick = vec![0.0; 8 * 4];
    for class in 0..4 {
        pick[class * 4 + class] = 1.0;
    }
    let pick = graph.add_weight("pick", &[8, 4], pick);
    if early_is_softmax {
        let scores = graph.add_node("MatMul", &[&hidden, &pick], []);
        graph.add_node_into("early", "Softmax", &[&scores], &["early"], []);
    } else {
        graph.add_node_into("early", "MatMul", &[&hidden, &pick], &["early"], []);
    }
    let w = graph.add_weight("w", &[8, 4], numbers(8 * 4, 3));
    graph.add_node_into("late", "MatMul", &[&hidden, &w], &["late"], []);
    graph.add_output("late");
    graph.add_output("early");
    graph.build_model()
}

fn exit(threshold: f32) -> ExitSpec {
    ExitSpec { output: "early".to_owned(), threshold }
}

const CERTAIN: [f32; 8] = [50.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
const UNCERTAIN: [f32; 8] = [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0];

#[test]
fn an_exit_that_is_certain_is_taken_and_nothing_runs_after_it() {
    for softmax in [false, true] {
        let partition = cut(with_exit(softmax), &Split::Every, &[exit(0.5)]);
        let scores = partition.graph.exits[0].scores;
        let expected = [ScoreKind::Logits, ScoreKind::Probabilities][usize::from(softmax)];
        assert_eq!(scores, expected);
        let head = partition.graph.exits[0].head;
        let model = load(&partition);
        let result = model.run_model(&[row(&CERTAIN)], ExitPolicy::TakeExits).unwrap();
        let taken = result.exit.as_ref().unwrap();
        assert_eq!((taken.output.as_str(), taken.threshold), ("early", 0.5));
        assert!(taken.entropy < 1e-6, "{}", taken.entropy);
        assert_eq!(names(&result.outputs), ["early"]);
        let ran = ran(&result);
        assert!(ran[head], "{ran:?}");
        assert!(ran[..head].iter().all(|&ran| ran), "{ran:?}");
        assert!(head + 1 < ran.len(), "the head runs before the rest");
        assert!(ran[head + 1..].iter().all(|&ran| !ran), "{ran:?}");
    }
}

#[test]
fn an_exit_that_is_not_certain_enough_is_passed_by() {
    for softmax in [false, true] {
        let partition = cut(with_exit(softmax), &Split::Every, &[exit(0.5)]);
        let model = load(&partition);
        let result = model.run_model(&[row(&UNCERTAIN)], ExitPolicy::TakeExits).unwrap();
        assert!(result.exit.is_none());
        assert_eq!(names(&result.outputs), ["late"]);
        assert_eq!(names(&result.exits), ["early"]);
        assert!(ran(&result).iter().all(|&ran| ran));
    }
}

#[test]
fn a_threshold_of_one_is_always_met_and_one_of_zero_by_certainty_alone() {
    let always = load(&cut(with_exit(false), &Split::Every, &[exit(1.0)]));
    let never = load(&cut(with_exit(false), &Split::Every, &[exit(0.0)]));
    let result = always.run_model(&[row(&UNCERTAIN)], ExitPolicy::TakeExits).unwrap();
    let entropy = result.exit.unwrap().entropy;
    assert!((entropy - 1.0).abs() < 1e-6, "{entropy}");
    let result = never.run_model(&[row(&UNCERTAIN)], ExitPolicy::TakeExits).unwrap();
    assert!(result.exit.is_none());
}

#[test]
fn a_batch_leaves_where_all_its_samples_are_certain() {
    let model = load(&cut(with_exit(false), &Split::Every, &[exit(0.5)]));
    let batch = |samples: [[f32; 8]; 2]| Tensor::from_f32(&[2, 8], samples.as_flattened()).unwrap();
    for (samples, leaves) in
        [([CERTAIN, CERTAIN], true), ([CERTAIN, UNCERTAIN], false), ([UNCERTAIN, CERTAIN], false)]
    {
        let result = model.run_model(&[batch(samples)], ExitPolicy::TakeExits).unwrap();
        assert_eq!(result.exit.is_some(), leaves);
        assert_eq!(result.outputs[0].1.shape(), [2, 4]);
    }
}

#[test]
fn exits_can_be_skipped_or_all_be_run() {
    let partition = cut(with_exit(false), &Split::Every, &[exit(1.0)]);
    let head = partition.graph.exits[0].head;
    let model = load(&partition);
    let skipped = model.run_model(&[row(&CERTAIN)], ExitPolicy::SkipExits).unwrap();
    assert!(skipped.exit.is_none() && skipped.exits.is_empty());
    let expected: Vec<bool> =
        (0..partition.graph.blocks.len()).map(|block| block != head).collect();
    assert_eq!(ran(&skipped), expected);

    let all = model.run_model(&[row(&CERTAIN)], ExitPolicy::AllExits).unwrap();
    assert!(all.exit.is_none());
    assert!(ran(&all).iter().all(|&ran| ran));
    assert_same(&all.outputs, &skipped.outputs);
    assert_eq!(names(&all.exits), ["early"]);
    assert_eq!(all.exits[0].1.to_f64().unwrap(), [50.0, 0.0, 0.0, 0.0]);
}

/// A network with two residual connections and two outputs.
fn residual() -> ModelProto {
    let mut graph = GraphBuilder::new("residual");
    let x = graph.add_input("x", DType::F32, [1, 64]);
    let mut value = x;
    for layer in 0..3 {
        let w = graph.add_weight("w", &[64, 64], numbers(64 * 64, layer));
        let product = graph.add_node("MatMul", &[&value, &w], []);
        let active = graph.add_node("Tanh", &[&product], []);
        value = graph.add_node("Add", &[&active, &value], []);
    }
    let w = graph.add_weight("w", &[64, 8], numbers(64 * 8, 9));
    graph.add_node_into("scores", "MatMul", &[&value, &w], &["scores"], []);
    graph.add_node_into("size", "Sigmoid", &["scores"], &["size"], []);
    graph.add_output("scores");
    graph.add_output("size");
    graph.build_model()
}

#[test]
fn blocks_compute_what_the_model_computes_in_one_piece_run_after_run() {
    let whole = cut(residual(), &Split::Blocks(1), &[]);
    let every = cut(residual(), &Split::Every, &[]);
    assert_eq!(whole.graph.blocks.len(), 1);
    assert!(every.graph.blocks.len() > 3);
    for engine in engines() {
        let (whole, chain) =
            (load_on(Arc::clone(&engine), &whole), load_on(Arc::clone(&engine), &every));
        // The first run finds out shapes, later ones use memory again: none may see another's.
        let mut earlier = Vec::new();
        for seed in 0..4 {
            let x = row(&numbers(64, seed));
            let expected =
                whole.run_model(std::slice::from_ref(&x), ExitPolicy::TakeExits).unwrap();
            let found = chain.run_model(&[x], ExitPolicy::TakeExits).unwrap();
            assert_same(&found.outputs, &expected.outputs);
            assert!(ran(&found).iter().all(|&ran| ran));
            earlier.push((found, expected));
        }
        for (found, expected) in &earlier {
            assert_same(&found.outputs, &expected.outputs);
        }
    }
}

/// `y = sigmoid(h · l) + tanh(h · r)` with `h = relu(x · w)`; nodes are named after a part.
fn fork(parts: [usize; 7]) -> (Graph, InferredTypes, Vec<usize>) {
    let mut graph = GraphBuilder::new("fork");
    let x = graph.add_input("x", DType::F32, [1, 64]);
    let weight =
        |graph: &mut GraphBuilder, seed| graph.add_weight("w", &[64, 64], numbers(64 * 64, seed));
    let (w, l, r) = (weight(&mut graph, 1), weight(&mut graph, 2), weight(&mut graph, 3));
    let name = |node: usize| format!("node-{node}");
    let product = graph.add_named_node(&name(0), "MatMul", &[&x, &w], []);
    let hidden = graph.add_named_node(&name(1), "Relu", &[&product], []);
    let left = graph.add_named_node(&name(2), "MatMul", &[&hidden, &l], []);
    let left = graph.add_named_node(&name(3), "Sigmoid", &[&left], []);
    let right = graph.add_named_node(&name(4), "MatMul", &[&hidden, &r], []);
    let right = graph.add_named_node(&name(5), "Tanh", &[&right], []);
    graph.add_node_into(&name(6), "Add", &[&left, &right], &["y"], []);
    graph.add_output("y");
    let (graph, types) = read(graph.build_model());
    // The reader may have put the nodes into another order.
    let part_of = graph.nodes().iter().map(|node| {
        let number: usize = node.name.trim_start_matches("node-").parse().unwrap();
        parts[number]
    });
    let part_of = part_of.collect();
    (graph, types, part_of)
}

fn fork_into(parts: [usize; 7]) -> Partition {
    let (graph, types, part_of) = fork(parts);
    partition_graph(&graph, &types, &part_of, &[]).unwrap()
}

#[test]
fn blocks_that_branch_and_join_compute_what_one_block_computes() {
    let whole = fork_into([0; 7]);
    assert_eq!(whole.graph.blocks.len(), 1);
    let diamond = fork_into([0, 0, 1, 1, 2, 2, 3]);
    assert_eq!(diamond.graph.blocks.len(), 4);
    let trunk = TensorSource::Block { block: 0, output: 0 };
    assert_eq!(diamond.graph.blocks[1].inputs, [trunk]);
    assert_eq!(diamond.graph.blocks[2].inputs, [trunk]);
    assert_eq!(diamond.graph.blocks[3].inputs.len(), 2);
    // One part makes both what the other branch needs and its own branch.
    let lopsided = fork_into([0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(lopsided.graph.blocks.len(), 2);
    assert_eq!(lopsided.graph.blocks[0].outputs.len(), 2);
    assert_eq!(lopsided.graph.blocks[1].inputs.len(), 2);
    let every = fork_into([0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(every.graph.blocks.len(), 7);

    for engine in engines() {
        let expected = load_on(Arc::clone(&engine), &whole);
        for cut in [&diamond, &lopsided, &every] {
            let model = load_on(Arc::clone(&engine), cut);
            for seed in 0..3 {
                let x = [row(&numbers(64, seed))];
                let found = model.run_model(&x, ExitPolicy::TakeExits).unwrap();
                let expected = expected.run_model(&x, ExitPolicy::TakeExits).unwrap();
                assert_same(&found.outputs, &expected.outputs);
            }
        }
    }
}

/// rten, and a note of every block that it was asked to load.
#[derive(Default)]
struct Counting {
    engine: Rten,
    loaded: Mutex<Vec<ContentHash>>,
}

impl Counting {
    fn count(&self) -> usize {
        self.loaded.lock().unwrap().len()
    }
}

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn version(&self) -> String {
        self.engine.version()
    }

    fn load_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        self.loaded.lock().unwrap().push(program.block().hash());
        self.engine.load_program(program, options)
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        self.engine.load_file(file, inputs, outputs, options)
    }
}

/// A chain of layers, a block each; layers of the same number are the same.
fn chain(layers: &[usize]) -> Partition {
    let mut graph = GraphBuilder::new("chain");
    let mut value = graph.add_input("x", DType::F32, [1, 64]);
    for &layer in layers {
        let w = graph.add_weight("w", &[64, 64], numbers(64 * 64, layer));
        value = graph.add_node("MatMul", &[&value, &w], []);
    }
    graph.add_output(&value);
    cut(graph.build_model(), &Split::Every, &[])
}

#[test]
fn a_block_that_two_models_share_is_loaded_once() {
    let engine = Arc::new(Counting::default());
    let loader = ModelLoader::new(Arc::clone(&engine) as Arc<dyn Engine>, LoadOptions::default());
    let (first, second) = (chain(&[1, 2, 3]), chain(&[1, 2, 4]));
    let one = loader.load_model(&first.graph, &first).unwrap();
    assert_eq!(engine.count(), 3);
    let two = loader.load_model(&second.graph, &second).unwrap();
    assert_eq!(engine.count(), 4);
    let mut distinct = engine.loaded.lock().unwrap().clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);

    // Both run, by turns, and each as if it were alone.
    let x = [row(&numbers(64, 5))];
    for (shared, partition) in [(&one, &first), (&two, &second), (&one, &first)] {
        let alone = load(partition).run_model(&x, ExitPolicy::TakeExits).unwrap();
        let found = shared.run_model(&x, ExitPolicy::TakeExits).unwrap();
        assert_eq!(found.outputs[0].1.to_f64().unwrap(), alone.outputs[0].1.to_f64().unwrap());
    }

    // What nobody uses any more is given back, and loaded anew when it is needed.
    drop(one);
    loader.load_model(&second.graph, &second).unwrap();
    assert_eq!(engine.count(), 4, "the other model still has its blocks");
    drop(two);
    loader.load_model(&second.graph, &second).unwrap();
    assert_eq!(engine.count(), 7);
}

#[test]
fn a_block_that_a_model_repeats_is_loaded_once() {
    let engine = Arc::new(Counting::default());
    let loader = ModelLoader::new(Arc::clone(&engine) as Arc<dyn Engine>, LoadOptions::default());
    let partition = chain(&[6, 6, 6]);
    assert_eq!(partition.blocks.len(), 1);
    let model = loader.load_model(&partition.graph, &partition).unwrap();
    assert_eq!(engine.count(), 1);
    let result = model.run_model(&[row(&numbers(64, 1))], ExitPolicy::TakeExits).unwrap();
    assert_eq!(ran(&result), [true; 3]);
}

#[test]
fn models_that_share_blocks_run_at_the_same_time() {
    let loader = ModelLoader::new(Arc::new(Rten::new()), LoadOptions::default());
    let (first, second) = (chain(&[1, 2, 3]), chain(&[1, 2, 4]));
    let one = loader.load_model(&first.graph, &first).unwrap();
    let two = loader.load_model(&second.graph, &second).unwrap();
    let run = |model: &LoadedModel, seed: usize| {
        let x = [row(&numbers(64, seed))];
        let result = model.run_model(&x, ExitPolicy::TakeExits).unwrap();
        result.outputs[0].1.to_f64().unwrap()
    };
    std::thread::scope(|scope| {
        for (model, seed) in [(&one, 1), (&two, 2), (&one, 3), (&two, 4)] {
            let run = &run;
            scope.spawn(move || {
                let expected = run(model, seed);
                for _ in 0..50 {
                    assert_eq!(run(model, seed), expected);
                }
            });
        }
    });
}

#[test]
fn an_input_of_the_wrong_type_is_refused_with_its_name_and_both_types() {
    let model = load(&chain(&[1]));
    for (input, found) in [
        (Tensor::from_i64(&[1, 64], &[0; 64]).unwrap(), "i64[1,64]"),
        (Tensor::from_f32(&[64], &[0.0; 64]).unwrap(), "f32[64]"),
        (Tensor::from_f32(&[2, 64], &[0.0; 128]).unwrap(), "f32[2,64]"),
        (Tensor::from_f32(&[1, 63], &[0.0; 63]).unwrap(), "f32[1,63]"),
    ] {
        let error = model.run_model(&[input], ExitPolicy::TakeExits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = error.to_string();
        for word in ["\"x\"", "f32[1,64]", found] {
            assert!(text.contains(word), "{text}");
        }
    }
    let x = row(&[0.0; 64]);
    for inputs in [vec![], vec![x.clone(), x.clone()]] {
        let error = model.run_model(&inputs, ExitPolicy::TakeExits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        let text = error.to_string();
        assert!(text.contains(&inputs.len().to_string()), "{text}");
    }
    // And a run that was refused harms none that follows.
    model.run_model(&[x], ExitPolicy::TakeExits).unwrap();
}

#[test]
fn names_of_dimensions_are_hints_as_they_are_for_engines() {
    let mut graph = GraphBuilder::new("sum");
    let rows = Dim::Symbol("rows".to_owned());
    let a = graph.add_input("a", DType::F32, [rows.clone(), Dim::Fixed(4)]);
    let b = graph.add_input("b", DType::F32, [rows, Dim::Fixed(4)]);
    graph.add_node_into("sum", "Add", &[&a, &b], &["y"], []);
    graph.add_output("y");
    let model = load(&cut(graph.build_model(), &Split::Blocks(1), &[]));
    let of = |rows: usize| Tensor::from_f32(&[rows, 4], &vec![1.0; rows * 4]).unwrap();
    for (first, second) in [(1, 2), (3, 1)] {
        let result = model.run_model(&[of(first), of(second)], ExitPolicy::TakeExits).unwrap();
        assert_eq!(result.outputs[0].1.shape(), [first.max(second), 4]);
    }
    let error = model.run_model(&[of(2), of(3)], ExitPolicy::TakeExits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
    for rows in [1, 5] {
        let result = model.run_model(&[of(rows), of(rows)], ExitPolicy::TakeExits).unwrap();
        assert_eq!(result.outputs[0].1.to_f64().unwrap(), vec![2.0; rows * 4]);
    }
}
