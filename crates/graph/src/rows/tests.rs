use tessera_core::{DType, Dim};

use super::*;
use crate::builder::{GraphBuilder, int_attribute, ints_attribute};
use crate::infer::testing::{graph_of, symbol, types_of};

/// What is proved of a graph with one input `f32[batch, …]` and one output.
fn prove(dims: &[usize], build: impl FnOnce(&mut GraphBuilder, &str) -> String) -> RowProof {
    let mut builder = GraphBuilder::new("test");
    let open = std::iter::once(symbol("batch")).chain(dims.iter().copied().map(Dim::Fixed));
    let input = builder.add_input("x", DType::F32, open.collect::<Vec<_>>());
    let output = build(&mut builder, &input);
    builder.add_output(&output);
    let graph = graph_of(builder);
    prove_rows(&graph, &types_of(&graph))
}

#[track_caller]
fn assert_independent(dims: &[usize], build: impl FnOnce(&mut GraphBuilder, &str) -> String) {
    let proof = prove(dims, build);
    assert_eq!(proof.obstacle().map(ToString::to_string), None);
}

#[track_caller]
fn assert_obstacle(
    dims: &[usize],
    expected: &str,
    build: impl FnOnce(&mut GraphBuilder, &str) -> String,
) {
    let proof = prove(dims, build);
    let found = proof.obstacle().map(ToString::to_string).unwrap_or_default();
    assert!(found.contains(expected), "{found:?} does not have {expected:?}");
}

fn weight(graph: &mut GraphBuilder, dims: &[usize]) -> String {
    let count = dims.iter().product();
    graph.add_weight("w", dims, vec![0.5; count])
}

#[test]
fn a_classifier_keeps_its_rows_apart() {
    assert_independent(&[3, 8, 8], |graph, x| {
        let w = weight(graph, &[4, 3, 3, 3]);
        let conv = graph.add_node("Conv", &[x, &w], []);
        let relu = graph.add_node("Relu", &[&conv], []);
        let pooled = graph.add_node("GlobalAveragePool", &[&relu], []);
        let flat = graph.add_node("Flatten", &[&pooled], []);
        let (w, b) = (weight(graph, &[4, 10]), weight(graph, &[10]));
        let scores = graph.add_node("Gemm", &[&flat, &w, &b], []);
        graph.add_node("Softmax", &[&scores], [int_attribute("axis", -1)])
    });
}

#[test]
fn a_gate_over_the_batch_is_an_obstacle() {
    assert_obstacle(&[4], "(ReduceMax) joins all rows", |graph, x| {
        let highest = graph.add_node("ReduceMax", &[x], [ints_attribute("axes", &[0])]);
        graph.add_node("Mul", &[x, &highest], [])
    });
    assert_obstacle(&[4], "(Softmax) joins all rows", |graph, x| {
        graph.add_node("Softmax", &[x], [int_attribute("axis", 0)])
    });
    assert_obstacle(&[4], "(MeanVarianceNormalization) joins all rows", |graph, x| {
        graph.add_node("MeanVarianceNormalization", &[x], [ints_attribute("axes", &[0])])
    });
}

#[test]
fn a_scale_for_the_whole_batch_is_an_obstacle() {
    assert_obstacle(&[4], "one scale for all rows", |graph, x| {
        let parts = graph.add_node_with_outputs("DynamicQuantizeLinear", &[x], 3, []);
        graph.add_node("DequantizeLinear", &[&parts[0], &parts[1], &parts[2]], [])
    });
}

#[test]
fn the_number_of_rows_is_an_obstacle_where_it_is_computed_with() {
    assert_obstacle(&[4], "computes with the number of rows", |graph, x| {
        let shape = graph.add_node("Shape", &[x], []);
        let zero = graph.add_i64_weight("zero", &[], vec![0]);
        let rows = graph.add_node("Gather", &[&shape, &zero], []);
        let rows = graph.add_node("Cast", &[&rows], [int_attribute("to", 1)]);
        graph.add_node("Div", &[x, &rows], [])
    });
    // Another size is the same for all.
    assert_independent(&[4], |graph, x| {
        let shape = graph.add_node("Shape", &[x], []);
        let one = graph.add_i64_weight("one", &[], vec![1]);
        let size = graph.add_node("Gather", &[&shape, &one], []);
        let size = graph.add_node("Cast", &[&size], [int_attribute("to", 1)]);
        let root = graph.add_node("Sqrt", &[&size], []);
        graph.add_node("Div", &[x, &root], [])
    });
}

