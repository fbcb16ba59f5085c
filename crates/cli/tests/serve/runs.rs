//! Runs that would take the server along: sizes that nothing is left of, runs without end, and more
//! memory than there is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tessera_core::{DType, Dim};
use tessera_graph::builder::{GraphBuilder, graph_attribute, ints_attribute, raw_tensor};
use tessera_graph::onnx::{ModelProto, tensor_proto};

use crate::http::{Response, call};
use crate::models::{layers, numbers, row};
use crate::server::{Client, Input, Place, signal, within};

fn open(name: &str) -> Dim {
    Dim::Symbol(name.to_owned())
}

/// A convolution, a pool, and another convolution, for images of any size.
fn pooled() -> ModelProto {
    let mut graph = GraphBuilder::new("pooled");
    let dims = [open("n"), Dim::Fixed(3), open("h"), open("w")];
    let x = graph.add_input("x", DType::F32, dims);
    let first = graph.add_weight("first", &[32, 3, 3, 3], numbers(32 * 27, 1));
    let second = graph.add_weight("second", &[32, 32, 3, 3], numbers(32 * 32 * 9, 2));
    let pads = || ints_attribute("pads", &[1, 1, 1, 1]);
    let y = graph.add_node("Conv", &[&x, &first], [pads()]);
    let window = [ints_attribute("kernel_shape", &[3, 3]), ints_attribute("strides", &[2, 2])];
    let y = graph.add_node("MaxPool", &[&y], window);
    graph.add_node_into("last", "Conv", &[&y, &second], &["y"], [pads()]);
    graph.add_output_of_any_shape("y", DType::F32);
    graph.build_model()
}

/// Adds `x` to a sum until that is 1: with 0 that never comes.
fn counting() -> ModelProto {
    let mut body = GraphBuilder::new("body");
    body.add_input("number", DType::I64, [0usize; 0]);
    body.add_input("go_on", DType::Bool, [0usize; 0]);
    let sum = body.add_input("sum", DType::F32, [1]);
    let one = body.add_weight("one", &[1], vec![1.0]);
    body.add_node_into("add", "Add", &[&sum, "step"], &["next"], []);
    let less = body.add_node("Less", &["next", &one], []);
    body.add_node_into("squeeze", "Squeeze", &[&less], &["again"], []);
    body.add_typed_output("again", DType::Bool, [0usize; 0]);
    body.add_typed_output("next", DType::F32, [1]);
    let mut graph = GraphBuilder::new("counting");
    let x = graph.add_input("x", DType::F32, [1]);
    graph.add_node_into("step", "Identity", &[&x], &["step"], []);
    let most = graph.add_i64_weight("most", &[], vec![i64::MAX]);
    let data_type = tensor_proto::DataType::Bool as i32;
    let yes = graph.add_initializer(raw_tensor("yes", data_type, &[], vec![1].into()));
    let zero = graph.add_weight("zero", &[1], vec![0.0]);
    let body = graph_attribute("body", body.build_graph());
    graph.add_node_into("loop", "Loop", &[&most, &yes, &zero], &["y"], [body]);
    graph.add_typed_output("y", DType::F32, [1]);
    graph.build_model()
}

/// The sum over all products of two elements.
fn outer_sum() -> ModelProto {
    let mut graph = GraphBuilder::new("outer");
    let x = graph.add_input("x", DType::F32, [open("n")]);
    let axis = graph.add_i64_weight("axis", &[1], vec![1]);
    let column = graph.add_node("Unsqueeze", &[&x, &axis], []);
    let products = graph.add_node("Mul", &[&column, &x], []);
    graph.add_node_into("sum", "ReduceSum", &[&products], &["y"], []);
    graph.add_output_of_any_shape("y", DType::F32);
    graph.build_model()
}

/// As many ones as the input says, added up.
fn expanded() -> ModelProto {
    let mut graph = GraphBuilder::new("expanded");
    let count = graph.add_input("x", DType::I64, [1]);
    let one = graph.add_weight("one", &[1], vec![1.0]);
    let ones = graph.add_node("Expand", &[&one, &count], []);
    graph.add_node_into("sum", "ReduceSum", &[&ones], &["y"], []);
    graph.add_output_of_any_shape("y", DType::F32);
    graph.build_model()
}

