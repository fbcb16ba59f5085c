//! Requests that a web page of somebody else could have a browser send.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tessera_core::Result;
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::victim::Victim;
use crate::finding::Finding;
use crate::test_client::TestClient;
use crate::test_server::TestServer;

pub(crate) const CROSS_SITE: Attack = Attack {
    name: "cross-site",
    about: "changes and questions that a web page of somebody else sends, on every port",
    isolations: super::ON_BOTH,
    carry_out: ask_across_sites,
};

/// Headers by which a page of somebody else shows.
const FOREIGN: [&[&str]; 5] = [
    &["Host: tessera", "Origin: https://evil.example", "Content-Type: text/plain"],
    &["Host: tessera", "Origin: https://evil.example", "Content-Type: application/json"],
    &["Host: tessera", "Origin: null", "Content-Type: application/json"],
    &["Host: tessera", "Sec-Fetch-Site: cross-site", "Content-Type: application/json"],
    &["Host: evil.example", "Content-Type: application/json"],
];

/// A change that does not say that it is JSON.
const PLAIN: &[&str] = &["Host: tessera", "Content-Type: text/plain"];

fn ask_across_sites(isolation: Isolation) -> Result<Vec<Finding>> {
    let victim = Victim::start_victim(isolation, &[TinyModel::Linear], &[])?;
    let before = served_tasks(&victim.server)?;
    let changes = foreign_changes(&victim.server);
    let (mut changes_refused, mut questions_refused) = (0, 0);
    for headers in FOREIGN {
        for (address, method, path, body) in &changes {
            changes_refused +=
                usize::from(ask_status(*address, method, path, headers, body)? == 403);
        }
        for (address, path) in questions(&victim.server) {
            questions_refused += usize::from(ask_status(address, "GET", path, headers, "")? == 403);
        }
    }
    let control = victim.server.announced.control;
    let plain = ask_status(control, "POST", "/v1/system", PLAIN, &empty_system())?;
    let unchanged = usize::from(served_tasks(&victim.server)? == before);
    let answers = usize::from(victim.answers_within(std::time::Duration::from_secs(5)));
    Ok(vec![
        Finding::exactly("changes refused (403)", changes_refused, changes.len() * FOREIGN.len()),
        Finding::exactly(
            "questions refused (403)",
            questions_refused,
            questions(&victim.server).len() * FOREIGN.len(),
        ),
        Finding::exactly("status of a change as text/plain", plain.into(), 415),
        Finding::exactly("tasks unchanged", unchanged, 1),
        Finding::exactly("small request answered after", answers, 1),
    ])
}

fn empty_system() -> String {
    json!({ "tasks": {} }).to_string()
}

/// Requests that would change something: where, how, and with what.
fn foreign_changes(server: &TestServer) -> Vec<(SocketAddr, &'static str, &'static str, String)> {
    let (http, control) = (server.announced.http, server.announced.control);
    vec![
        (control, "PUT", "/v1/system", empty_system()),
        (control, "POST", "/v1/system", empty_system()),
        (control, "DELETE", "/v1/tasks/linear", String::new()),
        (http, "POST", "/v2/repository/models/linear/unload", "{}".to_owned()),
        (http, "POST", "/v2/models/linear/infer", "{}".to_owned()),
        (server.announced.grpc, "POST", "/inference.GRPCInferenceService/X", String::new()),
    ]
}

/// Pages that would let somebody else know something.
fn questions(server: &TestServer) -> [(SocketAddr, &'static str); 3] {
    let announced = &server.announced;
    [
        (announced.metrics, "/metrics"),
        (announced.control, "/v1/tasks"),
        (announced.http, "/v2/models/linear"),
    ]
}

fn ask_status(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Result<u16> {
    let mut client = TestClient::connect(address)?;
    Ok(client.send_body(method, path, headers, body.as_bytes())?.status)
}

/// The names of the tasks that there are.
fn served_tasks(server: &TestServer) -> Result<Vec<String>> {
    let found = server.call_control("GET", "/v1/tasks", None)?;
    let tasks = found.get("tasks").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(tasks.iter().map(|task| task["name"].to_string()).collect())
}
