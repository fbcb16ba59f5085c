//! A host that takes away what a server needs: files that are cut short, removed models, processes
//! that don't start, too little memory.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{self, files, has_onnxruntime, text};
use crate::http::call;
use crate::models::{SLOW_WIDTH, layers, numbers, row, slow};
use crate::server::{Input, Place, assert_close, signal, wait_until};

#[test]
fn weights_that_are_cut_short_under_a_server_are_made_anew() {
    if !has_onnxruntime() {
        return;
    }
    for isolation in ["thread", "process"] {
        let place = Place::new();
        let slow = place.model("slow", &slow());
        let server = place.serve(&[&slow, "--isolation", isolation]);
        let values = numbers(SLOW_WIDTH, 1);
        let expected = server.infer("slow", &[Input::row(&values)]).output("y");
        let unit = server.path("slow").remove(0);
        let process = server.id();
        // To nothing, to a part, and by so little that all pages are there still.
        for (cut, restarts) in [(1, 1), (2, 2), (1000, 3)] {
            let weights = files(&place.repository().join("serve/prepared"));
            for path in weights.iter().filter(|path| path.ends_with("weights")) {
                let file = File::options().write(true).open(path).unwrap();
                let length = file.metadata().unwrap().len();
                file.set_len(length - length / cut).unwrap();
            }
            for _ in 0..3 {
                let answer = server.infer("slow", &[Input::row(&values)]);
                assert_close(&answer.output("y"), &expected);
            }
            let instance = server.instance(&unit);
            assert_eq!(instance["restarts"], restarts, "{isolation}: {instance}");
        }
        assert_eq!(server.id(), process);
        server.stop();
    }
}

#[test]
fn what_a_server_serves_is_not_removed_from_its_repository() {
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0, 1]));
    let input = [Input::row(&row(1))];
    let expected = &place.run(&ants, &input, &[])["y"];
    let server = place.serve(&[&ants, "--isolation", "process"]);
    let repository = place.repository();
    let folder = text(&repository);
    let remove = ["repo", "remove", "ants", "--repo", folder];
    let words = ["\"ants\"", &server.id().to_string(), "stop serving"];
    common::refuse(place.path(), &remove, &words);

    // Another model takes its name, and what runs is needed by no model any more.
    place.split("ants", &layers(&[7, 8]), &[]);
    common::succeed(place.path(), &["repo", "gc", "--repo", folder]);
    let unit = server.path("ants").remove(0);
    signal("KILL", server.process(&unit));
    assert_close(&server.infer("ants", &input).output("y"), expected);

    server.delete("/v1/tasks/ants").ok();
    common::succeed(place.path(), &remove);
    let freed = common::json(place.path(), &["repo", "gc", "--repo", folder]);
    assert!(freed["blocks"].as_u64() > Some(0), "{freed}");
    server.stop();
    assert_eq!(fs::read_dir(repository.join("holds")).unwrap().count(), 0);
}

#[test]
fn a_start_that_hangs_is_given_up_and_its_task_is_not_called_ready() {
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0]));
    let bees = place.model("bees", &layers(&[9]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&ants, &bees, "--isolation", "process"]);
    let unit = server.path("ants").remove(0);
    let expected = server.infer("ants", &input).output("y");

    // The process that comes in its place does nothing.
    let known = place.processes();
    signal("KILL", server.process(&unit));
    let hanging = stop_next_process(&place, &known);
    wait_until("it is said to load", || server.task("ants")["state"] == "loading");
    let task = server.task("ants");
    assert!(task["reason"].as_str().is_some_and(|reason| reason.contains(&unit)), "{task}");
    assert_ne!(call(&server.http, "GET", "/v2/models/ants/ready", "").status, 200);
    assert_ne!(call(&server.http, "GET", "/v2/health/ready", "").status, 200);
    assert_eq!(server.infer("bees", &input).status, 200);
    // Requests wait for the one that comes after it.
    assert_close(&server.infer("ants", &input).output("y"), &expected);
    wait_until("it is ready", || server.task("ants")["state"] == "ready");
    assert!(!place.processes().contains(&hanging));

    // A change is refused where what it starts hangs, and the next one is carried out.
    let known = place.processes();
    let started = Instant::now();
    let body = json!({ "model": "ants", "replicas": 2 });
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| server.client.put("/v1/tasks/ants", &body).refusal(503));
        stop_next_process(&place, &known);
        let message = changing.join().unwrap();
        assert!(message.contains("did nothing"), "{message}");
    });
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    server.put("/v1/tasks/bees", &json!({ "model": "bees", "replicas": 2 })).ok();
    assert_close(&server.infer("ants", &input).output("y"), &expected);
    server.stop();
}

/// Waits for a process of a server beside those that are known, and has it do nothing more.
fn stop_next_process(place: &Place, known: &[u32]) -> u32 {
    let mut found = None;
    wait_until("another process starts", || {
        found = place.processes().into_iter().find(|process| !known.contains(process));
        found.is_some()
    });
    let found = found.unwrap();
    signal("STOP", found.into());
    found
}

#[test]
fn a_change_that_needs_more_memory_than_there_is_is_refused_with_the_sum() {
    let Some(group) = MemoryGroup::make(500_000_000) else {
        eprintln!("left out: control groups for memory can't be made here");
        return;
    };
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0]));
    let input = [Input::row(&row(1))];
    let server = place.serve(&[&ants]);
    let expected = server.infer("ants", &input).output("y");
    if let Err(error) = group.add_process(server.id()) {
        eprintln!("left out: no process can be put into a control group here: {error}");
        return;
    }
    let task = |replicas| json!({ "model": "ants", "isolation": "process", "replicas": replicas });
    let message = server.put("/v1/tasks/ants", &task(64)).refusal(503);
    for word in ["the change takes about 13", "64 processes of 21 MB", "MB are available"] {
        assert!(message.contains(word), "no {word} in: {message}");
    }
    assert_close(&server.infer("ants", &input).output("y"), &expected);
    assert_eq!(place.processes().len(), 1);
    server.put("/v1/tasks/ants", &task(2)).ok();
    assert_close(&server.infer("ants", &input).output("y"), &expected);
    server.stop();
}

/// A control group that limits memory, for as long as it lives.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    fn make(bytes: u64) -> Option<Self> {
        let name = format!("tessera-test-{}", std::process::id());
        let versions = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        versions.iter().find_map(|(controller, limit)| {
            let folder = Path::new("/sys/fs/cgroup").join(controller).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            // Where the controller is off there is no such file.
            fs::write(group.0.join(limit), bytes.to_string()).ok().map(|()| group)
        })
    }

    fn add_process(&self, process: u64) -> std::io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), process.to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).ok();
    }
}
