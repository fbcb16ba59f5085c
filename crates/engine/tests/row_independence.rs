//! What is proved of the rows of a batch holds: in random graphs, rows together are what they are
//! alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeMap;

use tessera_core::{DType, Dim, Tensor};
use tessera_engine::{Engine, LoadOptions, Rten};
use tessera_graph::builder::{GraphBuilder, int_attribute, ints_attribute};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{Graph, NoExternalData, infer, onnx, prove_rows};

use common::program_of;

/// Rows that are computed together. Other sizes may be the same, by chance.
const ROWS: usize = 3;

/// Random graphs.
const GRAPHS: u64 = 1_500;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 >> 17) & 0xffff
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn number(&mut self) -> f32 {
        (self.next() % 2_001) as f32 / 500.0 - 2.0
    }
}

/// A value of the graph that is made, with its shape for this many rows.
#[derive(Clone)]
struct Made {
    name: String,
    shape: Vec<usize>,
}

struct Maker {
    random: Random,
    graph: GraphBuilder,
    values: Vec<Made>,
}

impl Maker {
    fn integers(&mut self, values: Vec<i64>) -> String {
        self.graph.add_i64_weight("i", &[values.len()], values)
    }

    fn weight(&mut self, shape: &[usize]) -> String {
        let count = shape.iter().product();
        let values = (0..count).map(|_| self.random.number() / 4.0).collect();
        self.graph.add_weight("w", shape, values)
    }

    /// One more value, of those that are there; nothing where the dice don't fit.
    fn add_value(&mut self) {
        let from = self.random.pick(&self.values);
        let rank = from.shape.len();
        let axis = self.random.below(rank);
        let size = from.shape[axis];
        let x = from.name.as_str();
        let attribute = [int_attribute("axis", axis as i64)];
        let (name, shape) = match self.random.below(20) {
            0 | 1 => {
                let name = self.random.pick(&["Tanh", "Sigmoid", "Relu", "Neg"]);
                (self.graph.add_node(name, &[x], []), from.shape.clone())
            }
            2 => (self.graph.add_node("Softmax", &[x], attribute), from.shape.clone()),
            3 => {
                let keeps = self.random.below(2);
                let name = self.random.pick(&["ReduceMax", "ReduceMean", "ReduceMin"]);
                let attributes = [
                    ints_attribute("axes", &[axis as i64]),
                    int_attribute("keepdims", keeps as i64),
                ];
                let mut shape = from.shape.clone();
                if keeps == 1 {
                    shape[axis] = 1;
                } else {
                    shape.remove(axis);
                }
                (self.graph.add_node(name, &[x], attributes), shape)
            }
            4 | 5 => {
                let mut order: Vec<usize> = (0..rank).collect();
                for place in (1..rank).rev() {
                    order.swap(place, self.random.below(place + 1));
                }
                let shape = order.iter().map(|&axis| from.shape[axis]).collect();
                let order: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
                (self.graph.add_node("Transpose", &[x], [ints_attribute("perm", &order)]), shape)
            }
            6..=8 => {
                let Some((wanted, shape)) = self.other_shape(&from.shape) else { return };
                let wanted = self.integers(wanted);
                (self.graph.add_node("Reshape", &[x, &wanted], []), shape)
            }
            9 => {
                let axes = self.integers(vec![axis as i64]);
                let mut shape = from.shape.clone();
                shape.insert(axis, 1);
                (self.graph.add_node("Unsqueeze", &[x, &axes], []), shape)
            }
            10 if size == 1 && rank > 1 => {
                let axes = self.integers(vec![axis as i64]);
                let mut shape = from.shape.clone();
                shape.remove(axis);
                (self.graph.add_node("Squeeze", &[x, &axes], []), shape)
            }
            11 => {
                let [first, last] = [0, self.random.below(size) as i64 + 1];
                let [from_at, to, axes] =
                    [first, last, axis as i64].map(|at| self.integers(vec![at]));
                let mut shape = from.shape.clone();
                shape[axis] = last as usize;
                (self.graph.add_node("Slice", &[x, &from_at, &to, &axes], []), shape)
            }
            12 | 13 => {
                let right = self.random.below(4) + 1;
                let w = self.weight(&[*from.shape.last().unwrap(), right]);
                let mut shape = from.shape.clone();
                if rank < 2 {
                    return;
                }
                shape[rank - 1] = right;
                (self.graph.add_node("MatMul", &[x, &w], []), shape)
            }
            14 => {
                let mut shape = from.shape.clone();
                for size in &mut shape {
                    *size = if self.random.below(2) == 0 { 1 } else { *size };
                }
                let skip = self.random.below(rank);
                let w = self.weight(&shape[skip..]);
                (self.graph.add_node("Add", &[x, &w], []), from.shape.clone())
            }
            15 | 16 => {
                let Some((other, shape)) = self.partner(&from) else { return };
                let name = self.random.pick(&["Add", "Mul", "Max"]);
                (self.graph.add_node(name, &[x, &other], []), shape)
            }
            17 => {
                let fits = |other: &&Made| {
                    let mut a = other.shape.clone();
                    a.len() == rank && {
                        a[axis] = size;
                        a == from.shape
                    }
                };
                let others: Vec<Made> = self.values.iter().filter(fits).cloned().collect();
                let other = self.random.pick(&others);
                let mut shape = from.shape.clone();
                shape[axis] += other.shape[axis];
                (self.graph.add_node("Concat", &[x, &other.name], attribute), shape)
            }
            18 => {
                let picked: Vec<i64> = (0..2).map(|_| self.random.below(size) as i64).collect();
                let indices = self.integers(picked);
                let mut shape = from.shape.clone();
                shape[axis] = 2;
                (self.graph.add_node("Gather", &[x, &indices], attribute), shape)
            }
            _ => {
                let at = self.integers(vec![axis as i64]);
                let none = self.integers(Vec::new());
                let at = self.graph.add_node("Reshape", &[&at, &none], []);
                (self.graph.add_node("CumSum", &[x, &at], []), from.shape.clone())
            }
        };
        if shape.is_empty() || shape.len() > 5 || shape.iter().product::<usize>() > 4_000 {
            return;
        }
        self.values.push(Made { name, shape });
    }