/// Asks with elements that are all alike.
fn ask(client: &Client, task: &str, shape: &[usize], value: &Value, timeout_ms: u64) -> Response {
    let datatype = if value.is_i64() { "INT64" } else { "FP32" };
    let data = vec![value.clone(); shape.iter().product()];
    let body = json!({
        "parameters": { "timeout": timeout_ms * 1000 },
        "inputs": [{ "name": "x", "shape": shape, "datatype": datatype, "data": data }],
    });
    call(&client.http, "POST", &format!("/v2/models/{task}/infer"), &body.to_string())
}

const ISOLATIONS: [&str; 2] = ["thread", "process"];

#[test]
fn images_that_pooling_leaves_nothing_of_are_refused_and_end_nothing() {
    let place = Place::new();
    let model = place.model("pooled", &pooled());
    for isolation in ISOLATIONS {
        let server = place.serve(&[&model, "--isolation", isolation]);
        let image = |shape: &[usize]| ask(&server, "pooled", shape, &json!(0.5), 10_000);
        image(&[1, 3, 8, 8]).ok();
        let unit = server.path("pooled").remove(0);
        let before = server.get(&format!("/v1/units/{unit}"))["restarts"].clone();
        // Within a batch with others, too.
        for shape in [[1, 3, 1, 1], [1, 3, 1, 8], [4, 3, 2, 1], [1, 3, 0, 4]] {
            let refusal = image(&shape).refusal(400);
            assert!(refusal.contains("inputs are too small"), "{refusal}");
        }
        image(&[2, 3, 8, 8]).ok();
        assert_eq!(server.get(&format!("/v1/units/{unit}"))["restarts"], before, "{isolation}");
    }
}

#[test]
fn a_run_without_end_is_ended_and_keeps_nobody() {
    let place = Place::new();
    let (counting, chain) =
        (place.model("counting", &counting()), place.model("chain", &layers(&[0, 1])));
    for isolation in ISOLATIONS {
        let server = place.serve(&[&counting, &chain, "--isolation", isolation, "--drain", "100"]);
        let count = |step: f64, ms: u64| ask(&server, "counting", &[1], &json!(step), ms);
        assert_eq!(count(0.5, 10_000).output("y"), [1.0]);
        // As many as there are cores, and more.
        std::thread::scope(|scope| {
            let endless: Vec<_> = (0..6).map(|_| scope.spawn(|| count(0.0, 1000))).collect();
            for endless in endless {
                endless.join().unwrap().refusal(503);
            }
        });
        let answers = || server.infer("chain", &[Input::row(&row(1))]).status == 200;
        assert!(within(Duration::from_secs(3), answers), "{isolation}: others wait for cores");
        assert_eq!(count(0.5, 10_000).output("y"), [1.0]);
        // A server that is to stop does not wait for one either.
        let client = server.client.clone();
        let asking = std::thread::spawn(move || {
            crate::http::try_call(
                &client.http,
                "POST",
                "/v2/models/counting/infer",
                r#"{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}],
                    "parameters": {"timeout": 600000000}}"#,
            )
        });
        server.wait_for_requests("counting", 1);
        let begun = Instant::now();
        signal("TERM", server.id());
        assert_eq!(server.end().code(), Some(0), "{isolation}: {}", place.errors());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        asking.join().unwrap().ok();
    }
}

#[test]
fn a_run_that_needs_more_memory_than_it_may_is_refused() {
    let place = Place::new();
    let models = [place.model("outer", &outer_sum()), place.model("expanded", &expanded())];
    for isolation in ISOLATIONS {
        let server = place.serve(&[
            &models[0],
            &models[1],
            "--isolation",
            isolation,
            "--max-run-memory",
            "200MB",
        ]);
        let sum = |n: usize| ask(&server, "outer", &[n], &json!(1.0), 10_000);
        assert_eq!(sum(1000).output("y"), [1e6]);
        let refusal = sum(20_000).refusal(400);
        assert!(refusal.contains("takes 1600 MB, more than the 200 MB"), "{refusal}");
        // Here it depends on what is in the input.
        let ones = |count: i64| ask(&server, "expanded", &[1], &json!(count), 10_000);
        assert_eq!(ones(1000).output("y"), [1000.0]);
        ones(1_000_000_000_000).refusal(500);
        ones(100_000_000).refusal(500);
        assert_eq!(ones(1000).output("y"), [1000.0], "{isolation}");
        assert_eq!(sum(100).output("y"), [1e4]);
    }
}
