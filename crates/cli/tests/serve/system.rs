//! What is served is changed while the server runs, or refused and not changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::http::call;
use crate::models::{layers, narrow, row, with_exit};
use crate::server::{Client, Input, PATIENCE, Place, assert_close};

#[test]
fn a_listing_of_blocks_is_served_and_the_answer_tells_what_was_fused() {
    let place = Place::new();
    let hashes = place.split("chain", &layers(&[0, 1, 2, 3]), &["--blocks", "4"]);
    assert_eq!(hashes.len(), 4);
    place.split("spare", &layers(&[7]), &["--blocks", "1"]);
    let input = [Input::row(&row(1))];
    let expected = &place.run("chain.onnx", &input, &[])["y"];
    let server = place.serve(&[]);
    assert!(server.units().is_empty());

    let numbered: Vec<String> = (0..4).map(|number| format!("chain/{number}")).collect();
    let mut listed = numbered.clone();
    listed.push("spare".to_owned());
    let document = json!({ "blocks": listed, "tasks": { "task1": numbered } });
    let changed = server.put("/v1/system", &document).ok();
    assert_eq!(changed["unused"], json!(["spare"]));
    assert_eq!(changed["tasks"], json!({ "task1": "1" }));
    let [fused] = changed["fused"].as_array().unwrap().as_slice() else {
        panic!("{changed}");
    };
    assert_eq!(fused["blocks"], json!(hashes));
    assert_eq!(changed["started"], json!([fused["unit"]]));
    assert_eq!(json!(server.path("task1")), changed["started"]);
    assert_close(&server.infer("task1", &input).output("y"), expected);

    // By their hashes they are the same blocks, so that nothing is started for another task.
    let short: Vec<&str> = hashes.iter().map(|hash| &hash[..12]).collect();
    for path in [json!(hashes), json!(short)] {
        let changed = server.put("/v1/tasks/task2", &json!({ "path": path })).ok();
        assert_eq!(changed["started"], json!([]));
        assert_eq!(changed["kept"], json!([fused["unit"]]));
        assert_close(&server.infer("task2", &input).output("y"), expected);
    }

    // Without fusion every block runs on its own, and one of them may also be a task.
    let document = json!({ "fusion": false, "tasks": { "task1": numbered, "first": ["chain/0"] } });
    let changed = server.put("/v1/system", &document).ok();
    assert_eq!(changed["fused"], json!([]));
    assert_eq!(changed["started"].as_array().unwrap().len(), 4, "{changed}");
    assert_eq!(changed["stopped"], json!([fused["unit"]]));
    assert_eq!(server.path("task1").len(), 4);
    assert_eq!(server.path("first"), server.path("task1")[..1]);
    assert_close(&server.infer("task1", &input).output("y"), expected);
    server.infer("task2", &input).refusal(404);
    server.stop();
}

/// What a change may change: intent, tasks, and the instances of units.
fn all_there_is(client: &Client) -> Value {
    let mut units = client.get("/v1/units");
    for unit in units["units"].as_array_mut().unwrap() {
        for instance in unit["instances"].as_array_mut().unwrap() {
            instance["requests"] = Value::Null;
        }
    }
    json!([client.get("/v1/system"), client.get("/v1/tasks"), units])
}