    /// Other dimensions for the same elements, as `Reshape` takes them.
    fn other_shape(&mut self, shape: &[usize]) -> Option<(Vec<i64>, Vec<usize>)> {
        let mut shape = shape.to_vec();
        for _ in 0..=self.random.below(2) {
            let at = self.random.below(shape.len());
            if self.random.below(2) == 0 && at + 1 < shape.len() {
                let joined = shape.remove(at + 1);
                shape[at] *= joined;
            } else {
                let divisors: Vec<usize> =
                    (1..=shape[at]).filter(|by| shape[at].is_multiple_of(*by)).collect();
                let by = self.random.pick(&divisors);
                let rest = shape[at] / by;
                shape[at] = by;
                shape.insert(at + 1, rest);
            }
        }
        let mut wanted: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        if self.random.below(4) > 0 {
            let place = self.random.below(wanted.len());
            wanted[place] = -1;
        }
        Some((wanted, shape))
    }

    /// Another value that this one can be broadcast with.
    fn partner(&mut self, first: &Made) -> Option<(String, Vec<usize>)> {
        let broadcast = |other: &Made| {
            let rank = first.shape.len().max(other.shape.len());
            let size = |made: &Made, from_end: usize| {
                made.shape.len().checked_sub(from_end).map_or(1, |axis| made.shape[axis])
            };
            let sizes = (1..=rank).rev().map(|from_end| {
                match (size(first, from_end), size(other, from_end)) {
                    (1, size) | (size, 1) => Some(size),
                    (a, b) => (a == b).then_some(a),
                }
            });
            sizes.collect::<Option<Vec<usize>>>()
        };
        let fits: Vec<(String, Vec<usize>)> = self
            .values
            .iter()
            .filter_map(|other| Some((other.name.clone(), broadcast(other)?)))
            .collect();
        Some(self.random.pick(&fits))
    }
}

