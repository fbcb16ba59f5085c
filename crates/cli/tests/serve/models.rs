//! Small models to serve.

use tessera_core::{DType, Dim};
use tessera_graph::builder::{GraphBuilder, int_attribute, ints_attribute};
use tessera_graph::onnx::ModelProto;

/// Elements of a row; a weight of this size squared has a file of its own.
pub(crate) const WIDTH: usize = 64;

/// Numbers that look random, from -0.5 to 0.5.
pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + seed * 104_729) % 1021) as f32 / 1021.0 - 0.5).collect()
}

/// A row to ask with.
pub(crate) fn row(seed: usize) -> Vec<f32> {
    numbers(WIDTH, seed)
}

fn batch() -> Dim {
    Dim::Symbol("batch".to_owned())
}

fn rows_of(width: usize) -> [Dim; 2] {
    [batch(), Dim::Fixed(width)]
}

fn square(graph: &mut GraphBuilder, seed: usize) -> String {
    let values = numbers(WIDTH * WIDTH, seed).into_iter().map(|value| value / 2.0).collect();
    graph.add_weight("w", &[WIDTH, WIDTH], values)
}

/// `y` is `x` after a layer for each seed; layers of the same seed are the same.
pub(crate) fn layers(seeds: &[usize]) -> ModelProto {
    let mut graph = GraphBuilder::new("layers");
    let mut value = graph.add_input("x", DType::F32, rows_of(WIDTH));
    for (number, &seed) in seeds.iter().enumerate() {
        let w = square(&mut graph, seed);
        let product = graph.add_node("MatMul", &[&value, &w], []);
        let is_last = number + 1 == seeds.len();
        value = if is_last { "y".to_owned() } else { format!("hidden{number}") };
        graph.add_node_into(&format!("tanh{number}"), "Tanh", &[&product], &[&value], []);
    }
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    graph.build_model()
}

/// `y = x · w` with a weight of 4 MiB.
pub(crate) fn wide() -> ModelProto {
    let mut graph = GraphBuilder::new("wide");
    let x = graph.add_input("x", DType::F32, rows_of(1024));
    let w = graph.add_weight("w", &[1024, 1024], numbers(1 << 20, 1));
    graph.add_node_into("product", "MatMul", &[&x, &w], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(1024));
    graph.build_model()
}