#[test]
fn what_can_not_be_served_is_refused_and_changes_nothing() {
    let place = Place::new();
    place.split("chain", &layers(&[0, 1, 2, 3]), &["--blocks", "4"]);
    place.split("narrow", &narrow(), &["--blocks", "1"]);
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.5);
    let server = place.serve(&[&leaving]);
    let steps = json!({ "path": ["chain/0", "chain/1"] });
    server.put("/v1/tasks/steady", &steps).ok();
    let before = all_there_is(&server);
    let asks_itself = json!({ "path": [
        { "name": "one", "block": "chain/0", "inputs": ["other"] },
        { "name": "other", "block": "chain/1", "inputs": ["one"] },
    ] });
    let cases = [
        (json!(["chain/0", "narrow"]), 400, vec!["step 2", "narrow", "f32[batch,7]", "chain/0"]),
        (json!(["chain/0", "narrow"]), 400, vec!["\"x\"", "f32[batch,64]"]),
        (json!(["chain/0", "chain/1", "chain/0"]), 400, vec!["cycle", "chain/0"]),
        (asks_itself, 400, vec!["cycle", "\"one\"", "\"other\""]),
        (json!(["nobody"]), 404, vec!["nobody", "chain", "narrow"]),
        (json!(["chain/17"]), 404, vec!["chain/17", "0 to 3"]),
        (json!(["0123456789ab"]), 404, vec!["0123456789ab"]),
        (json!([]), 400, vec!["no steps"]),
        (json!({ "model": "leaving", "exits": { "early": 1.5 } }), 400, vec!["early", "1.5"]),
        (json!({ "model": "leaving", "exits": { "never": 0.5 } }), 404, vec!["never", "early"]),
        (json!({ "model": "chain", "replicas": 0 }), 400, vec!["replicas", "1 to 64"]),
        (json!({ "model": "chain", "color": 1 }), 400, vec!["color", "deadline_ms"]),
        (json!(7), 400, vec!["7", "array"]),
    ];
    for (task, status, words) in cases {
        let document = json!({ "tasks": { "wrong": task, "steady": steps } });
        let message = server.put("/v1/system", &document).refusal(status);
        for word in ["wrong"].iter().chain(&words) {
            assert!(message.contains(word), "no {word} in: {message}");
        }
        assert_eq!(all_there_is(&server), before, "{document}");
        server.put("/v1/tasks/wrong", &task).refusal(status);
        assert_eq!(all_there_is(&server), before, "{task}");
    }
    let unlisted = json!({ "blocks": ["chain/0"], "tasks": { "wrong": ["chain/1"] } });
    let message = server.put("/v1/system", &unlisted).refusal(400);
    assert!(message.contains("\"chain/1\" is not among blocks"), "{message}");
    for body in ["", "{", "[]", "{\"tasks\": {}, \"tasks\": {}}"] {
        call(&server.control, "PUT", "/v1/system", body).refusal(400);
    }
    for (exit, threshold, status) in
        [("early", 1.5, 400), ("early", -0.1, 400), ("never", 0.5, 404)]
    {
        let path = format!("/v1/tasks/leaving/exits/{exit}");
        server.put(&path, &json!({ "threshold": threshold })).refusal(status);
    }
    assert_eq!(all_there_is(&server), before);
    server.infer("steady", &[Input::row(&row(1))]).ok();
    server.stop();
}

/// Asks again and again until told to stop; returns how often.
fn keep_asking(client: &Client, task: &str, expected: &[f64], is_done: &AtomicBool) -> usize {
    let (start, mut asked) = (Instant::now(), 0);
    while !is_done.load(Ordering::Acquire) && start.elapsed() < 2 * PATIENCE {
        assert_close(&client.infer(task, &[Input::row(&row(1))]).output("y"), expected);
        asked += 1;
    }
    asked
}

#[test]
fn tasks_come_change_and_go_while_another_is_asked() {
    let place = Place::new();
    let steady = place.model("steady", &layers(&[0, 1, 2]));
    let other = place.model("other", &layers(&[0, 1, 9]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&steady, &input, &[])["y"];
    let expected_of_other = &place.run(&other, &input, &[])["y"];
    let server = place.serve(&[&steady, &other]);
    let client = &server.client;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| keep_asking(client, "steady", expected, &is_done)))
            .collect();
        for _ in 0..3 {
            // What they share becomes one with the rest of the steady one, and is shared again.
            client.delete("/v1/tasks/other").ok();
            client.infer("other", &input).refusal(404);
            assert_eq!(client.path("steady").len(), 1);
            let added = client.put("/v1/tasks/other", &json!({ "model": "other" })).ok();
            assert_eq!(client.get("/v1/tasks/steady")["version"], "1", "{added}");
            assert_eq!(client.path("steady").len(), 2);
            assert_close(&client.infer("other", &input).output("y"), expected_of_other);
            let task = json!({ "model": "other", "deadline_ms": 9000 });
            let changed = client.put("/v1/tasks/other", &task).ok();
            assert_eq!(changed["started"], json!([]), "{changed}");
            assert_ne!(changed["tasks"]["other"], added["tasks"]["other"]);
            assert_close(&client.infer("other", &input).output("y"), expected_of_other);
        }
        is_done.store(true, Ordering::Release);
        for asking in asking {
            assert!(asking.join().unwrap() > 0);
        }
    });
    server.stop();
}