fn random_model(seed: u64) -> (ModelProto, Vec<usize>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let rest: Vec<usize> = (0..=random.below(3)).map(|_| random.below(5) + 1).collect();
    let mut graph = GraphBuilder::new("random");
    let open = std::iter::once(Dim::Symbol("batch".to_owned()));
    let dims: Vec<Dim> = open.chain(rest.iter().copied().map(Dim::Fixed)).collect();
    let name = graph.add_input("x", DType::F32, dims);
    let shape: Vec<usize> = std::iter::once(ROWS).chain(rest.iter().copied()).collect();
    let nodes = random.below(6) + 2;
    let mut maker = Maker { random, graph, values: vec![Made { name, shape }] };
    while maker.values.len() <= nodes {
        maker.add_value();
    }
    let Maker { mut graph, values, .. } = maker;
    graph.add_output_of_any_shape(&values.last().unwrap().name, DType::F32);
    (graph.build_model(), rest)
}

fn read(model: ModelProto) -> Graph {
    onnx::read::from_proto(model, &mut NoExternalData).unwrap()
}

/// What the graph gives for these rows.
fn run(graph: &Graph, rows: &[Vec<f32>], rest: &[usize]) -> Result<(Vec<usize>, Vec<f64>), String> {
    let program = program_of(graph);
    let mut session = Rten::new().load_program(&program, &LoadOptions::default()).unwrap();
    let shape: Vec<usize> = std::iter::once(rows.len()).chain(rest.iter().copied()).collect();
    let input = Tensor::from_f32(&shape, &rows.concat()).unwrap();
    let outputs = session.run_inference(&[input], vec![None]).map_err(|error| error.to_string())?;
    Ok((outputs[0].shape().to_vec(), outputs[0].to_f64().unwrap()))
}

/// Whether row by row is the same as together.
fn are_rows_alike(graph: &Graph, rest: &[usize], random: &mut Random) -> Result<(), String> {
    let size = rest.iter().product();
    let rows: Vec<Vec<f32>> =
        (0..ROWS).map(|_| (0..size).map(|_| random.number()).collect()).collect();
    let (shape, together) = run(graph, &rows, rest)?;
    if shape.first() != Some(&ROWS) {
        return Err(format!("{shape:?} has no {ROWS} rows"));
    }
    let each = together.len() / ROWS;
    for (row, expected) in rows.iter().zip(together.chunks(each.max(1))) {
        let (shape, alone) = run(graph, std::slice::from_ref(row), rest)?;
        if shape.first() != Some(&1) || alone.len() != expected.len() {
            return Err(format!("a row alone is {shape:?}"));
        }
        for (alone, together) in alone.iter().zip(expected) {
            let is_alike = (alone - together).abs() <= 1e-4 + 1e-3 * together.abs()
                || alone.is_nan() && together.is_nan();
            if !is_alike {
                return Err(format!("{alone} alone is {together} together"));
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_proved_independent_is() {
    let (mut proved, mut certain, mut differing) = (0, 0, 0);
    for seed in 0..GRAPHS {
        let (model, rest) = random_model(seed);
        let graph = read(model);
        let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
        let proof = prove_rows(&graph, &types);
        let mut random = Random(seed);
        match proof.obstacle() {
            None => {
                proved += 1;
                for _ in 0..3 {
                    if let Err(error) = are_rows_alike(&graph, &rest, &mut random) {
                        let nodes: Vec<String> =
                            graph.nodes().iter().map(|node| node.label()).collect();
                        panic!("seed {seed}, input rows {rest:?}: {error}; {nodes:?}");
                    }
                }
            }
            Some(obstacle) if obstacle.is_certain => {
                certain += 1;
                differing += u64::from(are_rows_alike(&graph, &rest, &mut random).is_err());
            }
            Some(_) => {}
        }
    }
    println!(
        "{proved} of {GRAPHS} proved; {differing} of {certain} with a certain obstacle differ"
    );
    // The proof is worth something, and so are its obstacles.
    assert!(proved * 5 > GRAPHS, "{proved} of {GRAPHS} were proved");
    assert!(differing * 2 > certain, "{differing} of {certain} differ");
}
