//! What a running server tells each second, and which requests it keeps for a look.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::common::{Ran, finish};
use crate::http::call;
use crate::models::{layers, row};
use crate::server::{Input, Place, Server};

/// Asks a server as people do.
fn ask(place: &Place, server: &Server<'_>, arguments: &[&str]) -> Ran {
    let url = format!("http://{}", server.control);
    finish(place.command(arguments[0]).args(&arguments[1..]).args(["--server", &url]))
}

fn find<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn what_a_server_does_is_told_each_second_and_what_is_shared_is_there_once() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2, 3, 4]));
    place.model("dogs", &layers(&[1, 2, 5, 6]));
    let server = place.serve(&["cats.onnx", "dogs.onnx"]);
    let input = [Input::row(&row(1))];
    let is_over = AtomicBool::new(false);
    let watched = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.infer("cats", &input).ok();
            }
        });
        let watched = ask(&place, &server, &["top", "--count", "3", "--json"]);
        is_over.store(true, Ordering::Relaxed);
        watched
    });
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    let reports = watched.out.lines().map(|line| serde_json::from_str(line).unwrap());
    let reports: Vec<Value> = reports.collect();
    assert_eq!(reports.len(), 3);
    let last = &reports[2];
    let rate = |value: &Value| value["answered_per_second"].as_f64().unwrap();
    let cats = find(&last["tasks"], "cats");
    assert!(rate(cats) > 1.0 && (rate(cats) - rate(last)).abs() < 1e-9, "{last}");
    assert_eq!(rate(find(&last["tasks"], "dogs")), 0.0);
    assert!(cats["p50_ms"].as_f64().unwrap() <= cats["p99_ms"].as_f64().unwrap(), "{cats}");
    assert_eq!(last["failed_per_second"], 0.0);
    let units = last["units"].as_array().unwrap();
    let shared = units.iter().find(|unit| unit["tasks"].as_array().unwrap().len() == 2).unwrap();
    assert!(shared["runs_per_second"].as_f64().unwrap() > 1.0, "{shared}");
    assert!(shared["busy"].as_f64().unwrap() > 0.0 && shared["up"] == shared["instances"]);
    let memory = &last["memory"][0];
    assert_eq!(memory["saved_bytes"], shared["weight_bytes"]);
    assert!(memory["weight_bytes"].as_u64().unwrap() > 0, "{memory}");

    // For people: a table of each.
    let shown = ask(&place, &server, &["top", "--count", "1"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for words in ["answers a second", "sharing saves", "cats,dogs", "p99 ms"] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    // Nobody listens, and nothing is counted for those who do.
    assert_eq!(ask(&place, &server, &["top", "--count", "0"]).out, "");
    server.stop();
}

#[test]
fn requests_that_are_worth_a_look_are_kept() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2]));
    place.model("dogs", &layers(&[3, 4]));
    let server = place.serve(&["cats.onnx", "dogs.onnx"]);
    let input = [Input::row(&row(1))];
    for _ in 0..3 {
        server.infer("cats", &input).ok();
        server.infer("dogs", &input).ok();
    }
    let unit = server.path("dogs")[0].clone();
    server.post(&format!("/v1/units/{unit}/stop")).ok();
    server.infer("dogs", &input).refusal(503);
    let lists = server.get("/v1/requests");
    let slowest = lists["slowest"].as_array().unwrap();
    assert_eq!(slowest.len(), 6);
    let times = slowest.iter().map(|request| request["ms"].as_f64().unwrap());
    assert!(times.is_sorted_by(|one, other| one >= other), "{lists}");
    assert_eq!(slowest[0]["hops"].as_array().unwrap().len(), 1);
    let lists = server.get("/v1/tasks/dogs/requests");
    assert_eq!(lists["slowest"].as_array().unwrap().len(), 3);
    let others = ["failed", "refused"].map(|kind| lists[kind].as_array().unwrap().len());
    assert_eq!(others.iter().sum::<usize>(), 1, "{lists}");
    call(&server.control, "GET", "/v1/tasks/ants/requests", "").refusal(404);

    let shown = ask(&place, &server, &["requests"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("slowest") && shown.out.contains("dogs"), "{}", shown.out);
    let listed = ask(&place, &server, &["requests", "--task", "cats", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["slowest"].as_array().unwrap().len(), 3);
    assert!(listed["failed"].as_array().unwrap().is_empty());
    server.stop();
}

#[test]
fn changes_are_listed_with_what_they_changed_and_can_be_undone() {
    let place = Place::new();
    place.model("cats", &layers(&[1, 2]));
    let server = place.serve(&["cats.onnx"]);
    server.put("/v1/tasks/cats", &json!({ "model": "cats", "deadline_ms": 500 })).ok();
    server.put("/v1/tasks/more", &json!({ "model": "cats" })).ok();
    server.delete("/v1/tasks/more").ok();
    let changes = server.get("/v1/history")["changes"].clone();
    let numbers = changes.as_array().unwrap().iter().map(|change| change["number"].as_u64());
    let numbers: Vec<u64> = numbers.map(Option::unwrap).collect();
    assert!(numbers.is_sorted_by(|one, other| one > other), "{changes}");
    assert_eq!(changes[0]["tasks"]["more"].get("after"), None, "{changes}");
    assert_eq!(changes[2]["tasks"]["cats"]["after"]["deadline_ms"], 500);
    let undone = |number: u64| ask(&place, &server, &["undo", &number.to_string()]);
    // What was removed comes back, and what was set is as it was.
    let ran = undone(numbers[0]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    server.infer("more", &[Input::row(&row(1))]).ok();
    assert_eq!(undone(numbers[2]).code, Some(0));
    assert_eq!(server.task("cats")["definition"].get("deadline_ms"), None);
    // That which is another by now can't be undone, nor what never was.
    let ran = undone(numbers[2]);
    assert!(ran.err.contains("is not what change"), "{}", ran.err);
    let ran = undone(1000);
    assert!(ran.err.contains("there is no change 1000: those from"), "{}", ran.err);
    let changes = server.get("/v1/history")["changes"].clone();
    assert_eq!(changes[0]["undoes"], numbers[2]);
    assert_eq!(changes[2]["undone_by"], changes[1]["number"], "{changes}");

    let unit = server.path("cats")[0].clone();
    server.post(&format!("/v1/units/{unit}/stop")).ok();
    let instances = server.get("/v1/history")["instances"].clone();
    assert_eq!(instances[0]["kind"], "down", "{instances}");
    let shown = ask(&place, &server, &["history"]);
    for words in ["more removed", "deadline_ms 500 → –", "(undoes", "down"] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    server.stop();
}
