//! Starting and stopping: ports, what is kept, damage, and nobody left behind.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::common::files;
use crate::http::{Response, try_call};
use crate::models::{SLOW_WIDTH, layers, numbers, row, slow, with_exit};
use crate::server::{Input, PATIENCE, Place, assert_close, signal, wait_until, within};

#[test]
fn a_server_that_is_told_to_stop_answers_what_it_has_accepted() {
    const COUNT: u64 = 12;
    let place = Place::new();
    let slow = place.model("slow", &slow());
    let server = place.serve(&[&slow]);
    let values = numbers(SLOW_WIDTH, 1);
    let expected = server.infer("slow", &[Input::row(&values)]).output("y");
    let client = server.client.clone();
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let ask = || {
            let answer = client.infer("slow", &[Input::row(&values)]);
            answered.fetch_add(1, Ordering::SeqCst);
            answer
        };
        let asking: Vec<_> = (0..COUNT).map(|_| scope.spawn(ask)).collect();
        // Those that are answered are counted first, so that none is counted twice.
        wait_until("all are accepted", || {
            let done = answered.load(Ordering::SeqCst);
            done + client.task("slow")["in_flight"].as_u64().unwrap() >= COUNT
        });
        signal("TERM", server.id());
        for asking in asking {
            assert_close(&asking.join().unwrap().output("y"), &expected);
        }
    });
    assert_eq!(server.end().code(), Some(0), "{}", place.errors());
}

#[test]
fn requests_at_units_in_processes_are_answered_before_a_server_stops() {
    const COUNT: u64 = 5;
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&chain, &input, &[])["y"];
    let server = place.serve(&[&chain, "--isolation", "process"]);
    let unit = server.path("chain").remove(0);
    let process = server.process(&unit);
    let client = server.client.clone();
    signal("STOP", process);
    std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..COUNT).map(|_| scope.spawn(|| client.infer("chain", &input))).collect();
        client.wait_for_requests("chain", COUNT);
        signal("TERM", server.id());
        // It takes no more from then on: refused while it waits, or gone.
        let is_closed = within(PATIENCE, || {
            let ready = try_call(&client.http, "GET", "/v2/health/ready", "");
            !ready.is_ok_and(|ready| ready.status == 200)
        });
        assert!(is_closed);
        client.infer("chain", &input).refusal(503);
        signal("CONT", process);
        for asking in asking {
            assert_close(&asking.join().unwrap().output("y"), expected);
        }
    });
    assert_eq!(server.end().code(), Some(0), "{}", place.errors());
}

#[test]
fn a_server_that_is_killed_leaves_no_process_behind() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1, 2]));
    let server = place.serve(&[&chain, "--isolation", "process", "--blocks", "3", "--no-fusion"]);
    assert_eq!(place.processes().len(), 4);
    server.infer("chain", &[Input::row(&row(1))]).ok();
    signal("KILL", server.id());
    assert_eq!(server.end().signal(), Some(9));
}

#[test]
fn a_second_server_is_told_which_ports_and_which_store_are_taken() {
    let place = Place::new();
    let server = place.serve(&[]);
    let port = |name: &str| {
        let address = server.announced[name].as_str().unwrap();
        address.rsplit(':').next().unwrap().to_owned()
    };
    let ports = ["http", "grpc", "metrics", "control"].map(port);
    let [http, grpc, metrics, control] = ports.each_ref().map(String::as_str);
    let elsewhere = Place::new();
    let arguments = ["--http", http, "--grpc", grpc, "--metrics", metrics, "--control", control];
    let ran = elsewhere.serve_in_vain(&arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    for (option, port) in ["--http", "--grpc", "--metrics", "--control"].iter().zip(&ports) {
        for word in [format!("{option}: "), format!(":{port}"), format!("{option} PORT")] {
            assert!(ran.err.contains(&word), "no {word} in: {}", ran.err);
        }
    }
    // Only one of them is wrong, and only that one is told.
    let arguments = ["--http", "0", "--grpc", "0", "--metrics", metrics, "--control", "0"];
    let ran = elsewhere.serve_in_vain(&arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("--metrics") && !ran.err.contains("--http"), "{}", ran.err);
    assert!(!elsewhere.repository().exists());

    let any = ["--http", "0", "--grpc", "0", "--metrics", "0", "--control", "0"];
    let ran = place.serve_in_vain(&any);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("intent.redb is used by another server"), "{}", ran.err);
    server.stop();
}

