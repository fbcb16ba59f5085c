//! Models that compute shapes give the same once that is folded, what follows from small inputs is
//! computed again by every block, and they are cut at every place: for all sizes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_core::{DType, Dim, ErrorKind, Random, Tensor};
use tessera_engine::{LoadOptions, Rten};
use tessera_graph::builder::{GraphBuilder, int_attribute, ints_attribute};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{
    Graph, InferredTypes, NoExternalData, Partition, Split, cut_points, fold_shapes, infer, onnx,
    split_into_chain,
};
use tessera_node::{ExitPolicy, LoadedModel, ModelLoader, compare_output};

/// Random graphs.
const GRAPHS: u64 = 120;

/// Features of a token.
const WIDTH: usize = 32;

/// Most tokens.
const MOST_TOKENS: usize = 24;

fn read(model: ModelProto) -> (Graph, InferredTypes) {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    (graph, types)
}

fn read_folded(model: ModelProto) -> (Graph, InferredTypes) {
    let (graph, types) = read(model);
    let graph = fold_shapes(graph, &types).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    (graph, types)
}

fn load(partition: &Partition) -> LoadedModel {
    let loader = ModelLoader::new(Arc::new(Rten::new()), LoadOptions::default());
    loader.load_model(&partition.graph, partition).unwrap()
}

/// From -1 to 1.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.next_below(1_001) as f32 / 500.0 - 1.0).collect()
}

/// A model of `hidden` states `[batch, length, WIDTH]` and a `mask` `[batch, length]`.
struct Maker {
    random: Random,
    graph: GraphBuilder,
    /// The states so far, all of the same shape.
    states: Vec<String>,
    /// Where sizes may be asked.
    asked: Vec<String>,
    mask: Option<String>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let mut graph = GraphBuilder::new("folding");
        let open = |name: &str| Dim::Symbol(name.to_owned());
        let dims = [open("batch"), open("length"), Dim::Fixed(WIDTH)];
        let x = graph.add_input("x", DType::F32, dims);
        graph.add_input("mask", DType::I64, [open("batch"), open("length")]);
        let asked = vec![x.clone(), "mask".to_owned()];
        Self { random: Random::new(seed), graph, states: vec![x], asked, mask: None }
    }

    fn last(&self) -> String {
        self.states.last().unwrap().clone()
    }

    fn integers(&mut self, values: &[i64]) -> String {
        self.graph.add_i64_weight("i", &[values.len()], values.to_vec())
    }

    /// The size of an axis, as a list of one, asked of any tensor that has it.
    fn size(&mut self, axis: i64) -> String {
        let asked = self.asked[self.random.next_below(self.asked.len() as u64) as usize].clone();
        let shape = self.graph.add_node("Shape", &[&asked], []);
        if self.random.next_below(2) == 0 {
            let place = self.integers(&[axis]);
            return self.graph.add_node("Gather", &[&shape, &place], []);
        }
        let [start, end, zero] = [axis, axis + 1, 0].map(|at| self.integers(&[at]));
        self.graph.add_node("Slice", &[&shape, &start, &end, &zero], [])
    }

    fn target(&mut self, fixed: &[i64]) -> String {
        let (batch, length, fixed) = (self.size(0), self.size(1), self.integers(fixed));
        self.graph.add_node("Concat", &[&batch, &length, &fixed], [int_attribute("axis", 0)])
    }

    fn push(&mut self, state: String) {
        self.asked.push(state.clone());
        self.states.push(state);
    }

    fn dense(&mut self) {
        let (last, numbers) = (self.last(), numbers(&mut self.random, WIDTH * WIDTH));
        let scaled = numbers.iter().map(|number| number / 8.0).collect();
        let weight = self.graph.add_weight("w", &[WIDTH, WIDTH], scaled);
        let product = self.graph.add_node("MatMul", &[&last, &weight], []);
        let state = self.graph.add_node("Tanh", &[&product], []);
        self.push(state);
    }

    /// Heads are taken apart, swapped, and put together again.
    fn heads(&mut self) {
        let last = self.last();
        let target = self.target(&[4, WIDTH as i64 / 4]);
        let apart = self.graph.add_node("Reshape", &[&last, &target], []);
        let order = [ints_attribute("perm", &[0, 2, 1, 3])];
        let turned = self.graph.add_node("Transpose", &[&apart], order.clone());
        let soft = self.graph.add_node("Sigmoid", &[&turned], []);
        let back = self.graph.add_node("Transpose", &[&soft], order);
        let target = self.target(&[WIDTH as i64]);
        let state = self.graph.add_node("Reshape", &[&back, &target], []);
        self.push(state);
    }

    /// All tokens of all rows are one list for a while.
    fn flat(&mut self) {
        let (last, flat) = (self.last(), self.integers(&[-1, WIDTH as i64]));
        let flat = self.graph.add_node("Reshape", &[&last, &flat], []);
        let halves = self.graph.add_node("Tanh", &[&flat], []);
        let target = self.target(&[WIDTH as i64]);
        let state = self.graph.add_node("Reshape", &[&halves, &target], []);
        self.push(state);
    }

    /// Positions out of a table that has more.
    fn positions(&mut self) {
        let numbers = numbers(&mut self.random, MOST_TOKENS * WIDTH);
        let table = self.graph.add_weight("table", &[1, MOST_TOKENS, WIDTH], numbers);
        let (start, end, axis) = (self.integers(&[0]), self.size(1), self.integers(&[1]));
        let taken = self.graph.add_node("Slice", &[&table, &start, &end, &axis], []);
        let last = self.last();
        let state = self.graph.add_node("Add", &[&last, &taken], []);
        self.push(state);
    }

    /// A number for each token, counted from 0.
    fn counted(&mut self) {
        let size = self.size(1);
        let none = self.integers(&[0]);
        let size = self.graph.add_node("Squeeze", &[&size, &none], []);
        let zero = self.graph.add_i64_weight("zero", &[], vec![0]);
        let one = self.graph.add_i64_weight("one", &[], vec![1]);
        let count = self.graph.add_node("Range", &[&zero, &size, &one], []);
        let count = self.graph.add_node("Cast", &[&count], [int_attribute("to", 1)]);
        let axes = self.integers(&[0, 2]);
        let count = self.graph.add_node("Unsqueeze", &[&count, &axes], []);
        let target = self.target(&[WIDTH as i64]);
        let count = self.graph.add_node("Expand", &[&count, &target], []);
        let last = self.last();
        let sum = self.graph.add_node("Add", &[&last, &count], []);
        let state = self.graph.add_node("Sin", &[&sum], []);
        self.push(state);
    }

    /// What the mask hides is nothing; the mask is made once.
    fn masked(&mut self) {
        let mask = match &self.mask {
            Some(mask) => mask.clone(),
            None => {
                let axes = self.integers(&[2]);
                let wide = self.graph.add_node("Unsqueeze", &["mask", &axes], []);
                let zero = self.integers(&[0]);
                self.graph.add_node("Equal", &[&wide, &zero], [])
            }
        };
        self.mask = Some(mask.clone());
        let nothing = self.graph.add_weight("nothing", &[1], vec![0.0]);
        let last = self.last();
        let state = self.graph.add_node("Where", &[&mask, &nothing, &last], []);
        self.push(state);
    }

    fn build(mut self, steps: usize) -> ModelProto {
        for _ in 0..steps {
            self.dense();
            match self.random.next_below(5) {
                0 => self.heads(),
                1 => self.flat(),
                2 => self.positions(),
                3 => self.counted(),
                _ => self.masked(),
            }
        }
        self.dense();
        let last = self.last();
        self.graph.add_output(&last);
        self.graph.build_model()
    }
}

