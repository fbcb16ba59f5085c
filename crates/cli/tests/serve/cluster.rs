//! `tessera controller` and `tessera node`: nodes that join, compute together, die and come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Ran, finish, text};
use crate::models::{layers, row};
use crate::server::{Input, Place, Server, assert_close, engine, signal, wait_until};

/// A controller, which keeps what it has in the repository of its place.
pub(crate) fn start_controller<'a>(place: &'a Place, more: &[&str]) -> Server<'a> {
    let repository = place.repository();
    let mut command = place.command("controller");
    command.args(["--repo", text(&repository), "--control", "0", "--json"]).args(more);
    if !more.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    Server::start(place, &mut command)
}

/// Where nodes find a controller.
pub(crate) fn join_address(controller: &Server<'_>) -> String {
    controller.announced["nodes"].as_str().unwrap().to_owned()
}

/// Asks a controller as an operator does.
pub(crate) fn admin(place: &Place, controller: &Server<'_>, arguments: &[&str]) -> Ran {
    let url = format!("http://{}", controller.control);
    finish(place.command(arguments[0]).args(&arguments[1..]).args(["--controller", &url]))
}

pub(crate) fn create_token(place: &Place, controller: &Server<'_>) -> String {
    let made = admin(place, controller, &["token", "create"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    made.out.trim().to_owned()
}

/// The command of a node with a gateway.
pub(crate) fn node_command(place: &Place, address: &str, name: &str) -> std::process::Command {
    let repository = place.path().join(name);
    let mut command = place.command("node");
    command
        .args(["--join", address, "--name", name, "--repo", text(&repository)])
        .args(["--engine", engine(), "--gateway", "--json", "--drain", "2000"])
        .args(["--http", "0", "--grpc", "0", "--metrics", "0"]);
    command
}

pub(crate) fn start_node<'a>(place: &'a Place, controller: &Server<'_>, name: &str) -> Server<'a> {
    start_node_of(place, &[controller], name)
}

/// A node of several controllers, of which the first leads.
pub(crate) fn start_node_of<'a>(
    place: &'a Place,
    controllers: &[&Server<'_>],
    name: &str,
) -> Server<'a> {
    let token = create_token(place, controllers[0]);
    let mut command = node_command(place, &join_address(controllers[0]), name);
    for other in &controllers[1..] {
        command.args(["--join", &join_address(other)]);
    }
    let node = Server::start(place, command.args(["--token", &token]));
    wait_until("the node is attached", || node_state(controllers[0], name) == "attached");
    node
}

/// A node that has joined before, started again.
pub(crate) fn restart_node<'a>(place: &'a Place, address: &str, name: &str) -> Server<'a> {
    Server::start(place, &mut node_command(place, address, name))
}

pub(crate) fn node_state(controller: &Server<'_>, name: &str) -> String {
    let status = controller.get(&format!("/v1/nodes/{name}"));
    status["state"].as_str().unwrap().to_owned()
}

/// The nodes that units run at, by unit.
pub(crate) fn places(controller: &Server<'_>) -> Vec<String> {
    let units = controller.get("/v1/units");
    let nodes = units["units"].as_array().unwrap().iter();
    nodes.map(|unit| unit["node"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn wait_for_task(node: &Server<'_>, task: &str) {
    wait_until("the gateway has the task", || {
        node.infer(task, &[Input::row(&row(1))]).status == 200
    });
}

#[test]
fn a_task_over_two_nodes_answers_as_one_host_does() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2, 3]), &["--blocks", "3"]);
    let controller = start_controller(&place, &[]);
    let (edge, cloud) =
        (start_node(&place, &controller, "edge"), start_node(&place, &controller, "cloud"));
    let task = json!({ "model": "m", "node": ["edge", "cloud", "edge"] });
    let changed = controller.put("/v1/tasks/m", &task).ok();
    assert_eq!(changed["started"].as_array().unwrap().len(), 3, "{changed}");
    let mut at = places(&controller);
    at.sort();
    assert_eq!(at, ["cloud", "edge", "edge"]);
    let input = [Input::row(&row(1))];
    let expected = &place.run("m.onnx", &input, &[])["y"];
    // Either gateway answers, whoever runs the first block.
    for gateway in [&edge, &cloud] {
        assert_close(&gateway.infer("m", &input).output("y"), expected);
    }
    // What a node does not run it does not have.
    let weights = |name: &str| crate::common::listing(&place.path().join(name).join("weights"));
    let count = |name: &str| weights(name).values().filter(|bytes| **bytes > 0).count();
    assert_eq!((count("edge"), count("cloud")), (2, 1));
    let wrong = controller.put("/v1/tasks/m", &json!({ "model": "m", "node": "moon" }));
    let message = wrong.refusal(400);
    assert!(message.contains("no node \"moon\", there is cloud, edge"), "{message}");
    let wrong = controller.put("/v1/tasks/m", &json!({ "model": "m", "node": ["edge", "edge"] }));
    assert!(wrong.refusal(400).contains("one for each of its 3 blocks"));
    assert_close(&edge.infer("m", &input).output("y"), expected);
    // A node that is away keeps nobody from changing what others do.
    signal("KILL", cloud.id());
    wait_until("it is noticed", || node_state(&controller, "cloud") == "away");
    controller.put("/v1/tasks/other", &json!({ "model": "m", "node": "edge" })).ok();
    assert_close(&edge.infer("other", &input).output("y"), expected);
    controller.delete("/v1/tasks/other").ok();
    controller.delete("/v1/tasks/m").ok();
    assert!(edge.infer("m", &input).refusal(404).contains("unknown task"));
    wait_until("units are stopped", || controller.units().is_empty());
}