#[test]
fn constants_for_some_number_of_rows_are_an_obstacle() {
    assert_obstacle(&[4], "constants for some number of rows", |graph, x| {
        let w = weight(graph, &[3, 4]);
        graph.add_node("Add", &[x, &w], [])
    });
    assert_independent(&[4], |graph, x| {
        let w = weight(graph, &[1, 4]);
        graph.add_node("Add", &[x, &w], [])
    });
    // Rows against columns: as many as there are rows, by chance.
    assert_obstacle(&[4], "", |graph, x| {
        let sums = graph.add_node("ReduceSum", &[x], [ints_attribute("axes", &[1])]);
        let flat = graph.add_i64_weight("flat", &[1], vec![-1]);
        let flat = graph.add_node("Reshape", &[&sums, &flat], []);
        graph.add_node("Add", &[x, &flat], [])
    });
}

#[test]
fn heads_of_attention_may_be_joined_with_the_batch_and_come_apart_again() {
    assert_independent(&[6, 8], |graph, x| {
        let shape = |graph: &mut GraphBuilder, dims: &[i64]| {
            graph.add_i64_weight("shape", &[dims.len()], dims.to_vec())
        };
        let apart = shape(graph, &[0, 6, 2, 4]);
        let apart = graph.add_node("Reshape", &[x, &apart], []);
        let turned =
            graph.add_node("Transpose", &[&apart], [ints_attribute("perm", &[0, 2, 1, 3])]);
        let joined = shape(graph, &[-1, 6, 4]);
        let joined = graph.add_node("Reshape", &[&turned, &joined], []);
        let keys = graph.add_node("Transpose", &[&joined], [ints_attribute("perm", &[0, 2, 1])]);
        let scores = graph.add_node("MatMul", &[&joined, &keys], []);
        let weights = graph.add_node("Softmax", &[&scores], [int_attribute("axis", -1)]);
        let mixed = graph.add_node("MatMul", &[&weights, &joined], []);
        let back = shape(graph, &[-1, 2, 6, 4]);
        let back = graph.add_node("Reshape", &[&mixed, &back], []);
        let back = graph.add_node("Transpose", &[&back], [ints_attribute("perm", &[0, 2, 1, 3])]);
        let flat = shape(graph, &[0, 6, 8]);
        graph.add_node("Reshape", &[&back, &flat], [])
    });
}

#[test]
fn rows_may_be_in_another_dimension_for_a_while() {
    assert_independent(&[6, 8], |graph, x| {
        let turned = graph.add_node("Transpose", &[x], [ints_attribute("perm", &[1, 0, 2])]);
        // Time and rows in one dimension, as torch does for a linear layer.
        let flat = graph.add_i64_weight("flat", &[2], vec![-1, 8]);
        let flat = graph.add_node("Reshape", &[&turned, &flat], []);
        let w = weight(graph, &[8, 8]);
        let product = graph.add_node("MatMul", &[&flat, &w], []);
        let back = graph.add_i64_weight("back", &[3], vec![6, -1, 8]);
        let back = graph.add_node("Reshape", &[&product, &back], []);
        graph.add_node("Transpose", &[&back], [ints_attribute("perm", &[1, 0, 2])])
    });
    assert_obstacle(&[6, 8], "another dimension than the first", |graph, x| {
        graph.add_node("Transpose", &[x], [ints_attribute("perm", &[1, 0, 2])])
    });
}

#[test]
fn a_reshape_that_puts_rows_elsewhere_is_an_obstacle() {
    // The rows become the second dimension, and what is in them is torn apart.
    assert_obstacle(&[6], "(Reshape)", |graph, x| {
        let shape = graph.add_i64_weight("shape", &[2], vec![6, -1]);
        graph.add_node("Reshape", &[x, &shape], [])
    });
    assert_obstacle(&[6], "another dimension", |graph, x| {
        let shape = graph.add_i64_weight("shape", &[2], vec![1, -1]);
        graph.add_node("Reshape", &[x, &shape], [])
    });
    // Half a row each: two entries for each row, which is no row each.
    assert_obstacle(&[6], "another dimension", |graph, x| {
        let shape = graph.add_i64_weight("shape", &[2], vec![-1, 3]);
        graph.add_node("Reshape", &[x, &shape], [])
    });
}

