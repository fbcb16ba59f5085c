//! Models that are put into a running server: they share with what runs, and nobody notices.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::common::{Ran, f32_bytes, finish, save, text, with_external_weight};
use crate::http::call_with_headers;
use crate::models::{layers, row, with_exit};
use crate::server::{Input, Place, Server, assert_close};

/// Asks a server as people do.
fn ask(place: &Place, server: &Server<'_>, arguments: &[&str]) -> Ran {
    let url = format!("http://{}", server.control);
    finish(place.command(arguments[0]).args(&arguments[1..]).args(["--server", &url]))
}

#[track_caller]
fn ask_json(place: &Place, server: &Server<'_>, arguments: &[&str]) -> Value {
    let ran = ask(place, server, &[arguments, &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

fn weights_held(server: &Server<'_>) -> u64 {
    let listed = server.get("/v1/units");
    let units = listed["units"].as_array().unwrap().iter();
    units.map(|unit| unit["weight_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn a_model_that_comes_later_shares_with_one_that_answers_meanwhile() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2, 3, 4]));
    place.model("dogs", &layers(&[1, 2, 5, 6]));
    let input = [Input::row(&row(1))];
    let cats = &place.run("cats.onnx", &input, &[])["y"];
    let dogs = &place.run("dogs.onnx", &input, &[])["y"];
    let server = place.serve(&["cats.onnx"]);
    let (alone, units) = (weights_held(&server), server.units());
    assert_eq!(server.path("cats").len(), 1);
    // First only what would be.
    let pretended = ask_json(&place, &server, &["put", "dogs.onnx", "--dry-run"]);
    let stored = &pretended["models"][0]["stored"];
    assert_eq!(stored["recut"], json!(["cats"]));
    assert_eq!(stored["shared_weight_bytes"], alone / 2);
    assert_eq!(stored["new_weight_bytes"], alone / 2);
    assert_eq!(stored["is_kept"], false);
    assert_eq!((server.units(), server.path("cats").len()), (units, 1));
    // A task that makes no sense leaves no model behind, and takes no sharing from the next.
    let refused = ask(&place, &server, &["put", "dogs.onnx", "--set", "dedline_ms=1"]);
    assert!(refused.err.contains("dedline_ms: unknown field"), "{}", refused.err);
    assert_eq!(server.get("/v1/models")["models"].as_array().unwrap().len(), 1);
    server.infer("dogs", &input).refusal(404);
    let (is_over, version) = (AtomicBool::new(false), server.task("cats")["version"].clone());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_close(&server.infer("cats", &input).output("y"), cats);
                count += 1;
            }
            count
        });
        let put = ask_json(&place, &server, &["put", "dogs.onnx", "--set", "deadline_ms=9000"]);
        assert_eq!(put["models"][0]["task"], "dogs");
        let [first, own] = &server.path("dogs")[..] else { panic!("{:?}", server.path("dogs")) };
        let [shared, other] = &server.path("cats")[..] else { panic!("{:?}", server.path("cats")) };
        assert!(first == shared && own != other);
        is_over.store(true, Ordering::Relaxed);
        assert!(asking.join().unwrap() > 0);
    });
    assert_close(&server.infer("dogs", &input).output("y"), dogs);
    assert_eq!(weights_held(&server), alone + alone / 2);
    assert_eq!(server.task("cats")["version"], version);
    let audit = fs::read_to_string(place.repository().join("serve/audit.jsonl")).unwrap();
    for (path, names) in [("dogs?dry_run=true", "dogs"), ("dogs", "dogs")] {
        let noted = format!("\"path\":\"/v1/models/{path}\",\"names\":[\"{names}\"]");
        assert!(audit.contains(&noted), "{audit}");
    }
    assert_eq!(server.task("dogs")["definition"]["deadline_ms"], 9000);
    // What is listed, and what becomes of it without dogs.
    let tasks = ask(&place, &server, &["tasks"]).out;
    assert!(tasks.contains("cats") && tasks.contains("dogs"), "{tasks}");
    let status = ask(&place, &server, &["status"]).out;
    assert!(status.starts_with("2 tasks (2 ready), 3 units; weights"), "{status}");
    let refused = server.delete("/v1/models/dogs").refusal(400);
    assert!(refused.contains("dogs"), "{refused}");
    let own = &server.path("dogs")[1];
    let pretended = ask_json(&place, &server, &["rm", "dogs", "--dry-run"]);
    assert_eq!(pretended["tasks"][0]["stopped"], json!([own]));
    ask_json(&place, &server, &["rm", "dogs", "--model"]);
    assert_eq!(server.path("cats").len(), 1, "what nobody shares runs as one");
    assert_close(&server.infer("cats", &input).output("y"), cats);
    let models = server.get("/v1/models");
    assert_eq!(models["models"].as_array().unwrap().len(), 1, "{models}");
    assert_eq!(models["models"][0]["blocks"].as_array().unwrap().len(), 2);
    server.stop();
    // Another start serves the same.
    let again = place.serve(&[]);
    assert_close(&again.infer("cats", &input).output("y"), cats);
    again.stop();
    place.is_left_clean();
}

