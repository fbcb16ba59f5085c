//! What goes on beside the clients of a soak: units are killed, tasks come and go, requests are
//! cancelled, and some clients are hostile.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tessera_core::{Error, Random, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::soak_clients::{ask_request, send_at_once};
use super::soak_request::SoakRequest;
use super::soak_tally::{SoakTally, add_one};
use crate::attack::matrix_request;
use crate::hostile_connections::{leave_answer_unread, send_half_head, stall_upload};
use crate::test_client::{TestClient, TestInferRequest};
use crate::test_server::TestServer;
use crate::unit_processes::{instance_processes, kill_process};

/// What was done beside the clients.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DisturbanceCounts {
    /// Units' processes that were killed.
    pub(crate) kills: u64,
    /// Tasks that were added or removed.
    pub(crate) changes: u64,
    /// Changes that failed, by error.
    pub(crate) changes_failed: BTreeMap<String, u64>,
    /// Requests of tasks that come and go, while they are there.
    pub(crate) visitors: SoakTally,
    /// Requests whose client left before the answer.
    pub(crate) cancelled: u64,
    /// Malformed requests, stalled ones, and answers that nobody read.
    pub(crate) hostile: u64,
    /// Malformed requests that were answered as if they were none.
    pub(crate) malformed_answered: u64,
}

/// Does all of it until `over`; one thread each.
pub(crate) fn disturb_server(
    server: &TestServer,
    isolation: Isolation,
    over: &AtomicBool,
) -> Result<DisturbanceCounts> {
    let address = server.announced.http;
    std::thread::scope(|scope| {
        let killing =
            (isolation == Isolation::Process).then(|| scope.spawn(|| kill_units(server, over)));
        let changing = scope.spawn(|| change_tasks(server, over));
        let cancelling = scope.spawn(|| cancel_requests(address, over));
        let hostile = scope.spawn(|| be_hostile(address, over));
        let gone = |_| Error::lost("a client ended early");
        let mut counts = changing.join().map_err(gone)?;
        counts.kills = killing.map_or(Ok(Ok(0)), |killing| killing.join()).map_err(gone)??;
        counts.cancelled = cancelling.join().map_err(gone)?;
        (counts.hostile, counts.malformed_answered) = hostile.join().map_err(gone)?;
        Ok(counts)
    })
}

fn is_over(over: &AtomicBool) -> bool {
    over.load(Ordering::Relaxed)
}

