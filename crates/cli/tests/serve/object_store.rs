//! Models in an object store: `tessera repo push` and `pull`, and clusters that have one.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::{start_controller, start_node, start_node_of};
use crate::common::{self, finish, text};
use crate::models::{layers, row, wide};
use crate::server::{Input, Place, Server, assert_close, signal, wait_until};

/// A store that is a folder of a place.
fn folder_store(place: &Place) -> String {
    format!("file://{}", place.path().join("store").display())
}

fn repo(place: &Place, arguments: &[&str]) -> Value {
    common::json(place.path(), &[&["repo"], arguments].concat())
}

fn run_at(controller: &Server<'_>, task: &str, node: &str) {
    controller.put(&format!("/v1/tasks/{task}"), &json!({ "model": "m", "node": node })).ok();
}

fn files_below(folder: &Path) -> usize {
    common::listing(folder).values().filter(|bytes| **bytes > 0).count()
}

#[test]
fn models_go_to_a_store_once_and_come_from_there_whole() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    place.split("other", &layers(&[1, 3]), &["--blocks", "2"]);
    let (store, from) = (folder_store(&place), place.repository());
    let to = place.path().join("pulled");
    let push = ["push", "--to", &store, "--repo", text(&from)];
    let pushed = repo(&place, &[&push[..], &["m"]].concat());
    assert_eq!(pushed["models"][0]["files"], 5, "{pushed}");
    let pushed = repo(&place, &push);
    let files: Vec<&Value> =
        pushed["models"].as_array().unwrap().iter().map(|model| &model["files"]).collect();
    // What they share is there already.
    assert_eq!(files, [0, 3]);
    let pull = ["pull", "--from", &store, "--repo", text(&to)];
    assert_eq!(repo(&place, &pull)["models"][0]["files"], 5);
    assert_eq!(repo(&place, &pull)["models"][1]["files"], 0);
    repo(&place, &["verify", "--repo", text(&to)]);
    let both = ["list", "--repo", text(&to)];
    assert_eq!(
        repo(&place, &both)["models"],
        repo(&place, &["list", "--repo", text(&from)])["models"]
    );
    let refused = |arguments: &[&str], why: &str| {
        let ran = finish(place.command("repo").args(arguments));
        assert!(ran.err.contains(why), "{}", ran.err);
        assert_eq!((ran.code, ran.err.trim().lines().count()), (Some(1), 1), "{}", ran.err);
    };
    refused(&["pull", "--from", &store, "--repo", text(&to), "x"], "which has m, other");
    refused(&["push", "--to", &store, "--repo", text(&to), "x"], "which has m, other");
    let wrong = finish(place.command("repo").args(["push", "--to", "ftp://x"]));
    assert!(wrong.err.contains("expected s3://BUCKET/PREFIX or file:///FOLDER"), "{}", wrong.err);
}

#[test]
fn a_push_that_is_interrupted_leaves_nothing_that_is_broken() {
    let place = Place::new();
    place.split("m", &wide(), &["--blocks", "1"]);
    let store = folder_store(&place);
    let push = ["push", "--to", &store, "--repo", text(&place.repository())].map(str::to_owned);
    for delay in 2..12 {
        let mut command = place.command("repo");
        let mut child = command.args(&push).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        // It may have ended by itself.
        if child.try_wait().unwrap().is_none() {
            signal("INT", u64::from(child.id()));
        }
        child.wait().unwrap();
        let unfinished = place.path().join("store/tmp");
        // It may have been too early for there to be any.
        let is_empty = !unfinished.exists() || common::listing(&unfinished).is_empty();
        assert!(is_empty, "{delay} ms");
    }
    repo(&place, &push.iter().map(String::as_str).collect::<Vec<_>>());
    let to = place.path().join("pulled");
    repo(&place, &["pull", "--from", &store, "--repo", text(&to), "m"]);
    repo(&place, &["verify", "--repo", text(&to)]);
}