#[test]
fn a_model_whose_blocks_somebody_counts_is_not_cut_further() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2, 3, 4]));
    place.model("dogs", &layers(&[1, 2, 5, 6]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&["cats.onnx"]);
    let recut = || {
        let pretended = ask_json(&place, &server, &["put", "dogs.onnx", "--dry-run"]);
        pretended["models"][0]["stored"]["recut"].clone()
    };
    assert_eq!(recut(), json!(["cats"]));
    server.put("/v1/tasks/part", &json!({ "path": ["cats/0"] })).ok();
    assert_eq!(recut(), json!([]));
    server.delete("/v1/tasks/part").ok();
    let each = json!({ "model": "cats", "device": ["cpu"] });
    server.put("/v1/tasks/each", &each).ok();
    assert_eq!(recut(), json!([]));
    ask_json(&place, &server, &["put", "dogs.onnx"]);
    let expected = &place.run("dogs.onnx", &input, &[])["y"];
    assert_close(&server.infer("dogs", &input).output("y"), expected);
    server.stop();
}

#[test]
fn a_model_brings_its_exits_and_labels_and_weights() {
    let place = Place::new();
    place.model("first", &layers(&[1]));
    place.model_with_exit("leaving", &with_exit(), 1.0);
    fs::write(place.path().join("leaving.labels.txt"), "one\ntwo\nthree").unwrap();
    let server = place.serve(&["first.onnx"]);
    let put = ask(&place, &server, &["put", "leaving.onnx", "--task", "out"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    assert!(put.out.contains("task out: "), "{}", put.out);
    let exits = server.get("/v1/tasks/out/exits");
    assert_eq!(exits["exits"][0]["name"], "early");
    let model = server.get("/v1/models/leaving");
    assert_eq!(model["exits"], json!(["early"]));
    // The same with its weights in a file of their own, as exporters have large ones.
    let apart = place.path().join("apart");
    fs::create_dir(&apart).unwrap();
    save(&apart.join("sum.onnx"), &with_external_weight("weights/w.bin"));
    fs::create_dir(apart.join("weights")).unwrap();
    fs::write(apart.join("weights/w.bin"), f32_bytes(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    let put = ask(&place, &server, &["put", "apart/sum.onnx"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let sum = server.infer("sum", &[Input::row(&[1.0, 1.0, 1.0, 1.0])]);
    assert_close(&sum.output("y"), &[2.0, 3.0, 4.0, 5.0]);
    server.stop();
    place.is_left_clean();
}

#[test]
fn what_is_no_model_is_refused_and_leaves_nothing() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2]));
    let server = place.serve(&["cats.onnx"]);
    let put = |path: &str, kind: &str, body: &str| {
        let (host, kind) = (format!("Host: {}", server.control), format!("Content-Type: {kind}"));
        call_with_headers(&server.control, "PUT", path, &[&host, &kind], body)
    };
    const ONNX: &str = "application/octet-stream";
    for (path, kind, body, status, expected) in [
        ("/v1/models/x", "application/json", "{}", 415, "expected application/octet-stream"),
        ("/v1/models/x", "text/plain", "x", 415, "expected application/octet-stream"),
        ("/v1/models/x", ONNX, "", 400, "the body is empty"),
        ("/v1/models/x", ONNX, "nonsense", 400, "model \"x\": model.onnx"),
        ("/v1/models/x", "application/x-tar", "nonsense", 400, "archive"),
        ("/v1/models/x?dry=1", ONNX, "x", 400, "expected ?dry_run=true"),
        ("/v1/models/a%2Fb", ONNX, "x", 400, "\"a/b\" is no name for a model"),
    ] {
        let message = put(path, kind, body).refusal(status);
        assert!(message.contains(expected), "{path} {kind}: {message}");
        assert!(!message.contains(text(place.path())), "{message}");
    }
    let left = fs::read_dir(place.repository().join("tmp")).unwrap().count();
    assert_eq!(left, 0);
    assert_eq!(server.delete("/v1/models/x").status, 404);
    let refused = ask(&place, &server, &["put", "nothing.onnx"]);
    assert!(refused.code != Some(0) && refused.err.contains("nothing.onnx"), "{}", refused.err);
    let url = format!("http://{}", server.http);
    let refused = finish(place.command("put").args(["cats.onnx", "--server", &url]));
    assert!(refused.err.contains("expected the port of --control"), "{}", refused.err);
    let refused = ask(&place, &server, &["put", "cats.onnx", "--set", "replicas"]);
    assert!(refused.err.contains("expected FIELD=VALUE"), "{}", refused.err);
    let refused = ask(&place, &server, &["rm", "nobody"]);
    assert!(refused.err.contains("there is no task \"nobody\""), "{}", refused.err);
    server.stop();
    place.is_left_clean();
}

#[test]
fn events_are_followed_until_there_were_enough() {
    let place = Place::new();
    place.model("cats", &layers(&[1]));
    let server = place.serve(&["cats.onnx"]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.infer("cats", &[Input::row(&row(1))]).ok();
            }
        });
        let followed = ask(&place, &server, &["events", "--count", "2", "--kind", "request"]);
        is_over.store(true, Ordering::Relaxed);
        asking.join().unwrap();
        let lines: Vec<&str> = followed.out.lines().collect();
        assert_eq!(lines.len(), 2, "{}", followed.err);
        assert!(lines.iter().all(|line| line.contains("task cats")), "{lines:?}");
    });
    server.stop();
}
