//! Exits: who leaves where, who is told, and what they are good for where the rest fails.

use serde_json::json;

use crate::models::{CERTAIN, LATE, UNCERTAIN, with_exit};
use crate::server::{Client, Input, Place, Server, assert_close, signal, wait_until};

/// What the exit says of a row.
fn early(row: &[f32; 8]) -> Vec<f64> {
    row[..4].iter().map(|&value| value.into()).collect()
}

/// What the end says of a row.
fn late(place: &Place, row: &[f32; 8]) -> Vec<f64> {
    place.run("leaving.onnx", &[Input::row(row)], &["--no-exits"])[LATE].clone()
}

fn set_threshold(client: &Client, threshold: f32) {
    let document = json!({ "threshold": threshold });
    let exit = client.put("/v1/tasks/leaving/exits/early", &document).ok();
    assert_eq!(exit["threshold"], json!(threshold), "{exit}");
}

/// How often the exit was taken.
fn taken(client: &Client) -> u64 {
    let exits = client.get("/v1/tasks/leaving/exits");
    exits["exits"][0]["taken"].as_u64().unwrap_or_else(|| panic!("{exits}"))
}

#[test]
fn a_threshold_of_one_is_always_met_and_one_of_zero_never() {
    let place = Place::new();
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.5);
    let server = place.serve(&[&leaving]);
    let rows = [CERTAIN, UNCERTAIN];
    let ask = |row: &[f32; 8]| server.infer("leaving", &[Input::row(row)]);

    // As the model says, certain ones leave.
    assert_close(&ask(&CERTAIN).output(LATE), &early(&CERTAIN));
    assert_close(&ask(&UNCERTAIN).output(LATE), &late(&place, &UNCERTAIN));
    assert_eq!(taken(&server), 1);
    set_threshold(&server, 1.0);
    for row in &rows {
        let response = ask(row);
        assert_eq!(response.parameter("exit"), "early");
        assert_close(&response.output(LATE), &early(row));
    }
    assert_eq!(taken(&server), 3);
    set_threshold(&server, 0.0);
    for row in &rows {
        let response = ask(row);
        assert!(response.ok()["parameters"].is_null(), "{}", response.body);
        assert_close(&response.output(LATE), &late(&place, row));
    }
    assert_eq!(taken(&server), 3);
    let task = server.task("leaving");
    assert_eq!(task["exits"], json!([{ "name": "early", "threshold": 0.0, "taken": 3 }]));
    // A threshold is no other version of a task.
    assert_eq!(task["version"], "1");
    let metrics = server.metrics();
    let counted = metrics.lines().find(|line| line.starts_with("tessera_exits_taken_total{"));
    let counted = counted.unwrap_or_else(|| panic!("{metrics}"));
    assert!(counted.contains("\"early\"") && counted.ends_with(" 3"), "{counted}");
    server.stop();
}

#[test]
fn rows_of_one_request_leave_each_for_itself() {
    let place = Place::new();
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.5);
    let expected = [early(&CERTAIN), late(&place, &UNCERTAIN)];
    for isolation in ["thread", "process"] {
        let server = place.serve(&[&leaving, "--isolation", isolation]);
        // 1 for a row that is uncertain.
        for rows in
            [vec![0_usize], vec![1], vec![0, 1], vec![1, 0, 0, 1, 1, 0, 1, 1, 1], vec![0; 5]]
        {
            let values: Vec<f32> = rows.iter().flat_map(|&row| [CERTAIN, UNCERTAIN][row]).collect();
            let response = server.infer("leaving", &[Input::rows("x", 8, &values)]);
            let answer: Vec<f64> = rows.iter().flat_map(|&row| expected[row].clone()).collect();
            assert_close(&response.output(LATE), &answer);
            let named: Vec<&str> = rows.iter().map(|&row| ["early", ""][row]).collect();
            if rows.contains(&0) && rows.contains(&1) {
                assert_eq!(response.parameter("exits"), named.join(","));
            } else if rows.contains(&0) {
                assert_eq!(response.parameter("exit"), "early");
            } else {
                assert!(response.ok()["parameters"].is_null(), "{}", response.body);
            }
        }
        server.stop();
    }
}

/// A server whose task may answer from its exit, and the unit behind that exit.
fn degrading(place: &Place) -> (Server<'_>, String) {
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.0);
    let server = place.serve(&[&leaving, "--isolation", "process"]);
    server.put("/v1/tasks/leaving", &json!({ "model": "leaving", "degrade": true })).ok();
    let last = server.path("leaving").pop().unwrap();
    (server, last)
}

#[test]
fn an_exit_answers_where_the_rest_takes_too_long_or_is_stopped() {
    let place = Place::new();
    let (server, last) = degrading(&place);
    let process = server.process(&last);
    let input = [Input::rows("x", 8, &[CERTAIN, UNCERTAIN].concat())];
    let ask = |timeout: u64| {
        let parameters = json!({ "timeout": timeout });
        server.infer_with("leaving", &input, &parameters)
    };
    let expected = [early(&CERTAIN), early(&UNCERTAIN)].concat();
    let first = ask(20_000_000);
    assert!(first.ok()["parameters"].is_null(), "{}", first.body);

    // The unit behind the exit takes what is sent to it, and does nothing. It may have been stopped
    // with cores that the exit needs, and then they are taken from it.
    signal("STOP", process);
    let response = ask(2_000_000);
    assert_eq!(response.parameter("degraded"), true);
    assert_eq!(response.parameter("exit"), "early");
    let reason = response.parameter("degraded_reason");
    assert!(reason.as_str().unwrap().contains("deadline"), "{reason}");
    assert_close(&response.output(LATE), &expected);

    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(20_000_000));
        server.client.wait_for_requests("leaving", 1);
        let stopping = scope.spawn(|| server.client.post(&format!("/v1/units/{last}/stop")));
        let response = asking.join().unwrap();
        assert_eq!(response.parameter("degraded"), true);
        let reason = response.parameter("degraded_reason");
        assert!(reason.as_str().unwrap().contains("told to stop"), "{reason}");
        assert_close(&response.output(LATE), &expected);
        stopping.join().unwrap().ok();
    });
    let metrics = server.metrics();
    let counted = metrics.lines().find(|line| line.starts_with("tessera_degraded_total{"));
    assert!(counted.is_some_and(|line| line.ends_with(" 2")), "{counted:?}");
    server.stop();
}

#[test]
fn an_exit_answers_where_the_rest_was_stopped_before() {
    let place = Place::new();
    let (server, last) = degrading(&place);
    server.post(&format!("/v1/units/{last}/stop")).ok();
    wait_until("it is stopped", || server.instance(&last)["state"] == "stopped");
    let response = server.infer("leaving", &[Input::row(&UNCERTAIN)]);
    assert_eq!(response.parameter("degraded"), true);
    assert_close(&response.output(LATE), &early(&UNCERTAIN));
    // One that is certain needs nothing of what was stopped.
    set_threshold(&server, 0.5);
    let response = server.infer("leaving", &[Input::row(&CERTAIN)]);
    assert_eq!(response.parameter("exit"), "early");
    assert!(response.parameter("degraded").is_null(), "{}", response.body);
    server.stop();
}
