//! Units that are stopped, killed, hang, or can't be started again.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::models::{layers, row};
use crate::server::{Input, Place, assert_close, signal, wait_until};

#[test]
fn a_unit_that_was_stopped_is_told_as_the_reason_until_it_is_started() {
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0, 1, 2]));
    let bees = place.model("bees", &layers(&[0, 1, 9]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&ants, &input, &[])["y"];
    let server = place.serve(&[&ants, &bees]);
    let path = server.path("ants");
    // Of the common unit both are told, of the other one only its task.
    for (unit, is_common) in [(&path[0], true), (&path[1], false)] {
        let stopped = server.post(&format!("/v1/units/{unit}/stop")).ok();
        assert_eq!(stopped["instances"][0]["state"], "stopped", "{stopped}");
        let message = server.infer("ants", &input).refusal(503);
        for word in ["ants", unit, "told to stop"] {
            assert!(message.contains(word), "no {word} in: {message}");
        }
        let task = server.task("ants");
        assert_eq!(task["state"], "unavailable", "{task}");
        assert!(task["reason"].as_str().unwrap().contains(unit.as_str()), "{task}");
        let status = server.infer("bees", &input).status;
        assert_eq!(status, if is_common { 503 } else { 200 });
        let answers = server.post(&format!("/v1/units/{unit}/ping")).ok();
        let error = answers["answers"][0]["error"].as_str();
        assert!(error.is_some_and(|error| error.contains("not running")), "{answers}");

        let started = server.post(&format!("/v1/units/{unit}/start")).ok();
        assert_eq!(started["instances"][0]["state"], "up", "{started}");
        assert_close(&server.infer("ants", &input).output("y"), expected);
        server.infer("bees", &input).ok();
        assert_eq!(server.task("ants")["state"], "ready");
    }
    let message = server.post("/v1/units/nobody/stop").refusal(404);
    assert!(message.contains("nobody"), "{message}");
    server.stop();
}

#[test]
fn a_unit_that_was_stopped_stays_so_while_other_tasks_change() {
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0]));
    let bees = place.model("bees", &layers(&[9]));
    let server = place.serve(&[&ants, &bees]);
    let unit = server.path("ants").remove(0);
    server.post(&format!("/v1/units/{unit}/stop")).ok();
    server.put("/v1/tasks/bees", &json!({ "model": "bees", "deadline_ms": 9000 })).ok();
    assert_eq!(server.instance(&unit)["state"], "stopped");
    server.stop();
}

#[test]
fn a_process_that_is_killed_or_hangs_is_replaced_and_its_requests_are_answered() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1, 2]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&chain, &input, &[])["y"];
    let server = place.serve(&[&chain, "--isolation", "process", "--blocks", "2", "--no-fusion"]);
    let path = server.path("chain");
    assert_eq!(path.len(), 2);
    server.infer("chain", &input).ok();
    // The first and the last unit, and whether it is killed or only does nothing more.
    for (unit, is_killed) in [(&path[0], true), (&path[1], true), (&path[0], false)] {
        let before = server.instance(unit);
        let process = server.process(unit);
        signal("STOP", process);
        let client = &server.client;
        std::thread::scope(|scope| {
            let asking: Vec<_> =
                (0..3).map(|_| scope.spawn(|| client.infer("chain", &input))).collect();
            client.wait_for_requests("chain", 3);
            if is_killed {
                signal("KILL", process);
            }
            for asking in asking {
                assert_close(&asking.join().unwrap().output("y"), expected);
            }
        });
        wait_until("it is back", || server.instance(unit)["state"] == "up");
        let after = server.instance(unit);
        assert_ne!(after["process"], before["process"]);
        assert_eq!(after["restarts"], before["restarts"].as_u64().unwrap() + 1, "{after}");
        assert_close(&server.infer("chain", &input).output("y"), expected);
        assert_eq!(place.processes().len(), 3, "a server and two units");
    }
    let metrics = server.metrics();
    let retried = metrics.lines().find(|line| line.starts_with("tessera_requests_retried_total{"));
    assert!(retried.is_some_and(|line| !line.ends_with(" 0")), "{retried:?}");
    server.stop();
}

