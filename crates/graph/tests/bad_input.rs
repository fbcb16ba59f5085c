//! Bad files of every kind: one line that names the thing at fault, and never a panic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use common::{assert_says, call, calling, function, graph_mut, node, one_line, refusal};
use prost::Message;
use tessera_core::{DType, Error, ErrorKind};
use tessera_graph::builder::{GraphBuilder, f32_tensor, i64_tensor, int_attribute};
use tessera_graph::infer::infer_types;
use tessera_graph::onnx::{
    ModelProto, NodeProto, SparseTensorProto, StringStringEntryProto, TensorProto, tensor_proto,
};
use tessera_graph::{
    ExternalData, NoExternalData, Split, block_cost, cut_points, read_model, split_into_chain,
};

/// `x → a → y`, with a weight `w`.
fn valid() -> ModelProto {
    let nodes = vec![node("Add", &["x", "w"], &["a"]), node("Relu", &["a"], &["y"])];
    let mut model = calling(nodes, vec![]);
    graph_mut(&mut model).initializer.push(f32_tensor("w", &[4], &[0.5; 4]));
    model
}

/// The valid model after a change to its nodes.
fn with_nodes(change: impl FnOnce(&mut Vec<NodeProto>)) -> ModelProto {
    let mut model = valid();
    change(&mut graph_mut(&mut model).node);
    model
}

/// The valid model after a change to its weight.
fn with_weight(change: impl FnOnce(&mut TensorProto)) -> ModelProto {
    let mut model = valid();
    change(&mut graph_mut(&mut model).initializer[0]);
    model
}

/// Runs everything that a file can go through; what it says must be one line each.
fn go_through(file: Bytes) {
    let say = |error: Error| one_line(&error);
    let graph = match read_model(file, &mut NoExternalData) {
        Ok(graph) => graph,
        Err(error) => {
            say(error);
            return;
        }
    };
    let types = infer_types(&graph, &BTreeMap::new()).unwrap();
    if let Err(error) = cut_points(&graph, &types, &[]) {
        say(error);
    }
    for how in [Split::Every, Split::Blocks(2)] {
        match split_into_chain(&graph, &types, &how, &[]) {
            Ok(made) => (0..made.graph.blocks.len()).for_each(|block| {
                block_cost(&graph, &types, &made, block);
            }),
            Err(error) => {
                say(error);
            }
        }
    }
}

#[test]
fn an_empty_file_is_named_as_such() {
    let error = read_model(Bytes::new(), &mut NoExternalData).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_says(&one_line(&error), &["empty", "ONNX"]);
}

