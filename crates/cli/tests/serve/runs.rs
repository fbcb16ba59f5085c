//! Runs that would take the server along: sizes that nothing is left of, runs without end, and more
//! memory than there is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tessera_zoo::TinyModel;

use crate::http::{Response, call};
use crate::models::{layers, row};
use crate::server::{Client, Input, Place, signal, within};

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
    let model = place.model("pooled", &TinyModel::Pooled.build_model());
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
    let (counting, chain) = (
        place.model("counting", &TinyModel::Counting.build_model()),
        place.model("chain", &layers(&[0, 1])),
    );
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
fn nobody_waits_for_a_run_that_takes_long() {
    let place = Place::new();
    let (counting, chain) = (
        place.model("counting", &TinyModel::Counting.build_model()),
        place.model("chain", &layers(&[0, 1])),
    );
    for isolation in ISOLATIONS {
        let server = place.serve(&[&counting, &chain, "--isolation", isolation, "--drain", "0"]);
        server.infer("chain", &[Input::row(&row(1))]).ok();
        std::thread::scope(|scope| {
            // Whoever is alone has all cores; they wait for it for as long as a run may take.
            let endless = scope.spawn(|| ask(&server, "counting", &[1], &json!(0.0), 600_000));
            server.wait_for_requests("counting", 1);
            for _ in 0..3 {
                let begun = Instant::now();
                server.infer("chain", &[Input::row(&row(1))]).ok();
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(4), "{isolation}: {took:?}");
            }
            assert!(!endless.is_finished());
            endless.join().unwrap().refusal(503);
        });
    }
}

#[test]
fn a_unit_whose_runs_nobody_can_end_is_given_up_and_keeps_nobody() {
    let place = Place::new();
    let (counting, chain) = (
        place.model("counting", &TinyModel::Counting.build_model()),
        place.model("chain", &layers(&[0, 1])),
    );
    // A run of rten has no end but its own; nor may one be tried before it is served.
    let server = place.serve(&[&counting, &chain, "--isolation", "thread", "--engine", "rten"]);
    let unit = server.path("counting").remove(0);
    let is_given_up = || {
        let unit = server.get(&format!("/v1/units/{unit}"));
        unit["instances"][0]["reason"].as_str().is_some_and(|why| why.contains("do not end"))
    };
    let begun = Instant::now();
    while !is_given_up() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is started again and again");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| ask(&server, "counting", &[1], &json!(0.0), 500).refusal(503));
            }
        });
        // Others have the cores by turns with what goes on for good.
        let asked = Instant::now();
        server.infer("chain", &[Input::row(&row(1))]).ok();
        assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    }
    server.infer("chain", &[Input::row(&row(1))]).ok();
    signal("TERM", server.id());
    assert_eq!(server.end().code(), Some(0), "{}", place.errors());
}

#[test]
fn a_run_that_needs_more_memory_than_it_may_is_refused() {
    let place = Place::new();
    let models = [
        place.model("outer", &TinyModel::OuterSum.build_model()),
        place.model("expanded", &TinyModel::Expanded.build_model()),
    ];
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