fn inputs(batch: usize, length: usize) -> Vec<Tensor> {
    let mut random = Random::new(7);
    let x = numbers(&mut random, batch * length * WIDTH);
    let mask: Vec<i64> = (0..batch * length).map(|_| random.next_below(2) as i64).collect();
    let x = Tensor::from_f32(&[batch, length, WIDTH], &x).unwrap();
    let bytes: Vec<u8> = mask.iter().flat_map(|value| value.to_le_bytes()).collect();
    vec![x, Tensor::from_bytes(DType::I64, &[batch, length], bytes.into()).unwrap()]
}

#[test]
fn folded_and_cut_everywhere_a_model_gives_what_it_gave() {
    for seed in 0..GRAPHS {
        let steps = 2 + seed as usize % 5;
        let (graph, types) = read(Maker::new(seed).build(steps));
        let whole = load(&split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap());
        let (graph, types) = read_folded(Maker::new(seed).build(steps));
        let every = split_into_chain(&graph, &types, &Split::Every, &[]).unwrap();
        assert!(every.graph.blocks.len() > steps, "{} blocks", every.graph.blocks.len());
        let cut = load(&every);
        for (batch, length) in [(1, 1), (2, 5), (3, MOST_TOKENS)] {
            let given = inputs(batch, length);
            let expected = whole.run_model(&given, ExitPolicy::SkipExits).unwrap();
            let found = cut.run_model(&given, ExitPolicy::SkipExits).unwrap();
            let (expected, found) = (&expected.outputs[0].1, &found.outputs[0].1);
            let difference = compare_output("y", found, expected).unwrap();
            assert!(difference.max_relative <= 1e-5, "graph {seed}: {difference:?}");
        }
    }
}

#[test]
fn what_follows_from_small_inputs_is_handed_on_by_none() {
    for seed in 0..GRAPHS {
        let (graph, types) = read_folded(Maker::new(seed).build(4));
        let points = cut_points(&graph, &types, &[]).unwrap();
        for cut in &points.cuts {
            for &side in &cut.sides {
                // A size may ride, where no tensor that is near has it.
                let is_size = types.get(side).unwrap().byte_len() == Some(8);
                let name = graph.value_name(side);
                let is_input = graph.inputs().contains(&side);
                assert!(is_input || is_size, "graph {seed}: {name} rides along");
            }
        }
    }
}

/// `b`, in the shape that `a` has.
fn reshaped_like_another() -> ModelProto {
    let mut graph = GraphBuilder::new("like");
    let rows = || Dim::Symbol("rows".to_owned());
    let a = graph.add_input("a", DType::F32, [rows(), Dim::Fixed(6)]);
    let b = graph.add_input("b", DType::F32, [rows(), Dim::Fixed(2), Dim::Fixed(3)]);
    let shape = graph.add_node("Shape", &[&a], []);
    let like = graph.add_node("Reshape", &[&b, &shape], []);
    let relu = graph.add_node("Relu", &[&like], []);
    let sum = graph.add_node("Add", &[&relu, &a], []);
    graph.add_output(&sum);
    graph.build_model()
}

#[test]
fn names_of_dimensions_are_rules_only_where_something_was_folded_because_of_them() {
    let (graph, types) = read_folded(reshaped_like_another());
    assert!(graph.relies_on_dim_names());
    let model = load(&split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap());
    let of = |shape: &[usize]| Tensor::from_f32(shape, &vec![1.0; shape.iter().product()]).unwrap();
    let error = model.run_model(&[of(&[2, 6]), of(&[4, 2, 3])], ExitPolicy::SkipExits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("rows = 4"), "{error}");
    let result = model.run_model(&[of(&[2, 6]), of(&[2, 2, 3])], ExitPolicy::SkipExits).unwrap();
    assert_eq!(result.outputs[0].1.shape(), [2, 6]);
}