#[test]
fn tokens_let_in_once_and_whoever_is_refused_hears_why() {
    let place = Place::new();
    let controller = start_controller(&place, &[]);
    let join = |address: &str, name: &str, token: Option<&str>| {
        let mut command = node_command(&place, address, name);
        finish(command.args(token.map(|token| format!("--token={token}"))))
    };
    let refused = |ran: Ran, why: &str| {
        assert_eq!(ran.code, Some(1), "{}", ran.out);
        assert!(ran.err.contains(why), "{}", ran.err);
        assert_eq!(ran.err.trim().lines().count(), 1, "{}", ran.err);
    };
    let address = join_address(&controller);
    let token = create_token(&place, &controller);
    refused(join(&address, "a", None), "expected --token");
    refused(join(&address, "a", Some("nonsense")), "no token");
    let mut wrong = token.clone();
    let last = if wrong.pop() == Some('0') { '1' } else { '0' };
    wrong.push(last);
    refused(join(&address, "a", Some(&wrong)), "none of this cluster's");
    // Of another cluster, which has another authority.
    let other_place = Place::new();
    let other = start_controller(&other_place, &[]);
    let foreign = create_token(&other_place, &other);
    refused(join(&address, "a", Some(&foreign)), "not the cluster that the token is for");
    let brief = admin(&place, &controller, &["token", "create", "--life", "1"]);
    std::thread::sleep(Duration::from_millis(1500));
    refused(join(&address, "a", Some(brief.out.trim())), "it has expired");
    let revoked = create_token(&place, &controller);
    let id = revoked.split('.').nth(2).unwrap();
    assert_eq!(admin(&place, &controller, &["token", "revoke", id]).code, Some(0));
    refused(join(&address, "a", Some(&revoked)), "it was revoked");
    let start = Instant::now();
    let mut command = node_command(&place, &address, "a");
    let node = Server::start(&place, command.args(["--token", &token]));
    wait_until("the node is attached", || node_state(&controller, "a") == "attached");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    refused(join(&address, "b", Some(&token)), "it was used already");
    let second = create_token(&place, &controller);
    // Under another folder: this one belongs to the cluster.
    let elsewhere = place.path().join("elsewhere");
    let mut command = place.command("node");
    command.args(["--join", &address, "--name", "a", "--repo", text(&elsewhere)]);
    let taken = finish(command.args(["--token", &second, "--metrics", "0"]));
    refused(taken, "there is a node \"a\" already");
    let listed = admin(&place, &controller, &["token", "list"]).out;
    for state in ["used", "expired", "revoked", "valid"] {
        assert!(listed.contains(state), "{listed}");
    }
    drop(node);
}

#[test]
fn a_cluster_goes_on_without_its_controller_and_with_the_next() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let controller = start_controller(&place, &[]);
    let address = join_address(&controller);
    let (edge, cloud) =
        (start_node(&place, &controller, "edge"), start_node(&place, &controller, "cloud"));
    let task = json!({ "model": "m", "node": ["edge", "cloud"], "deadline_ms": 3000 });
    controller.put("/v1/tasks/m", &task).ok();
    let input = [Input::row(&row(1))];
    let expected = edge.infer("m", &input).output("y");
    let units = controller.units();
    signal("KILL", controller.id());
    drop(controller);
    assert_eq!(edge.infer("m", &input).output("y"), expected);
    // A node that is started meanwhile goes on with what it did last.
    signal("KILL", cloud.id());
    drop(cloud);
    let cloud = restart_node(&place, &address, "cloud");
    let controller = start_controller(&place, &["--listen", &address]);
    for name in ["edge", "cloud"] {
        wait_until("the node is back", || node_state(&controller, name) == "attached");
    }
    wait_for_task(&edge, "m");
    wait_for_task(&cloud, "m");
    assert_eq!(edge.infer("m", &input).output("y"), expected);
    assert_eq!(controller.units(), units);
}