/// Waits for so long, or until it is over.
fn pause_for(duration: Duration, over: &AtomicBool) {
    let start = Instant::now();
    while start.elapsed() < duration && !is_over(over) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills a unit every one to three seconds, once it has been of use; how many.
fn kill_units(server: &TestServer, over: &AtomicBool) -> Result<u64> {
    let (mut random, mut kills) = (Random::new(2), 0);
    while !is_over(over) {
        pause_for(Duration::from_millis(1000 + random.next_below(2000)), over);
        let processes = instance_processes(server)?;
        let useful = processes.into_iter().filter(|(_, _, is_useful)| *is_useful);
        let useful: Vec<u32> = useful.filter_map(|(_, process, _)| process).collect();
        if !useful.is_empty() && !is_over(over) {
            kill_process(useful[random.next_below(useful.len() as u64) as usize]);
            kills += 1;
        }
    }
    Ok(kills)
}

/// Adds a task and removes it, again and again; asks it in between where its answers are known.
fn change_tasks(server: &TestServer, over: &AtomicBool) -> DisturbanceCounts {
    let mut counts = DisturbanceCounts::default();
    let mut round = 0;
    while !is_over(over) {
        let task = format!("visitor{}", round % 3);
        // One that shares its unit with a task that stays, or one that has its own.
        let is_linear = round % 2 == 0;
        let model = if is_linear { TinyModel::Linear } else { TinyModel::Pooled };
        let path = format!("/v1/tasks/{task}");
        let added = server.call_control("PUT", &path, Some(&json!({ "model": model.task_name() })));
        if added.is_ok() && is_linear {
            ask_visitor(server, &task, round, &mut counts.visitors);
        }
        counts.count_change(added.err());
        pause_for(Duration::from_millis(200), over);
        counts.count_change(server.call_control("DELETE", &path, None).err());
        pause_for(Duration::from_millis(200), over);
        round += 1;
    }
    counts
}

impl DisturbanceCounts {
    fn count_change(&mut self, error: Option<Error>) {
        self.changes += 1;
        if let Some(error) = error {
            add_one(&mut self.changes_failed, error.to_string());
        }
    }
}

fn ask_visitor(server: &TestServer, task: &str, round: u64, tally: &mut SoakTally) {
    let mut client = None;
    for number in 0..5 {
        let request = SoakRequest::linear_request(task, round * 5 + number);
        client = ask_request(server.announced.http, client, &request, send_at_once, tally);
    }
}

/// Sends requests, whole or in half, and leaves; how many.
fn cancel_requests(address: SocketAddr, over: &AtomicBool) -> u64 {
    let mut cancelled = 0;
    while !is_over(over) {
        let request = SoakRequest::draw_request(1 << 40 | cancelled);
        let parts = [request.infer.head.as_slice(), &request.infer.tensor].concat();
        let sent = if cancelled % 2 == 0 { parts.len() } else { parts.len() / 2 };
        let begun =
            TestClient::connect(address).and_then(|mut client| client.send_part(&parts[..sent]));
        cancelled += u64::from(begun.is_ok());
        pause_for(Duration::from_millis(20), over);
    }
    cancelled
}

/// Connections that are held open.
const HELD: usize = 24;

/// Malformed requests; none of them may be answered with 200.
const MALFORMED: [&str; 5] = [
    "\u{1}\u{2}\u{3} nothing that HTTP knows\r\n\r\n",
    "POST /v2/models/linear/infer HTTP/1.1\r\nHost: tessera\r\nContent-Length: 7\r\n\r\n{\"input",
    "POST /v2/models/linear/infer HTTP/1.1\r\nHost: tessera\r\nContent-Length: 2\r\n\r\n{}",
    "POST /v2/models/linear/infer HTTP/1.1\r\nHost: tessera\r\nContent-Length: x\r\n\r\n",
    "GET /v2/models/../../etc/passwd HTTP/1.1\r\nHost: tessera\r\n\r\n",
];

/// Sends what is malformed, and stalls; how many times, and how often that was answered with 200.
fn be_hostile(address: SocketAddr, over: &AtomicBool) -> (u64, u64) {
    let unread = matrix_request(1, 1_000_000);
    let (mut held, mut done, mut answered) = (VecDeque::new(), 0, 0);
    while !is_over(over) {
        if done % 8 < 4 {
            held.extend(open_hostile(address, done, &unread));
        } else {
            answered += u64::from(is_malformed_answered(address, done));
        }
        if held.len() > HELD {
            held.pop_front();
        }
        done += 1;
        pause_for(Duration::from_millis(50), over);
    }
    (done, answered)
}

/// A connection whose client does not do its part.
fn open_hostile(address: SocketAddr, number: u64, unread: &TestInferRequest) -> Result<TcpStream> {
    match number % 4 {
        0 => leave_answer_unread(address, unread),
        1 => send_half_head(address),
        _ => stall_upload(address, TinyModel::Absolute.task_name(), 150_000),
    }
}

fn is_malformed_answered(address: SocketAddr, number: u64) -> bool {
    let request = MALFORMED[number as usize % MALFORMED.len()];
    let answer =
        TestClient::connect(address).and_then(|mut client| client.send_http(&[request.as_bytes()]));
    // A connection that is closed without an answer is a refusal, too.
    answer.is_ok_and(|answer| answer.status == 200)
}