/// What it computes.
pub(crate) fn wide_output(row: &[f32]) -> Vec<f64> {
    let weight = numbers(1 << 20, 1);
    let column = |column: usize| {
        let products = row.iter().zip(weight[column..].iter().step_by(1024));
        products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    (0..1024).map(column).collect()
}

/// `y = x · w`.
pub(crate) fn product(seed: usize) -> ModelProto {
    let mut graph = GraphBuilder::new("product");
    let x = graph.add_input("x", DType::F32, rows_of(WIDTH));
    let w = square(&mut graph, seed);
    graph.add_node_into("product", "MatMul", &[&x, &w], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    graph.build_model()
}

/// `y` is `x · w` times `scale`, times `scale` again after another product; left out, `scale` is 2.
pub(crate) fn scaled() -> ModelProto {
    let mut graph = GraphBuilder::new("scaled");
    let x = graph.add_input("x", DType::F32, rows_of(WIDTH));
    let scale = graph.add_weight("scale", &[1, 1], vec![2.0]);
    let mut value = x;
    for (number, output) in ["hidden", "y"].into_iter().enumerate() {
        let w = square(&mut graph, number);
        let product = graph.add_node("MatMul", &[&value, &w], []);
        graph.add_node_into(&format!("times{number}"), "Mul", &[&product, &scale], &[output], []);
        value = output.to_owned();
    }
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    let mut model = graph.build_model();
    model.ir_version = Some(8);
    if let Some(graph) = &mut model.graph {
        let mut also = graph.input[0].clone();
        also.name = Some(scale);
        graph.input.push(also);
    }
    model
}

/// `y = a - b`.
pub(crate) fn difference() -> ModelProto {
    let mut graph = GraphBuilder::new("difference");
    let a = graph.add_input("a", DType::F32, rows_of(WIDTH));
    let b = graph.add_input("b", DType::F32, rows_of(WIDTH));
    graph.add_node_into("difference", "Sub", &[&a, &b], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    graph.build_model()
}

/// The difference of the products with `left` and `right` of the product with `stem`.
pub(crate) fn fork(stem: usize, left: usize, right: usize) -> ModelProto {
    let mut graph = GraphBuilder::new("fork");
    let x = graph.add_input("x", DType::F32, rows_of(WIDTH));
    let [stem, left, right] = [stem, left, right].map(|seed| square(&mut graph, seed));
    let trunk = graph.add_node("MatMul", &[&x, &stem], []);
    let left = graph.add_node("MatMul", &[&trunk, &left], []);
    let right = graph.add_node("MatMul", &[&trunk, &right], []);
    graph.add_node_into("difference", "Sub", &[&left, &right], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    graph.build_model()
}

/// Two inputs `a` and `b`, and two outputs `sum` and `product`.
pub(crate) fn several() -> ModelProto {
    let mut graph = GraphBuilder::new("several");
    let a = graph.add_input("a", DType::F32, [1, 8]);
    let b = graph.add_input("b", DType::F32, [1, 8]);
    graph.add_node_into("sum", "Add", &[&a, &b], &["sum"], []);
    graph.add_node_into("product", "Mul", &[&a, &b], &["product"], []);
    graph.add_typed_output("sum", DType::F32, [1, 8]);
    graph.add_typed_output("product", DType::F32, [1, 8]);
    graph.build_model()
}

/// `y = relu(x)` with seven elements in a row, which fits none of the others.
pub(crate) fn narrow() -> ModelProto {
    let mut graph = GraphBuilder::new("narrow");
    let x = graph.add_input("x", DType::F32, rows_of(7));
    graph.add_node_into("relu", "Relu", &[&x], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(7));
    graph.build_model()
}

/// `y[i, j] = a[i] · b[j]`: the first dimension is not that of a batch.
pub(crate) fn every_pair() -> ModelProto {
    let mut graph = GraphBuilder::new("every pair");
    let others = || Dim::Symbol("others".to_owned());
    let a = graph.add_input("a", DType::F32, [batch(), Dim::Fixed(4)]);
    let b = graph.add_input("b", DType::F32, [others(), Dim::Fixed(4)]);
    let turned = graph.add_node("Transpose", &[&b], [ints_attribute("perm", &[1, 0])]);
    graph.add_node_into("pairs", "MatMul", &[&a, &turned], &["y"], []);
    graph.add_typed_output("y", DType::F32, [batch(), others()]);
    graph.build_model()
}

/// Its only output, apart from the exit `early`, whose scores are the first four elements of a row.
pub(crate) const LATE: &str = "late";
/// Four classes of which the first is as good as certain.
pub(crate) const CERTAIN: [f32; 8] = [50.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
/// Four classes of which none is likelier than another.
pub(crate) const UNCERTAIN: [f32; 8] = [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0];

/// A model with an exit that is certain where its input says so.
pub(crate) fn with_exit() -> ModelProto {
    let mut graph = GraphBuilder::new("exit");
    let x = graph.add_input("x", DType::F32, rows_of(8));
    let hidden = graph.add_node("Relu", &[&x], []);
    let mut pick = vec![0.0; 8 * 4];
    for class in 0..4 {
        pick[class * 4 + class] = 1.0;
    }
    let pick = graph.add_weight("pick", &[8, 4], pick);
    graph.add_node_into("early", "MatMul", &[&hidden, &pick], &["early"], []);
    let w = graph.add_weight("w", &[8, 4], numbers(8 * 4, 3));
    let product = graph.add_node("MatMul", &[&hidden, &w], []);
    graph.add_node_into("late", "Tanh", &[&product], &[LATE], []);
    graph.add_typed_output(LATE, DType::F32, rows_of(4));
    graph.add_typed_output("early", DType::F32, rows_of(4));
    graph.build_model()
}

/// Elements of the input of [`slow`].
pub(crate) const SLOW_WIDTH: usize = 512;

/// A model whose one row takes tens of milliseconds.
pub(crate) fn slow() -> ModelProto {
    let mut graph = GraphBuilder::new("slow");
    let x = graph.add_input("x", DType::F32, [1, SLOW_WIDTH]);
    let square = [SLOW_WIDTH, SLOW_WIDTH];
    let ground = graph.add_weight("ground", &square, numbers(SLOW_WIDTH * SLOW_WIDTH, 1));
    let mut value = graph.add_node("Add", &[&ground, &x], []);
    for seed in 0..6 {
        let scaled = numbers(SLOW_WIDTH * SLOW_WIDTH, seed).into_iter().map(|value| value / 8.0);
        let w = graph.add_weight("w", &square, scaled.collect());
        let product = graph.add_node("MatMul", &[&value, &w], []);
        value = graph.add_node("Tanh", &[&product], []);
    }
    let attributes = [ints_attribute("axes", &[0]), int_attribute("keepdims", 1)];
    graph.add_node_into("mean", "ReduceMean", &[&value], &["y"], attributes);
    graph.add_typed_output("y", DType::F32, [1, SLOW_WIDTH]);
    graph.build_model()
}

/// `y = x · w`, times more the higher the highest element of all rows is above 5: for small values
/// rows have no influence on each other, and for others they have.
pub(crate) fn gated_by_the_batch() -> ModelProto {
    let mut graph = GraphBuilder::new("gated");
    let x = graph.add_input("x", DType::F32, rows_of(WIDTH));
    let w = square(&mut graph, 1);
    let product = graph.add_node("MatMul", &[&x, &w], []);
    let highest = graph.add_named_node("highest", "ReduceMax", &[&x], []);
    let limit = graph.add_weight("limit", &[1], vec![5.0]);
    let beyond = graph.add_node("Sub", &[&highest, &limit], []);
    let gate = graph.add_node("Relu", &[&beyond], []);
    let more = graph.add_node("Exp", &[&gate], []);
    graph.add_node_into("gated", "Mul", &[&product, &more], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(WIDTH));
    graph.build_model()
}

/// `y` is each of the elements of `x` with the mean of all taken away: its one open dimension is no
/// batch.
pub(crate) fn centred_sound() -> ModelProto {
    let mut graph = GraphBuilder::new("sound");
    let x = graph.add_input("x", DType::F32, [Dim::Symbol("samples".to_owned()), Dim::Fixed(1)]);
    let mean = graph.add_node("ReduceMean", &[&x], [ints_attribute("axes", &[0])]);
    graph.add_node_into("centred", "Sub", &[&x, &mean], &["y"], []);
    graph.add_output_of_any_shape("y", DType::F32);
    graph.build_model()
}
