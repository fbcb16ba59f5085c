//! Units of nodes in processes of their own: over two nodes, killed, and between hosts.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::ErrorKind;
use tessera_lab::{Lab, LabHost};

use crate::cluster::{join_address, node_command, start_controller, start_node};
use crate::common::text;
use crate::http::call;
use crate::models::{layers, row};
use crate::server::{Input, Place, Server, assert_close, signal, wait_until};

/// The processes of a task's units, by the nodes that they run at.
fn processes(controller: &Server<'_>) -> Vec<(String, u64)> {
    let units = controller.get("/v1/units");
    let units = units["units"].as_array().unwrap().iter();
    let process = |unit: &Value| {
        let process = unit["instances"][0]["process"].as_u64().unwrap_or_default();
        (unit["node"].as_str().unwrap().to_owned(), process)
    };
    units.map(process).collect()
}

fn process_at(controller: &Server<'_>, node: &str) -> u64 {
    let found = processes(controller).into_iter().find(|(at, _)| at == node);
    found.map_or(0, |(_, process)| process)
}

/// Whether a process has a text where others may look: its arguments and its environment.
fn shows(process: u64, text: &str) -> bool {
    ["cmdline", "environ"].iter().any(|file| {
        let shown = fs::read(format!("/proc/{process}/{file}")).unwrap();
        String::from_utf8_lossy(&shown).contains(text)
    })
}

#[test]
fn units_of_nodes_in_processes_are_killed_under_load_and_every_request_is_answered() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let controller = start_controller(&place, &["--isolation", "process"]);
    let (edge, cloud) =
        (start_node(&place, &controller, "edge"), start_node(&place, &controller, "cloud"));
    let task = json!({ "model": "m", "node": ["edge", "cloud"] });
    controller.put("/v1/tasks/m", &task).ok();
    let input = || [Input::row(&row(1))];
    let expected = &place.run("m.onnx", &input(), &[])["y"];
    let begun = processes(&controller);
    assert!(begun.iter().all(|(_, process)| *process > 0), "{begun:?}");
    // Each process is its node to others, and shows nobody what makes it so.
    let identity = place.path().join("edge/serve/identity.json");
    let identity: Value = serde_json::from_slice(&fs::read(identity).unwrap()).unwrap();
    let secret = identity["key_pem"].as_str().unwrap().lines().nth(1).unwrap().to_owned();
    assert!(!shows(process_at(&controller, "edge"), &secret));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = [&edge.client, &cloud.client, &edge.client, &cloud.client]
            .into_iter()
            .map(|gateway| {
                let (input, is_over) = (&input, &is_over);
                scope.spawn(move || {
                    let mut answers = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        assert_close(&gateway.infer("m", &input()).output("y"), expected);
                        answers += 1;
                    }
                    answers
                })
            })
            .collect();
        for node in ["cloud", "edge", "cloud"] {
            // A request that was hit twice may have been the cause, and is not tried a third time.
            std::thread::sleep(Duration::from_secs(1));
            let killed = process_at(&controller, node);
            signal("KILL", killed);
            wait_until("another has taken its place", || {
                let now = process_at(&controller, node);
                now > 0 && now != killed
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
        for thread in asking {
            assert!(thread.join().unwrap() > 1);
        }
    });
    // One that says otherwise runs on threads.
    let threads = json!({ "model": "m", "node": "edge", "isolation": "thread" });
    controller.put("/v1/tasks/m", &threads).ok();
    wait_until("processes have ended", || processes(&controller).iter().all(|(_, id)| *id == 0));
    assert_close(&cloud.infer("m", &input()).output("y"), expected);
    controller.put("/v1/tasks/m", &task).ok();
    assert_close(&cloud.infer("m", &input()).output("y"), expected);
    for server in [&edge, &cloud, &controller] {
        signal("TERM", server.id());
    }
    for mut server in [edge, cloud, controller] {
        wait_until("it ends", || server.has_ended());
    }
    place.is_left_clean();
}

/// A lab, where this machine can have one.
fn lab() -> Option<Lab> {
    match Lab::new() {
        Ok(lab) => Some(lab),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The same command, run at a host.
fn at_host(host: &LabHost, command: &Command) -> Command {
    let mut there = host.command(text(Path::new(command.get_program())));
    there.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        there.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => there.env(name, value),
            None => there.env_remove(name),
        };
    }
    there
}

#[test]
fn processes_of_nodes_on_different_hosts_reach_each_other_also_with_renewed_certificates() {
    const CERTIFICATE_LIFE: u64 = 10;
    let Some(mut lab) = lab() else { return };
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let names = ["controller", "edge", "cloud"];
    let hosts = names.map(|name| lab.add_host(name).unwrap());
    let repository = place.repository();
    let life = CERTIFICATE_LIFE.to_string();
    let listen = format!("{}:8004", hosts[0].address());
    let mut command = place.command("controller");
    command.args(["--repo", text(&repository), "--control", "0", "--json"]);
    command.args(["--listen", &listen, "--certificate-life", &life, "--isolation", "process"]);
    let controller = Server::start(&place, &mut at_host(&hosts[0], &command));
    let at_controller = |ask: &mut (dyn FnMut() + Send)| hosts[0].run_inside(ask).unwrap();
    let mut tokens = Vec::new();
    at_controller(&mut || {
        for _ in 0..2 {
            let life = json!({ "life_seconds": 60 }).to_string();
            let made = call(&controller.control, "POST", "/v1/tokens", &life).ok();
            tokens.push(made["token"].as_str().unwrap().to_owned());
        }
    });
    let start = |number: usize| {
        let address = hosts[number].address().to_string();
        let mut command = node_command(&place, &join_address(&controller), names[number]);
        command.args(["--token", &tokens[number - 1], "--listen", &address]);
        Server::start(&place, &mut at_host(&hosts[number], &command))
    };
    let (edge, _cloud) = (start(1), start(2));
    let task = json!({ "model": "m", "node": ["edge", "cloud"] });
    at_controller(&mut || {
        wait_until("both are attached", || {
            let nodes = controller.get("/v1/nodes");
            let nodes = nodes["nodes"].as_array().unwrap();
            nodes.iter().filter(|node| node["state"] == "attached").count() == 2
        });
        controller.put("/v1/tasks/m", &task).ok();
    });
    let expected = &place.run("m.onnx", &[Input::row(&row(1))], &[])["y"];
    let ask = || {
        let answered = hosts[1].run_inside(|| edge.infer("m", &[Input::row(&row(1))]).output("y"));
        assert_close(&answered.unwrap(), expected);
    };
    ask();
    let before = lab.traffic(&hosts[1], &hosts[2]).bytes;
    ask();
    assert!(lab.traffic(&hosts[1], &hosts[2]).bytes > before, "it went over the link");
    // Those that both began with are not believed any more: what connects now shows another.
    std::thread::sleep(Duration::from_secs(CERTIFICATE_LIFE + 2));
    let mut killed = 0;
    at_controller(&mut || killed = process_at(&controller, "cloud"));
    signal("KILL", killed);
    at_controller(&mut || {
        wait_until("another has taken its place", || {
            let now = process_at(&controller, "cloud");
            now > 0 && now != killed
        });
    });
    ask();
}
