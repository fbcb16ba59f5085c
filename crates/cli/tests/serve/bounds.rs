//! What keeps a server whole that others reach: who may reach it, what units may take, a disk that
//! is full, and tasks that want all of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::text;
use crate::http::call;
use crate::models::{SLOW_WIDTH, layers, numbers, row, slow};
use crate::server::{Input, Place, Server, wait_until};

#[test]
fn a_server_that_others_reach_starts_only_with_tokens_and_tls_or_where_that_is_waived() {
    let place = Place::new();
    let model = place.model("chain", &layers(&[0]));
    let tokens = place.path().join("tokens");
    fs::write(&tokens, "ops change,infer 0123456789abcdef\n").unwrap();
    let tokens = ["--token-file", text(&tokens)];
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/certificates");
    let (certificate, key) = (files.join("server.pem"), files.join("server.key"));
    let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key)];
    for host in ["0.0.0.0", "::"] {
        for (given, missing) in [
            (&[][..], "which needs --token-file (or --tls-client-ca) and --tls-cert"),
            (&tokens, "which needs --tls-cert and --tls-key"),
            (&tls, "which needs --token-file (or --tls-client-ca)"),
        ] {
            let arguments = [&[model.as_str(), "--host", host], given].concat();
            let ran = place.serve_in_vain(&arguments);
            assert_eq!(ran.code, Some(1), "{}", ran.err);
            assert!(ran.err.contains(missing) && ran.err.contains("--insecure"), "{}", ran.err);
        }
    }
    // Nothing was made.
    assert!(!place.repository().exists());
    let server = place.serve(&[&[model.as_str(), "--host", "0.0.0.0"], &tokens[..], &tls].concat());
    let port = server.announced["http"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let plain = crate::http::try_call(&format!("127.0.0.1:{port}"), "GET", "/v2", "");
    assert!(plain.is_err(), "{plain:?}");
    server.stop();
    let server = place.serve(&[&model, "--host", "0.0.0.0", "--insecure"]);
    let port = server.announced["http"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(call(&format!("127.0.0.1:{port}"), "GET", "/v2", "").status, 200);
    server.stop();
}

#[test]
fn the_process_of_an_instance_has_a_limit_on_memory_and_ends_before_the_server() {
    let place = Place::new();
    let model = place.model("chain", &layers(&[0]));
    let server = place.serve(&[&model, "--isolation", "process", "--max-run-memory", "300MB"]);
    server.infer("chain", &[Input::row(&row(1))]).ok();
    let unit = server.path("chain").remove(0);
    let read =
        |process: u64, file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
    let limits = read(server.process(&unit), "limits");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max data size")).unwrap();
    let limit = limit.split_whitespace().next().unwrap();
    let limit: u64 = limit.parse().unwrap_or_else(|_| panic!("no limit: {limits}"));
    // What it has, what runs may take, and a bit more.
    assert!((812_000_000..4_000_000_000).contains(&limit), "{limit}");
    let score = |process: u64| read(process, "oom_score_adj").trim().parse::<i64>().unwrap();
    let (own, of_unit) = (score(server.id()), score(server.process(&unit)));
    assert_eq!(of_unit, 500);
    assert!(own < of_unit, "{own}");
    let own = read(server.id(), "limits");
    let own = own.lines().find_map(|line| line.strip_prefix("Max data size")).unwrap();
    assert!(own.trim_start().starts_with("unlimited"), "{own}");
    server.stop();
}

/// A server whose repository is a disk of its own, of a few megabytes.
fn serve_from_small_disk<'a>(place: &'a Place, model: &str, megabytes: u32) -> Option<Server<'a>> {
    let tried =
        Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let mounts = tried.is_ok_and(|tried| tried.status.success());
    if !mounts {
        eprintln!("SKIPPED: no namespaces to mount a small disk in");
        return None;
    }
    let repository = place.repository();
    fs::create_dir_all(&repository).unwrap();
    let mount = format!(
        "mount -t tmpfs -o size={megabytes}m none \"$TESSERA_REPO\" && exec \"$0\" serve \"$@\""
    );
    let program = place.command("serve").get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &mount]).arg(program);
    command.args([model, "--engine", "rten", "--json"]);
    for port in ["--http", "--grpc", "--metrics", "--control"] {
        command.args([port, "0"]);
    }
    command.current_dir(place.path()).env("TESSERA_REPO", &repository).env("TESSERA_LOG", "off");
    command.env("TMPDIR", place.path().join("temporary"));
    Some(Server::start(place, &mut command))
}

#[test]
fn a_disk_that_is_full_refuses_changes_and_takes_them_again_when_it_is_not() {
    let place = Place::new();
    let model = place.model("chain", &layers(&[0]));
    let Some(server) = serve_from_small_disk(&place, &model, 24) else { return };
    let input = [Input::row(&row(1))];
    let expected = server.infer("chain", &input).output("y");
    // Its disk, which is seen by its process alone.
    let disk = PathBuf::from(format!("/proc/{}/root{}", server.id(), text(&place.repository())));
    let change = |name: &str| {
        // Large enough to need another page of the store.
        let body = json!({ "model": "chain", "exits": {}, "deadline_ms": 1000 });
        server.client.put(&format!("/v1/tasks/{name}{}", "x".repeat(100)), &body).status
    };
    assert_eq!(change("before"), 200);
    let filler = disk.join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    let refused = (0..40).any(|number| change(&format!("amid{number}")) != 200);
    assert!(refused, "a full disk took 40 changes");
    assert_eq!(server.infer("chain", &input).output("y"), expected);
    fs::remove_file(filler).unwrap();
    // The store is opened anew.
    wait_until("changes are taken again", || change("after") == 200);
    let tasks = server.get("/v1/system")["tasks"].as_object().unwrap().len();
    assert!(tasks >= 3, "{tasks}");
    assert_eq!(server.infer("chain", &input).output("y"), expected);
    // What was changed is in the store, and the trail goes on.
    let trail = fs::read_to_string(disk.join("serve/audit.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(trail.lines().last().unwrap()).unwrap();
    assert!(last["names"][0].as_str().unwrap().starts_with("after"), "{last}");
    assert_eq!(last["status"], 200);
    server.stop();
}

#[test]
fn tasks_that_want_all_cores_get_them_by_weight() {
    let place = Place::new();
    let model = place.model("slow", &slow());
    let (heavy, light) = (format!("heavy={model}"), format!("light={model}"));
    let server = place.serve(&[&heavy, &light, "--cores", "1", "--no-batching"]);
    server.put("/v1/tasks/heavy", &json!({ "model": "heavy", "weight": 6 })).ok();
    server.put("/v1/tasks/light", &json!({ "model": "light", "weight": 1 })).ok();
    let values = numbers(SLOW_WIDTH, 1);
    let (over, counts) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let client = &server.client;
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (task, answered) = (["heavy", "light"][number % 2], &counts[number % 2]);
            let (over, values) = (&over, &values);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let answer = client.infer(task, &[Input::row(values)]);
                    answered.fetch_add(usize::from(answer.status == 200), Ordering::Relaxed);
                }
            });
        }
        // Until there are enough of them to tell.
        let start = Instant::now();
        let total = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
        while total() < 150 && start.elapsed() < Duration::from_secs(40) {
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
    });
    let [heavy, light] = counts.map(AtomicUsize::into_inner);
    // Six to one, give or take what is on its way when others come.
    assert!(light > 0 && heavy > 2 * light, "{heavy} and {light} were answered");
    server.stop();
}