/// The elements of the first output, whatever it is called.
fn first_output(response: &Response) -> Vec<f64> {
    let answer = response.ok();
    response.output(answer["outputs"][0]["name"].as_str().unwrap())
}

#[test]
fn a_block_that_is_gone_keeps_no_other_task_from_being_served_again() {
    let place = Place::new();
    let good = place.model("good", &layers(&[0, 1]));
    let bad = place.split("bad", &layers(&[2, 3]), &["--blocks", "1"]);
    let input = [Input::row(&row(1))];
    for isolation in ["thread", "process"] {
        let server = place.serve(&[&good, "--isolation", isolation, "--blocks", "1"]);
        server.put("/v1/tasks/bad", &json!({ "model": "bad" })).ok();
        server.put("/v1/tasks/worse", &json!({ "model": "bad", "deadline_ms": 5 })).ok();
        let expected = server.infer("good", &input).output("y");
        server.stop();

        let blocks = place.repository().join("blocks");
        let file = blocks.join(&bad[0][..2]).join(&bad[0]);
        let aside = place.path().join("aside");
        fs::rename(&file, &aside).unwrap();
        let server = place.serve(&["--isolation", isolation]);
        assert_close(&server.infer("good", &input).output("y"), &expected);
        for task in ["bad", "worse"] {
            let status = server.get(&format!("/v1/tasks/{task}"));
            assert_eq!(status["state"], "unavailable", "{status}");
            assert!(status["reason"].as_str().unwrap().contains(&bad[0][..12]), "{status}");
            server.infer(task, &input).refusal(404);
        }
        let http = server.announced["http"].as_str().unwrap();
        let ready = |path: &str| try_call(http, "GET", path, "").unwrap().status;
        assert_ne!(ready("/v2/health/ready"), 200);
        assert_eq!(ready("/v2/models/good/ready"), 200);
        // It comes back, and is asked for again.
        fs::rename(&aside, &file).unwrap();
        server.put("/v1/tasks/bad", &json!({ "model": "bad" })).ok();
        server.delete("/v1/tasks/worse").ok();
        assert_eq!(ready("/v2/health/ready"), 200);
        server.infer("bad", &input).ok();
        server.stop();
    }
}

#[test]
fn a_server_without_models_serves_what_was_served_before() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1, 2, 3]));
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.5);
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&chain, &leaving, "--blocks", "2"]);
    let path = json!({ "path": ["chain/0", "chain/1"], "deadline_ms": 9000 });
    server.put("/v1/tasks/listed", &path).ok();
    server.put("/v1/tasks/listed", &json!({ "path": ["chain/0"], "deadline_ms": 9000 })).ok();
    server.put("/v1/tasks/leaving/exits/early", &json!({ "threshold": 0.25 })).ok();
    let (system, tasks) = (server.get("/v1/system"), server.get("/v1/tasks"));
    let expected = ["chain", "listed"].map(|task| first_output(&server.infer(task, &input)));
    server.stop();

    let server = place.serve(&[]);
    assert_eq!(server.get("/v1/system"), system);
    assert_eq!(server.get("/v1/tasks"), tasks);
    assert_eq!(server.task("listed")["version"], "2");
    assert_eq!(server.task("leaving")["exits"][0]["threshold"], 0.25);
    for (task, expected) in ["chain", "listed"].iter().zip(&expected) {
        assert_close(&first_output(&server.infer(task, &input)), expected);
    }
    server.stop();

    // Models on the command line are all there is then; without a store nothing is kept.
    let server = place.serve(&[&leaving, "--blocks", "2", "--no-store"]);
    assert_eq!(server.get("/v1/tasks")["tasks"].as_array().unwrap().len(), 1);
    server.stop();
    let server = place.serve(&[]);
    assert_eq!(server.get("/v1/tasks"), tasks);
    server.stop();
}