#[test]
fn a_token_that_is_repeated_for_each_row_is_part_of_it() {
    assert_independent(&[6, 8], |graph, x| {
        let token = weight(graph, &[1, 1, 8]);
        let shape = graph.add_node("Shape", &[x], []);
        let zero = graph.add_i64_weight("zero", &[1], vec![0]);
        let rows = graph.add_node("Gather", &[&shape, &zero], []);
        let wanted = graph.add_i64_weight("one", &[2], vec![1, 8]);
        let shape = graph.add_node("Concat", &[&rows, &wanted], [int_attribute("axis", 0)]);
        let tokens = graph.add_node("Expand", &[&token, &shape], []);
        graph.add_node("Concat", &[&tokens, x], [int_attribute("axis", 1)])
    });
    assert_obstacle(&[6, 8], "(Concat) puts rows one after the other", |graph, x| {
        graph.add_node("Concat", &[x, x], [int_attribute("axis", 0)])
    });
}

#[test]
fn words_are_looked_up_row_by_row() {
    let mut builder = GraphBuilder::new("words");
    let dims = [symbol("batch"), symbol("length")];
    let ids = builder.add_input("ids", DType::I64, dims);
    let table = builder.add_weight("table", &[5, 3], vec![0.0; 15]);
    let words = builder.add_node("Gather", &[&table, &ids], []);
    builder.add_output(&words);
    let graph = graph_of(builder);
    assert_eq!(prove_rows(&graph, &types_of(&graph)).obstacle(), None);
}

#[test]
fn what_picks_rows_is_an_obstacle() {
    assert_obstacle(&[4], "(Gather) picks rows", |graph, x| {
        let first = graph.add_i64_weight("first", &[1], vec![0]);
        graph.add_node("Gather", &[x, &first], [])
    });
    assert_obstacle(&[4], "(Slice) picks rows", |graph, x| {
        let [from, to, axes] = [0, 1, 0].map(|at| graph.add_i64_weight("at", &[1], vec![at]));
        graph.add_node("Slice", &[x, &from, &to, &axes], [])
    });
    assert_obstacle(&[4], "(CumSum) joins all rows", |graph, x| {
        let axis = graph.add_i64_weight("axis", &[], vec![0]);
        graph.add_node("CumSum", &[x, &axis], [])
    });
}

#[test]
fn a_sound_has_no_rows() {
    let mut builder = GraphBuilder::new("sound");
    let sound = builder.add_input("sound", DType::F32, [symbol("samples")]);
    let axes = builder.add_i64_weight("axes", &[2], vec![0, 1]);
    let image = builder.add_node("Unsqueeze", &[&sound, &axes], []);
    let w = builder.add_weight("w", &[2, 1, 3], vec![0.5; 6]);
    let heard = builder.add_node("Conv", &[&image, &w], []);
    builder.add_output(&heard);
    let graph = graph_of(builder);
    let proof = prove_rows(&graph, &types_of(&graph));
    let obstacle = proof.obstacle().unwrap();
    assert!(obstacle.is_certain && obstacle.to_string().contains("(Conv)"), "{obstacle}");
}

#[test]
fn a_recurrent_layer_keeps_rows_apart_and_not_times() {
    let recurrent = |graph: &mut GraphBuilder, x: &str| {
        let (w, r) = (weight(graph, &[1, 20, 8]), weight(graph, &[1, 20, 5]));
        let made =
            graph.add_node_with_outputs("LSTM", &[x, &w, &r], 2, [int_attribute("hidden_size", 5)]);
        made[1].clone()
    };
    assert_independent(&[6, 8], |graph, x| {
        let turned = graph.add_node("Transpose", &[x], [ints_attribute("perm", &[1, 0, 2])]);
        let last = recurrent(graph, &turned);
        let axes = graph.add_i64_weight("axes", &[1], vec![0]);
        graph.add_node("Squeeze", &[&last, &axes], [])
    });
    assert_obstacle(&[6, 8], "(LSTM) goes through the rows", |graph, x| recurrent(graph, x));
}

#[test]
fn what_has_no_rule_is_not_known() {
    let proof = prove(&[4], |graph, x| graph.add_node("NonZero", &[x], []));
    assert!(!proof.obstacle().unwrap().is_certain);
}