#[test]
fn a_file_that_is_cut_short_anywhere_does_no_harm() {
    let file = Bytes::from(valid().encode_to_vec());
    for end in 0..file.len() {
        go_through(file.slice(..end));
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..3000 {
        let length = next() % 80;
        let file: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        go_through(file.into());
    }
}

#[test]
fn text_is_no_model() {
    let error = read_model(Bytes::from_static(b"<html>\nnot found\n"), &mut NoExternalData);
    assert_says(&one_line(&error.unwrap_err()), &["not an ONNX model"]);
}

#[test]
fn a_graph_that_breaks_the_rules_is_refused_by_name() {
    let without_graph = ModelProto { graph: None, ..valid() };
    let mut without_opset = valid();
    without_opset.opset_import.clear();
    let mut zero_opset = valid();
    zero_opset.opset_import[0].version = Some(0);
    let mut twice_out = valid();
    let output = graph_mut(&mut twice_out).output[0].clone();
    graph_mut(&mut twice_out).output.push(output);
    let mut twice_weight = valid();
    graph_mut(&mut twice_weight).initializer.push(f32_tensor("w", &[1], &[1.0]));
    let mut no_outputs = valid();
    graph_mut(&mut no_outputs).output.clear();
    let mut untyped = valid();
    graph_mut(&mut untyped).input[0].r#type = None;
    let cases: Vec<(ModelProto, &[&str])> = vec![
        (without_graph, &["no graph"]),
        (with_nodes(|nodes| nodes[0].input[1] = "y".to_owned()), &["cycle", "make a", "make y"]),
        (with_nodes(|nodes| nodes[1].input[0] = "y".to_owned()), &["cycle", "make y", "Relu"]),
        (
            with_nodes(|nodes| nodes[1].input[0] = "ghost".to_owned()),
            &["\"ghost\"", "make y", "not defined"],
        ),
        (
            with_nodes(|nodes| nodes.push(node("Neg", &["x"], &["a"]))),
            &["tensor \"a\"", "twice", "Add", "Neg"],
        ),
        (
            with_nodes(|nodes| nodes.push(node("Neg", &["a"], &["x"]))),
            &["tensor \"x\"", "twice", "an input", "Neg"],
        ),
        (twice_weight, &["tensor \"w\"", "twice", "initialiser"]),
        (twice_out, &["output \"y\"", "twice"]),
        (no_outputs, &["no outputs"]),
        (untyped, &["input \"x\"", "dtype"]),
        (with_nodes(|nodes| nodes.truncate(1)), &["output \"y\"", "nothing produces it"]),
        (
            with_nodes(|nodes| nodes[0].op_type = Some("Frobnicate".to_owned())),
            &["make a", "unknown operator Frobnicate"],
        ),
        (
            with_nodes(|nodes| nodes[1].op_type = Some("Gelu".to_owned())),
            &["make y", "Gelu", "opset 20", "opset 17"],
        ),
        (
            with_nodes(|nodes| nodes[1].op_type = Some("Upsample".to_owned())),
            &["make y", "Upsample", "removed"],
        ),
        (
            with_nodes(|nodes| nodes[1].domain = Some("com.microsoft".to_owned())),
            &["make y", "imports no opset", "com.microsoft"],
        ),
        (without_opset, &["make a", "imports no opset", "ai.onnx"]),
        (zero_opset, &["opset 0", "expected 1 or more"]),
        (
            with_nodes(|nodes| {
                nodes[1].attribute = vec![int_attribute("axis", 1), int_attribute("axis", 2)];
            }),
            &["make y", "attribute \"axis\"", "twice"],
        ),
        (
            with_nodes(|nodes| nodes.push(node("Constant", &[], &["c"]))),
            &["make c", "Constant", "exactly one"],
        ),
    ];
    for (model, parts) in cases {
        assert_says(&refusal(&model), parts);
    }
}

#[test]
fn a_weight_that_contradicts_itself_is_refused_by_name() {
    let cases: Vec<(ModelProto, &[&str])> = vec![
        (with_weight(|w| w.dims = vec![3]), &["f32[3]", "16 bytes", "expected 12"]),
        (
            with_weight(|w| {
                w.raw_data = None;
                w.float_data = vec![1.0; 3];
            }),
            &["f32[4]", "3 elements", "expected 4"],
        ),
        (with_weight(|w| w.raw_data = None), &["0 elements", "expected 4"]),
        (with_weight(|w| w.dims = vec![-1]), &["-1", "expected none below 0"]),
        (with_weight(|w| w.dims = vec![i64::MAX, i64::MAX]), &["too many elements"]),
        (with_weight(|w| w.dims = vec![i64::MAX]), &["f32[92233"]),
        (with_weight(|w| w.data_type = Some(99)), &["dtype number 99"]),
        (
            with_weight(|w| w.data_type = Some(DType::String.to_onnx())),
            &["0 strings", "expected 4"],
        ),
    ];
    for (model, parts) in cases {
        let message = refusal(&model);
        assert_says(&message, &["tensor \"w\""]);
        assert_says(&message, parts);
    }
}

/// A folder with one file, `weights.bin`, of 16 bytes.
struct OneFile;

impl ExternalData for OneFile {
    fn open_file(&mut self, location: &str) -> Result<Bytes, Error> {
        match location {
            "weights.bin" => Ok(vec![0u8; 16].into()),
            other => Err(Error::not_found(format!("no file \"{other}\""))),
        }
    }
}

#[test]
fn external_data_that_is_missing_or_elsewhere_is_refused_by_name() {
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    let file = || entry("location", "weights.bin");
    let outside = "outside the model's folder";
    let cases = [
        (vec![], vec!["location"]),
        (vec![entry("location", "gone.bin")], vec!["gone.bin"]),
        (vec![entry("location", "../x")], vec!["../x", outside]),
        (vec![entry("location", "a/../../x")], vec!["a/../../x", outside]),
        (vec![entry("location", "/etc/passwd")], vec!["/etc/passwd", outside]),
        (vec![entry("location", "")], vec![outside]),
        (vec![file(), entry("offset", "4")], vec!["weights.bin", "16 bytes", "offset 4"]),
        (vec![file(), entry("offset", "18446744073709551615")], vec!["weights.bin"]),
        (vec![file(), entry("offset", "many")], vec!["offset \"many\"", "a number"]),
        (vec![file(), entry("offset", "-4")], vec!["offset \"-4\"", "a number"]),
        (vec![file(), entry("length", "8")], vec!["8 bytes", "expected 16"]),
    ];
    for (entries, parts) in cases {
        let model = with_weight(|w| {
            w.raw_data = None;
            w.data_location = Some(tensor_proto::DataLocation::External as i32);
            w.external_data = entries;
        });
        let message =
            one_line(&read_model(model.encode_to_vec().into(), &mut OneFile).unwrap_err());
        assert_says(&message, &["tensor \"w\""]);
        assert_says(&message, &parts);
    }
    let model = with_weight(|w| {
        w.raw_data = None;
        w.data_location = Some(tensor_proto::DataLocation::External as i32);
        w.external_data = vec![entry("location", "weights.bin")];
    });
    assert!(read_model(model.encode_to_vec().into(), &mut OneFile).is_ok());
    assert_says(&refusal(&model), &["tensor \"w\"", "weights.bin"]);
}

/// What `work` returns, where it returns in time.
fn in_time<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()).ok());
    result.recv_timeout(Duration::from_secs(seconds)).expect("it should have ended by now")
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let recursive = function("Again", &["a"], &["b"], vec![call("Again", &["a"], &["b"])]);
    let model = calling(vec![call("Again", &["x"], &["y"])], vec![recursive]);
    assert_says(&refusal(&model), &["Again", "calls itself"]);
}