#[test]
fn units_that_are_killed_at_the_same_time_find_each_other_again() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1, 2]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&chain, &input, &[])["y"];
    let server = place.serve(&[&chain, "--isolation", "process", "--blocks", "3", "--no-fusion"]);
    let path = server.path("chain");
    for _ in 0..3 {
        assert_close(&server.infer("chain", &input).output("y"), expected);
        let before: Vec<_> = path.iter().map(|unit| server.process(unit)).collect();
        before.iter().for_each(|process| signal("KILL", *process));
        wait_until("all are back", || {
            path.iter().zip(&before).all(|(unit, process)| {
                let now = server.instance(unit);
                now["state"] == "up" && now["process"] != json!(process)
            })
        });
    }
    assert_close(&server.infer("chain", &input).output("y"), expected);
    server.stop();
}

#[test]
fn a_unit_that_can_not_be_started_again_is_told_as_failed_until_it_can() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&chain, "--isolation", "process"]);
    server.infer("chain", &input).ok();
    let unit = server.path("chain").remove(0);
    let hashes = server.get(&format!("/v1/units/{unit}"))["blocks"].clone();
    let hash = hashes[0].as_str().unwrap();
    let file = place.repository().join("blocks").join(&hash[..2]).join(hash);
    let hidden = place.path().join("hidden");
    fs::rename(&file, &hidden).unwrap();

    signal("KILL", server.process(&unit));
    // Who asks meanwhile waits as long as there is hope.
    let start = Instant::now();
    let message = server.infer("chain", &input).refusal(503);
    assert!(message.contains(&unit), "{message}");
    wait_until("it has failed", || server.instance(&unit)["state"] == "failed");
    let reason = server.instance(&unit)["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains(&hash[..12]), "{reason}");
    // Now there is none.
    let asked = Instant::now();
    let message = server.infer("chain", &input).refusal(503);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for word in ["chain", &unit, &hash[..12]] {
        assert!(message.contains(word), "no {word} in: {message}");
    }
    let task = server.task("chain");
    assert_eq!(task["state"], "unavailable", "{task}");

    fs::rename(&hidden, &file).unwrap();
    server.post(&format!("/v1/units/{unit}/start")).ok();
    server.infer("chain", &input).ok();
    server.stop();
}

#[test]
fn a_unit_that_failed_does_not_keep_other_tasks_from_changing() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let other = place.model("other", &layers(&[9]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&chain, &other, "--isolation", "process"]);
    let unit = server.path("chain").remove(0);
    let hashes = server.get(&format!("/v1/units/{unit}"))["blocks"].clone();
    let hash = hashes[0].as_str().unwrap();
    let file = place.repository().join("blocks").join(&hash[..2]).join(hash);
    fs::rename(&file, place.path().join("hidden")).unwrap();
    signal("KILL", server.process(&unit));
    wait_until("it has failed", || server.instance(&unit)["state"] == "failed");

    server.put("/v1/tasks/other", &json!({ "model": "other", "deadline_ms": 9000 })).ok();
    server.infer("other", &input).ok();
    assert_eq!(server.instance(&unit)["state"], "failed");
    server.stop();
}

#[test]
fn with_two_instances_one_may_be_killed_without_a_pause() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&chain]);
    let task = json!({ "model": "chain", "replicas": 2, "isolation": "process" });
    server.put("/v1/tasks/chain", &task).ok();
    let unit = server.path("chain").remove(0);
    let status = server.get(&format!("/v1/units/{unit}"));
    let instances = status["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 2, "{status}");
    signal("KILL", instances[0]["process"].as_u64().unwrap());
    for _ in 0..20 {
        server.infer("chain", &input).ok();
    }
    wait_until("both are up", || {
        let status = server.get(&format!("/v1/units/{unit}"));
        let instances = status["instances"].as_array().unwrap();
        instances.len() == 2 && instances.iter().all(|instance| instance["state"] == "up")
    });
    server.stop();
}