#[test]
fn names_of_dimensions_are_not_believed() {
    // Both are called alike, and need not be: what is transposed is not what it was.
    let mut builder = GraphBuilder::new("names");
    let x = builder.add_input("x", DType::F32, [symbol("?"), symbol("?")]);
    let turned = builder.add_node("Transpose", &[&x], []);
    let sum = builder.add_node("Add", &[&x, &turned], []);
    builder.add_output(&sum);
    let graph = graph_of(builder);
    assert!(prove_rows(&graph, &types_of(&graph)).obstacle().is_some());
}

#[test]
fn a_row_may_look_up_its_own_elements_by_its_number() {
    // As exporters write a mask: row number times length plus place, into all rows in one.
    let look_up = |graph: &mut GraphBuilder, x: &str, stride: i64, places: Vec<i64>| {
        let shape = graph.add_node("Shape", &[x], []);
        let zero = graph.add_i64_weight("zero", &[], vec![0]);
        let rows = graph.add_node("Gather", &[&shape, &zero], []);
        let one = graph.add_i64_weight("one", &[], vec![1]);
        let numbers = graph.add_node("Range", &[&zero, &rows, &one], []);
        let axes = graph.add_i64_weight("axes", &[1], vec![1]);
        let numbers = graph.add_node("Unsqueeze", &[&numbers, &axes], []);
        let stride = graph.add_i64_weight("stride", &[], vec![stride]);
        let starts = graph.add_node("Mul", &[&numbers, &stride], []);
        let places = graph.add_i64_weight("places", &[1, places.len()], places);
        let indices = graph.add_node("Add", &[&starts, &places], []);
        let flat = graph.add_i64_weight("flat", &[1], vec![-1]);
        let flat = graph.add_node("Reshape", &[x, &flat], []);
        graph.add_node("Gather", &[&flat, &indices], [])
    };
    assert_independent(&[6], |graph, x| look_up(graph, x, 6, vec![0, 5, 2]));
    // One place too far is the next row.
    let across = "may be in other rows";
    assert_obstacle(&[6], across, |graph, x| look_up(graph, x, 6, vec![0, 6]));
    assert_obstacle(&[6], across, |graph, x| look_up(graph, x, 6, vec![-1, 0]));
    assert_obstacle(&[6], across, |graph, x| look_up(graph, x, 5, vec![0, 4]));
    assert_obstacle(&[6], "numbers of rows", |graph, x| {
        let found = look_up(graph, x, 6, vec![0]);
        let shape = graph.add_node("Shape", &[x], []);
        let [zero, one] = [0, 1].map(|number| graph.add_i64_weight("n", &[], vec![number]));
        let rows = graph.add_node("Gather", &[&shape, &zero], []);
        let numbers = graph.add_node("Range", &[&zero, &rows, &one], []);
        let numbers = graph.add_node("Cast", &[&numbers], [int_attribute("to", 1)]);
        let axes = graph.add_i64_weight("axes", &[1], vec![1]);
        let numbers = graph.add_node("Unsqueeze", &[&numbers, &axes], []);
        graph.add_node("Add", &[&found, &numbers], [])
    });
}

#[test]
fn sizes_that_follow_from_the_rows_are_not_the_same_for_all() {
    let size_of = |graph: &mut GraphBuilder, value: &str, axis: i64| {
        let shape = graph.add_node("Shape", &[value], []);
        let axis = graph.add_i64_weight("axis", &[], vec![axis]);
        let size = graph.add_node("Gather", &[&shape, &axis], []);
        graph.add_node("Cast", &[&size], [int_attribute("to", 1)])
    };
    // Of rows that are joined with something.
    assert_obstacle(&[6], "number of rows", |graph, x| {
        let halves = graph.add_i64_weight("halves", &[2], vec![-1, 3]);
        let halves = graph.add_node("Reshape", &[x, &halves], []);
        let size = size_of(graph, &halves, 0);
        graph.add_node("Div", &[x, &size], [])
    });
    // Of what all rows together have.
    assert_obstacle(&[6], "number of rows", |graph, x| {
        let places = graph.add_node("NonZero", &[x], []);
        let size = size_of(graph, &places, 1);
        graph.add_node("Div", &[x, &size], [])
    });
}
