//! The protocol's model repository: models are loaded and unloaded by clients.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::http::{Response, call};
use crate::models::{layers, product, row};
use crate::server::{Client, Input, Place, assert_close};

fn change(client: &Client, model: &str, what: &str, parameters: Value) -> Response {
    let path = format!("/v2/repository/models/{model}/{what}");
    call(&client.http, "POST", &path, &json!({ "parameters": parameters }).to_string())
}

#[test]
fn a_client_brings_a_model_with_its_configuration() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let brought = place.model("brought", &product(3));
    let expected = place.run(&brought, &[Input::row(&row(1))], &[]);
    let content = STANDARD.encode(fs::read(place.path().join(&brought)).unwrap());
    let server = place.serve(&[&chain]);
    let config = json!({
        "platform": "onnxruntime_onnx", "max_batch_size": 5,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [64]}],
        "output": [{"name": "y", "dims": [64], "label_filename": "labels.txt"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 2000},
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    });
    let files = json!({
        "config": config.to_string(),
        "file:1/model.onnx": content,
        "file:labels.txt": STANDARD.encode("zero\none\n"),
    });
    let loaded = change(&server, "fresh", "load", files.clone());
    assert_eq!(loaded.status, 200, "{}", loaded.body);
    assert_close(&server.infer("fresh", &[Input::row(&row(1))]).output("y"), &expected["y"]);
    let shown = call(&server.http, "GET", "/v2/models/fresh/config", "").ok();
    assert_eq!(shown["max_batch_size"], 5, "{shown}");
    assert_eq!(shown["output"][0]["label_filename"], "labels.txt", "{shown}");
    assert_eq!(shown["instance_group"][0]["count"], 2, "{shown}");
    let task = server.task("fresh");
    assert_eq!(task["definition"]["replicas"], 2, "{task}");
    assert_eq!(task["definition"]["batching"]["max_wait_ms"], 2, "{task}");

    // What is there stays where the next one makes no sense.
    for (name, value, expected) in [
        ("config", json!("{"), "no JSON"),
        ("config", json!(json!({"platform": "tensorrt_plan"}).to_string()), "tensorrt_plan"),
        ("config", json!(json!({"input": [{"name": "z"}]}).to_string()), "no input \"z\""),
        ("config", json!(json!({"name": "other"}).to_string()), "\"other\""),
        ("file:1/model.onnx", json!(STANDARD.encode("no model")), "model"),
        ("file:../../escaped", json!(STANDARD.encode("text")), "outside"),
    ] {
        let mut wrong = files.clone();
        wrong[name] = value;
        let refused = change(&server, "fresh", "load", wrong);
        assert!(refused.status >= 400 && refused.status != 500, "{}", refused.body);
        let message = refused.refusal(refused.status);
        assert!(message.contains(expected), "{message}");
    }
    let lonely = change(&server, "fresh", "load", json!({"file:1/model.onnx": content}));
    assert!(lonely.refusal(400).contains("without \"config\""));
    server.infer("fresh", &[Input::row(&row(2))]).ok();

    // A configuration alone is for what the repository has.
    let config = json!({"config": json!({"max_batch_size": 3}).to_string()});
    assert_eq!(change(&server, "chain", "load", config).status, 200);
    let shown = call(&server.http, "GET", "/v2/models/chain/config", "").ok();
    assert_eq!(shown["max_batch_size"], 3, "{shown}");
    server.stop();
    // All of it is there after a restart.
    let server = place.serve(&[]);
    let shown = call(&server.http, "GET", "/v2/models/fresh/config", "").ok();
    assert_eq!(shown["max_batch_size"], 5, "{shown}");
    assert_eq!(shown["output"][0]["label_filename"], "labels.txt", "{shown}");
    server.infer("fresh", &[Input::row(&row(1))]).ok();
    server.stop();
}

#[test]
fn what_is_not_there_is_unloaded_without_a_word() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let server = place.serve(&[&chain]);
    for _ in 0..2 {
        let unloaded = change(&server, "chain", "unload", json!({}));
        assert_eq!(unloaded.status, 200, "{}", unloaded.body);
    }
    assert_eq!(change(&server, "nobody", "unload", json!({})).status, 200);
    server.infer("chain", &[Input::row(&row(1))]).refusal(404);
    change(&server, "nobody", "load", json!({})).refusal(400);
    server.stop();
}

#[test]
fn statistics_are_by_the_rows_of_batches() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let server = place.serve(&[&chain, "--no-batching"]);
    server.infer("chain", &[Input::row(&row(1))]).ok();
    let rows = [row(1), row(2), row(3)].concat();
    for _ in 0..2 {
        server.infer("chain", &[Input::rows("x", 64, &rows)]).ok();
    }
    let statistics = call(&server.http, "GET", "/v2/models/chain/stats", "").ok();
    let batches = &statistics["model_stats"][0]["batch_stats"];
    let counts: Vec<_> = batches
        .as_array()
        .unwrap()
        .iter()
        .map(|batch| (batch["batch_size"].as_u64(), batch["compute_infer"]["count"].as_u64()))
        .collect();
    assert_eq!(counts, [(Some(1), Some(1)), (Some(3), Some(2))], "{statistics}");
    assert!(batches[1]["compute_infer"]["ns"].as_u64().unwrap() > 0, "{statistics}");
    server.stop();
}

#[test]
fn what_is_logged_changes_while_the_server_runs() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    // The tests' servers begin with warnings.
    let server = place.serve(&[&chain]);
    let settings = call(&server.http, "GET", "/v2/logging", "").ok();
    assert_eq!((&settings["log_info"], &settings["log_warning"]), (&json!(false), &json!(true)));
    let change = |body: Value| call(&server.http, "POST", "/v2/logging", &body.to_string()).ok();
    let is_logged = || place.errors().contains("stopping");
    assert_eq!(change(json!({"log_info": true}))["log_info"], true);
    assert!(!is_logged());
    server.stop();
    assert!(is_logged(), "{}", place.errors());
}

#[test]
fn labels_and_formats_come_from_beside_the_model() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0]));
    let labels: String = (0..64).map(|number| format!("label {number}\n")).collect();
    fs::write(place.path().join("names.txt"), labels).unwrap();
    let config = "input { name: \"x\" format: FORMAT_NCHW }
                  output { name: \"y\" label_filename: \"names.txt\" }";
    fs::write(place.path().join("chain.config.pbtxt"), config).unwrap();
    let server = place.serve(&[&chain]);
    let shown = call(&server.http, "GET", "/v2/models/chain/config", "").ok();
    assert_eq!(shown["input"][0]["format"], "FORMAT_NCHW", "{shown}");
    assert_eq!(shown["output"][0]["label_filename"], "names.txt", "{shown}");
    let request = json!({
        "inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": row(1)}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],
    });
    let answer = call(&server.http, "POST", "/v2/models/chain/infer", &request.to_string()).ok();
    let class = answer["outputs"][0]["data"][0].as_str().unwrap();
    let (value, label) = class.rsplit_once(':').unwrap();
    let (_, index) = value.rsplit_once(':').unwrap();
    assert_eq!(label, format!("label {index}"), "{class}");
    server.stop();
}