#[test]
fn a_cluster_with_a_store_needs_neither_the_weights_nor_the_models_of_its_controller() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let (store, kept) = (folder_store(&place), place.path().join("store"));
    let controller = start_controller(&place, &["--object-store", &store]);
    let first = start_node(&place, &controller, "first");
    run_at(&controller, "m", "first");
    let input = [Input::row(&row(1))];
    let expected = first.infer("m", &input).output("y");
    wait_until("the model is in the store", || kept.join("names/m").exists());
    assert_eq!(files_below(&kept.join("weights")), 2);
    drop(first);
    fs::rename(place.repository().join("weights"), place.path().join("elsewhere")).unwrap();
    let second = start_node(&place, &controller, "second");
    run_at(&controller, "m", "second");
    assert_close(&second.infer("m", &input).output("y"), &expected);
    // While it is away, serving goes on, and what somebody has can be served.
    fs::rename(&kept, place.path().join("away")).unwrap();
    assert_close(&second.infer("m", &input).output("y"), &expected);
    let third = start_node(&place, &controller, "third");
    run_at(&controller, "copy", "third");
    assert_close(&third.infer("copy", &input).output("y"), &expected);
    fs::rename(place.path().join("away"), &kept).unwrap();
    // Another controller has nothing, and takes it from there.
    let other = Place::new();
    let controller = start_controller(&other, &["--object-store", &store]);
    let fourth = start_node(&other, &controller, "fourth");
    run_at(&controller, "m", "fourth");
    assert_close(&fourth.infer("m", &input).output("y"), &expected);
    wait_until("its weights are there, too", || {
        files_below(&other.repository().join("weights")) == 2
    });
    let refused = controller.put("/v1/tasks/x", &json!({ "model": "x" })).refusal(404);
    assert!(refused.contains("no model \"x\" in object store"), "{refused}");
}

/// Where nobody listens at the moment.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_controller_among_several_has_a_port_that_stays() {
    let place = Place::new();
    let mut command = place.command("controller");
    command.args(["--repo", text(&place.repository()), "--etcd", "http://127.0.0.1:1"]);
    let refused = finish(command.args(["--listen", "127.0.0.1:0", "--control", "0"]));
    let expected = "--listen: with --etcd, expected a port that stays, got 0";
    assert!(refused.code != Some(0) && refused.err.contains(expected), "{}", refused.err);
}

#[test]
fn controllers_with_a_store_between_them_lead_in_turn() {
    let members = match tessera_lab::EtcdMembers::start(3) {
        Ok(members) => members,
        Err(error) if error.kind() == tessera_core::ErrorKind::Unsupported => {
            return eprintln!("SKIPPED: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let (place, other) = (Place::new(), Place::new());
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let (store, input) = (folder_store(&place), [Input::row(&row(1))]);
    let etcd = members.urls().join(",");
    let shared = ["--etcd", &etcd, "--object-store", &store];
    let start = |place, name| {
        let own = ["--name", name, "--listen", &free_address()];
        start_controller(place, &[&shared[..], &own].concat())
    };
    let first = start(&place, "first");
    wait_until("the first leads", || first.try_get("/v1/nodes").is_some());
    let second = start(&other, "second");
    let node = start_node_of(&place, &[&first, &second], "a");
    run_at(&first, "m", "a");
    let expected = node.infer("m", &input).output("y");
    wait_until("the model is in the store", || place.path().join("store/names/m").exists());
    signal("KILL", first.id());
    wait_until("the second leads, and has the node", || {
        let status = second.try_get("/v1/nodes/a");
        status.is_some_and(|status| status["state"] == "attached")
    });
    assert_close(&node.infer("m", &input).output("y"), &expected);
    // It never had the model, and places it anew all the same.
    let another = start_node_of(&other, &[&second], "b");
    run_at(&second, "m", "b");
    assert_close(&another.infer("m", &input).output("y"), &expected);
    run_at(&second, "copy", "a");
    assert_close(&node.infer("copy", &input).output("y"), &expected);
}

#[cfg(feature = "s3")]
#[test]
fn a_cluster_has_its_models_in_s3() {
    let server = match tessera_lab::SeaweedServer::start() {
        Ok(server) => server,
        Err(error) if error.kind() == tessera_core::ErrorKind::Unsupported => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            return eprintln!("SKIPPED: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let place = Place::new();
    place.split("m", &wide(), &["--blocks", "1"]);
    let mut push = place.command("repo");
    push.args(["push", "--to", "s3://models/prod", "--repo", text(&place.repository())]);
    let ran = finish(push.envs(server.environment()));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // A node with its own keys, and a controller that knows nothing else.
    let other = Place::new();
    let mut command = other.command("controller");
    command.args(["--repo", text(&other.repository()), "--control", "0", "--json"]);
    command.args(["--listen", "127.0.0.1:0", "--object-store", "s3://models/prod"]);
    let controller = Server::start(&other, command.envs(server.environment()));
    let token = crate::cluster::create_token(&other, &controller);
    let address = crate::cluster::join_address(&controller);
    let mut command = crate::cluster::node_command(&other, &address, "a");
    let node = Server::start(&other, command.args(["--token", &token]).envs(server.environment()));
    run_at(&controller, "m", "a");
    let values: Vec<f32> = (0..1024).map(|number| (number % 7) as f32).collect();
    let (input, expected) = ([Input::row(&values)], crate::models::wide_output(&values));
    assert_close(&node.infer("m", &input).output("y"), &expected);
}
