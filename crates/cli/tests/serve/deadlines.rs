//! Deadlines: what can't be answered in time is told at once.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::models::{SLOW_WIDTH, layers, numbers, row, slow};
use crate::server::{Input, Place, at_once, signal};

#[test]
fn a_deadline_that_can_not_be_kept_is_told_at_once() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0]));
    let server = place.serve(&[&chain]);
    let input = [Input::row(&row(1))];
    server.infer("chain", &input).ok();
    let start = Instant::now();
    let message = server.infer_with("chain", &input, &json!({ "timeout": 1 })).refusal(503);
    assert!(message.contains("deadline"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Nothing of it is left behind.
    server.wait_for_requests("chain", 0);
    server.infer("chain", &input).ok();
    server.stop();
}

#[test]
fn a_deadline_passes_while_a_unit_hangs() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0]));
    let server = place.serve(&[&chain, "--isolation", "process"]);
    let input = [Input::row(&row(1))];
    let unit = server.path("chain").remove(0);
    signal("STOP", server.process(&unit));
    let start = Instant::now();
    // The client's deadline, and that of the task.
    let message = server.infer_with("chain", &input, &json!({ "timeout": 200_000 })).refusal(503);
    assert!(message.contains("deadline"), "{message}");
    let took = start.elapsed();
    assert!((0.15..5.0).contains(&took.as_secs_f64()), "{took:?}");
    signal("CONT", server.process(&unit));
    server.put("/v1/tasks/chain", &json!({ "model": "chain", "deadline_ms": 1500 })).ok();
    server.infer("chain", &input).ok();
    signal("STOP", server.process(&unit));
    server.infer("chain", &input).refusal(503);
    signal("CONT", server.process(&unit));
    server.infer("chain", &input).ok();
    server.stop();
}

#[test]
fn a_request_that_would_be_late_is_refused_and_told_when_to_come_back() {
    let place = Place::new();
    let slow = place.model("slow", &slow());
    let server = place.serve(&[&slow, "--cores", "1"]);
    let values = numbers(SLOW_WIDTH, 1);
    let ask = |timeout: Duration| {
        let parameters = json!({ "timeout": timeout.as_micros() as u64 });
        server.infer_with("slow", &[Input::row(&values)], &parameters)
    };
    let expected = ask(Duration::from_secs(30)).output("y");
    let timed = |_| {
        let start = Instant::now();
        ask(Duration::from_secs(30)).ok();
        start.elapsed()
    };
    let alone: Duration = (0..3).map(timed).min().unwrap();
    // Some of them are in time, and all of them could never be.
    let answers = at_once(32, |_| ask(alone * 6));
    let mut refused = 0;
    let mut answered = 0;
    for response in &answers {
        if response.status == 200 {
            assert_eq!(response.output("y").len(), expected.len());
            answered += 1;
            continue;
        }
        let message = response.refusal(503);
        assert!(message.contains("slow"), "{message}");
        if let Some(seconds) = response.header("retry-after") {
            assert!(seconds.parse::<u64>().unwrap() >= 1, "{seconds}");
            refused += 1;
        }
    }
    assert!(answered > 0, "{answers:?}");
    assert!(refused > 0, "{answers:?}");
    // And when they are gone there is room again.
    ask(Duration::from_secs(30)).ok();
    server.stop();
}