#[test]
fn what_ran_at_a_node_that_died_runs_elsewhere_and_every_request_is_answered() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let controller = start_controller(&place, &[]);
    let gate = start_node(&place, &controller, "gate");
    // It gets nothing to do before the others are gone.
    assert_eq!(admin(&place, &controller, &["node", "drain", "gate"]).code, Some(0));
    let worker = start_node(&place, &controller, "worker");
    controller.put("/v1/tasks/m", &json!({ "model": "m" })).ok();
    assert_eq!(places(&controller), ["worker"]);
    assert_eq!(admin(&place, &controller, &["node", "undrain", "gate"]).code, Some(0));
    let input = || [Input::row(&row(1))];
    let expected = gate.infer("m", &input()).output("y");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut answers = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        assert_close(&gate.infer("m", &input()).output("y"), &expected);
                        answers += 1;
                    }
                    answers
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        signal("KILL", worker.id());
        wait_until("it runs elsewhere", || places(&controller) == ["gate"]);
        std::thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
        for thread in asking {
            assert!(thread.join().unwrap() > 1);
        }
    });
}

#[test]
fn a_node_that_is_removed_ends_and_needs_another_token() {
    let place = Place::new();
    place.split("m", &layers(&[1]), &["--blocks", "1"]);
    let controller = start_controller(&place, &[]);
    let address = join_address(&controller);
    let (first, mut second) =
        (start_node(&place, &controller, "first"), start_node(&place, &controller, "second"));
    controller.put("/v1/tasks/m", &json!({ "model": "m", "node": "second" })).ok();
    let fixed = admin(&place, &controller, &["node", "remove", "second"]);
    assert!(fixed.err.contains("says that it runs at node \"second\""), "{}", fixed.err);
    controller.put("/v1/tasks/m", &json!({ "model": "m" })).ok();
    let removed = admin(&place, &controller, &["node", "remove", "second"]);
    assert_eq!(removed.code, Some(0), "{}", removed.err);
    wait_until("it has ended", || second.has_ended());
    assert_eq!(places(&controller), ["first"]);
    wait_for_task(&first, "m");
    drop(second);
    let again = finish(&mut node_command(&place, &address, "second"));
    assert!(again.err.contains("it belongs to no cluster yet"), "{}", again.err);
    let unknown = admin(&place, &controller, &["node", "drain", "third"]);
    assert!(unknown.err.contains("no node \"third\", there is first"), "{}", unknown.err);
    let second = start_node(&place, &controller, "second");
    let nodes: Value = controller.get("/v1/nodes");
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 2);
    drop(second);
}

/// The nodes that the planner has a task's blocks at.
fn planned_places(controller: &Server<'_>) -> Vec<String> {
    let plan = controller.get("/v1/plan");
    let nodes = plan["tasks"][0]["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().map(|node| node.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_task_that_names_no_node_is_placed_by_what_nodes_find_out_and_says_why() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2, 3]), &["--blocks", "3"]);
    let controller = start_controller(&place, &[]);
    let edge = start_node(&place, &controller, "edge");
    let _cloud = start_node(&place, &controller, "cloud");
    let task = json!({ "model": "m", "input_node": "edge" });
    controller.put("/v1/tasks/m", &task).ok();
    let input = [Input::row(&row(1))];
    let expected = &place.run("m.onnx", &input, &[])["y"];
    assert_close(&edge.infer("m", &input).output("y"), expected);
    // A hop takes longer than these blocks do.
    wait_until("it is planned", || planned_places(&controller).len() == 3);
    assert_eq!(planned_places(&controller), ["edge", "edge", "edge"]);
    let is_measured = |link: &Value| {
        link["round_trip_ms"].as_f64().is_some_and(|ms| ms > 0.0)
            && link["megabits_per_second"].as_f64().is_some_and(|rate| rate > 1.0)
    };
    wait_until("links are measured both ways", || {
        let plan = controller.get("/v1/plan");
        let links = plan["links"].as_array().unwrap();
        links.len() == 2 && links.iter().all(is_measured)
    });
    let shown = admin(&place, &controller, &["plan", "--cluster"]);
    assert!(shown.out.contains("edge (3)") && shown.out.contains("Mbit/s"), "{}", shown.out);
    let plan = controller.get("/v1/plan");
    let problem = place.path().join("problem.json");
    std::fs::write(&problem, plan["problem"].to_string()).unwrap();
    // What was planned for can be planned again by hand.
    let again = finish(place.command("plan").args(["placement", text(&problem), "--json"]));
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["plan"]["models"][0]["nodes"], json!(["edge", "edge", "edge"]));
    // A node that is to do nothing gets nothing, wherever requests come in.
    admin(&place, &controller, &["node", "drain", "edge"]);
    wait_until("it is elsewhere", || places(&controller).iter().all(|node| node == "cloud"));
    assert_close(&edge.infer("m", &input).output("y"), expected);
    let wrong = json!({ "model": "m", "input_node": 7 });
    assert!(controller.put("/v1/tasks/m", &wrong).refusal(400).contains("input_node"));
    let none = admin(&place, &controller, &["plan", "--cluster", "--json"]);
    assert_eq!(none.code, Some(0), "{}", none.err);
}