#[test]
fn a_repository_that_was_damaged_is_named_with_what_is_wrong() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let input = [Input::row(&row(1))];
    place.serve(&[&chain]).stop();
    let folders = fs::read_dir(place.repository().join("weights")).unwrap();
    let folder = folders.map(|entry| entry.unwrap().path()).min().unwrap();
    let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut content = fs::read(&file).unwrap();
    content[100] ^= 1;
    // Content is read-only; what replaces it need not be.
    fs::remove_file(&file).unwrap();
    fs::write(&file, &content).unwrap();
    let hash = file.file_name().unwrap().to_str().unwrap();
    let any = ["--http", "0", "--grpc", "0", "--metrics", "0", "--control", "0"];
    for isolation in ["thread", "process"] {
        let arguments = [&any[..], &["--isolation", isolation]].concat();
        let ran = place.serve_in_vain(&arguments);
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert_eq!(ran.out, "");
        let last = ran.err.lines().last().unwrap_or_default();
        for word in ["tessera: ", &format!("weight {}", &hash[..12]), "altered"] {
            assert!(last.contains(word), "no {word} in: {}", ran.err);
        }
        place.is_left_clean();
    }
    // Whoever has the right bytes heals it.
    let server = place.serve(&[&chain]);
    let expected = &place.run(&chain, &input, &[])["y"];
    assert_close(&server.infer("chain", &input).output("y"), expected);
    server.stop();
}

#[test]
fn a_prepared_block_that_was_damaged_is_not_used() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&chain, &input, &[])["y"];
    place.serve(&[&chain]).stop();
    let prepared = place.repository().join("serve/prepared");
    for file in files(&prepared).into_iter().filter(|file| file.ends_with("weights")) {
        let mut content = fs::read(&file).unwrap();
        content.iter_mut().skip(3).step_by(4).for_each(|byte| *byte = 0x3f);
        fs::remove_file(&file).unwrap();
        fs::write(&file, &content).unwrap();
    }
    let server = place.serve(&[]);
    assert_close(&server.infer("chain", &input).output("y"), expected);
    server.stop();
}

#[test]
fn models_that_can_not_be_served_are_refused_in_one_line() {
    let place = Place::new();
    place.model("chain", &layers(&[0]));
    fs::create_dir(place.path().join("other")).unwrap();
    fs::copy(place.path().join("chain.onnx"), place.path().join("other/chain.onnx")).unwrap();
    fs::write(place.path().join("garbage.onnx"), b"garbage").unwrap();
    let any = ["--http", "0", "--grpc", "0", "--metrics", "0", "--control", "0"];
    let cases: [(&[&str], &[&str]); 5] = [
        (&["nobody.onnx"], &["nobody.onnx"]),
        (&["garbage.onnx"], &["garbage.onnx"]),
        (&["x=chain.onnx", "x=other/chain.onnx"], &["chain.onnx", "other/chain.onnx", "\"x\""]),
        (&["chain.onnx", "--exit", "never=0.5"], &["chain.onnx", "never"]),
        (&["chain.onnx", "--isolation", "house"], &["house", "thread", "process"]),
    ];
    for (arguments, words) in cases {
        let ran = place.serve_in_vain(&[arguments, &any[..]].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        for word in words {
            assert!(ran.err.contains(word), "no {word} in: {}", ran.err);
        }
    }
    place.is_left_clean();
}