#[test]
fn a_function_that_is_called_with_too_much_is_refused() {
    let one = function("One", &["a"], &["b"], vec![node("Relu", &["a"], &["b"])]);
    let model = calling(vec![call("One", &["x", "x"], &["y"])], vec![one]);
    assert_says(&refusal(&model), &["One", "2 inputs", "expected 1"]);
}

#[test]
fn functions_that_double_forty_times_are_refused_in_time() {
    let name = |level: usize| format!("F{level}");
    let mut functions = vec![function("F40", &["a"], &["b"], vec![node("Relu", &["a"], &["b"])])];
    for level in 0..40 {
        let next = name(level + 1);
        let body = vec![call(&next, &["a"], &["t"]), call(&next, &["t"], &["b"])];
        functions.push(function(&name(level), &["a"], &["b"], body));
    }
    let model = calling(vec![call("F0", &["x"], &["y"])], functions);
    let message = in_time(60, move || refusal(&model));
    assert_says(&message, &["nodes once its functions are inlined"]);
}

#[test]
fn empty_functions_that_double_forty_times_end_in_time() {
    let name = |level: usize| format!("F{level}");
    let mut functions = vec![function("F40", &[], &[], vec![])];
    for level in 0..40 {
        let next = name(level + 1);
        let body = vec![call(&next, &[], &[]), call(&next, &[], &[])];
        functions.push(function(&name(level), &[], &[], body));
    }
    let nodes = vec![call("F0", &[], &[]), node("Relu", &["x"], &["y"])];
    let model = calling(nodes, functions);
    in_time(30, move || go_through(model.encode_to_vec().into()));
}

#[test]
fn a_sparse_weight_of_absurd_size_does_no_harm() {
    let mut values = f32_tensor("w", &[1], &[1.0]);
    values.dims = vec![i64::MAX, i64::MAX];
    let mut model = valid();
    graph_mut(&mut model).initializer.clear();
    graph_mut(&mut model).sparse_initializer.push(SparseTensorProto {
        values: Some(values),
        indices: Some(i64_tensor("", &[1], &[0])),
        dims: vec![4],
    });
    go_through(model.encode_to_vec().into());
}

#[test]
fn a_body_that_breaks_the_rules_is_refused_by_name() {
    let branch = |nodes: Vec<NodeProto>| {
        let mut body = GraphBuilder::new("body");
        body.add_output("r");
        let mut body = body.build_graph();
        body.node = nodes;
        let choice = NodeProto {
            attribute: vec![tessera_graph::builder::graph_attribute("then_branch", body)],
            ..node("If", &["x"], &["y"])
        };
        refusal(&calling(vec![choice], vec![]))
    };
    assert_says(
        &branch(vec![node("Relu", &["ghost"], &["r"])]),
        &["make y", "\"ghost\"", "not defined"],
    );
    assert_says(&branch(vec![node("Relu", &["r"], &["r"])]), &["make y", "cycle"]);
    assert_says(
        &branch(vec![node("Relu", &["x"], &["r"]), node("Neg", &["x"], &["r"])]),
        &["make y", "tensor \"r\"", "twice"],
    );
    assert_says(&branch(vec![node("Frobnicate", &["x"], &["r"])]), &["make y", "Frobnicate"]);
}

#[test]
fn bodies_in_bodies_however_deep_do_no_harm() {
    fn nested(op: &str, depth: usize) -> NodeProto {
        let inner = match depth {
            0 => node("Relu", &["x"], &["r"]),
            _ => nested(op, depth - 1),
        };
        let mut body = GraphBuilder::new("body");
        body.add_output("r");
        let mut body = body.build_graph();
        body.node = vec![inner];
        let attribute = if op == "If" { "then_branch" } else { "body" };
        NodeProto {
            attribute: vec![tessera_graph::builder::graph_attribute(attribute, body)],
            ..node(op, &["x", "", "x"], &["r"])
        }
    }
    for op in ["If", "Loop", "Scan"] {
        for depth in [2, 8, 20, 28, 31, 32, 33, 34, 60, 120] {
            let nodes = vec![nested(op, depth), node("Neg", &["r"], &["y"])];
            let model = calling(nodes, vec![]);
            in_time(30, move || go_through(model.encode_to_vec().into()));
        }
    }
}
