//! A device that is cut off from the cloud while it is asked: what its exit knows is the answer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_command::HttpMethod;
use tessera_core::{Result, lock};
use tessera_lab::LinkShape;
use tessera_zoo::{Architecture, Recipe};

use super::lab_cluster::{LabCluster, LabNode};
use super::places::store_with_exit;
use super::{BenchCluster, Experiment};
use crate::background_clients::CheckedRequest;
use crate::finding::Finding;
use crate::test_client::{HttpAnswer, TestClient, TestInferRequest};
use crate::zoo_file;

pub(super) const CUT: Experiment = Experiment {
    name: "cut",
    about: "1,000 requests with a deadline; the device is cut off for a third of them",
    make: cut_off,
};

/// Requests, and how long after each the next is sent.
const REQUESTS: usize = 1000;
const INTERVAL: Duration = Duration::from_millis(80);
/// What each of them has.
const DEADLINE: Duration = Duration::from_millis(1000);
/// How much more clients may see of it: the way to the gateway and back.
const CLIENT_ROOM: Duration = Duration::from_millis(50);
/// The requests that the cut is before and after.
const CUT_FROM: usize = 300;
const CUT_TO: usize = 650;
/// Clients: as many as there are requests at a time, and some.
const CLIENTS: usize = 64;
/// The link where it is not cut: milliseconds in each direction, and megabits per second.
const DELAY: Duration = Duration::from_millis(10);
const RATE: u64 = 100;

/// What became of a request.
#[derive(Clone, Debug)]
struct Outcome {
    sent: Instant,
    took: Duration,
    kind: Kind,
    /// Why it was refused.
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Degraded,
    Wrong,
    Refused,
    Unanswered,
    Twice,
}

/// A request, and what is right for it: at the end of its route and at the exit.
struct CutRequest {
    whole: CheckedRequest,
    early: CheckedRequest,
}

fn cut_off(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let device = cluster.add_node("device", &["--gateway", "--cores", "1"])?;
    let cloud = cluster.add_node("cloud", &["--tier", "1", "--cores", "1"])?;
    let architecture: Architecture = "resnet18".parse()?;
    let file = cluster.path().join("model.onnx");
    zoo_file::write_recipe(&Recipe { exits: true, ..Recipe::new(architecture) }, &file)?;
    let exit = architecture.exit_output().unwrap_or_default();
    let made = CutSite { cluster, device, cloud, exit: exit.to_owned() };
    made.set_link(normal_link());
    let requests = made.start_task(&file)?;
    let outcomes: Mutex<Vec<Outcome>> = Mutex::default();
    let address = made.device.process.address("http")?;
    let next = AtomicUsize::new(0);
    let start = Instant::now() + Duration::from_millis(200);
    let due = |number: usize| start + INTERVAL * number as u32;
    let mut healed = start;
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                // One that is elsewhere has no answers, which is counted.
                made.device.host.enter().ok();
                ask_on(&next, &due, &requests, address, &outcomes);
            });
        }
        sleep_until(due(CUT_FROM));
        made.set_link(normal_link().cut());
        sleep_until(due(CUT_TO));
        made.set_link(normal_link());
        healed = Instant::now();
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    Ok(judge(&outcomes, due(CUT_FROM), healed))
}

fn judge(outcomes: &[Outcome], cut: Instant, healed: Instant) -> Vec<Finding> {
    let count = |kind: Kind| outcomes.iter().filter(|outcome| outcome.kind == kind).count();
    let in_time = |outcome: &&Outcome| {
        matches!(outcome.kind, Kind::Full | Kind::Degraded)
            && outcome.took <= DEADLINE + CLIENT_ROOM
    };
    let right = outcomes.iter().filter(in_time).count();
    let slowest = outcomes.iter().map(|outcome| outcome.took).max().unwrap_or_default();
    let last_degraded = outcomes
        .iter()
        .filter(|outcome| outcome.kind == Kind::Degraded)
        .map(|outcome| outcome.sent);
    let again = last_degraded.max().map(|last| last.saturating_duration_since(healed));
    let too_early = outcomes
        .iter()
        .filter(|outcome| outcome.kind == Kind::Degraded && outcome.sent + DEADLINE < cut);
    let refused = outcomes.iter().find_map(|outcome| outcome.reason.as_deref());
    let detail = format!(
        "{} whole, {} degraded, {} refused, {} wrong, {} without an answer, {} twice; slowest {:.0} ms{}{}",
        count(Kind::Full),
        count(Kind::Degraded),
        count(Kind::Refused),
        count(Kind::Wrong),
        count(Kind::Unanswered),
        count(Kind::Twice),
        slowest.as_secs_f64() * 1e3,
        if refused.is_some() { "; refused: " } else { "" },
        refused.unwrap_or_default()
    );
    vec![
        Finding::exactly("answered once, right, and within the deadline", right, REQUESTS)
            .with_detail(detail),
        Finding::exactly("degraded before the cut", too_early.count(), 0),
        Finding::at_least(
            "degraded by the cut",
            count(Kind::Degraded) as f64,
            (CUT_TO - CUT_FROM) as f64 * 0.9,
            "",
        ),
        Finding::at_most(
            "after it is over, until no request is degraded",
            again.unwrap_or_default().as_secs_f64(),
            3.0,
            "s",
        ),
    ]
}

struct CutSite {
    cluster: LabCluster,
    device: LabNode,
    cloud: LabNode,
    exit: String,
}

impl CutSite {
    /// The device is as far from the controller as from the cloud.
    fn set_link(&self, shape: LinkShape) {
        let LabCluster { lab, controller_host, .. } = &self.cluster;
        lab.set_link(&self.device.host, &self.cloud.host, shape);
        lab.set_link(&self.device.host, controller_host, shape);
    }

    /// Has a task served whose exit is at the device and whose end at the cloud; returns requests.
    fn start_task(&self, file: &Path) -> Result<Vec<CutRequest>> {
        let repository = self.cluster.repository();
        let stored = store_with_exit(file, &self.exit, &repository, &["task"])?;
        let requests = stored.requests.into_iter().next().unwrap_or_default();
        // All that the exit needs is at the device.
        let is_early = |block: usize| block < stored.before_exit || block == stored.exit_head;
        let place = |block| if is_early(block) { "device" } else { "cloud" };
        let nodes: Vec<&str> = (0..stored.blocks).map(place).collect();
        let deadline = DEADLINE.as_millis() as u64;
        let task =
            json!({ "model": "model", "node": nodes, "degrade": true, "deadline_ms": deadline });
        self.cluster.put_task("task", &task)?;
        // Everything leaves at the exit, then nothing.
        self.set_threshold(1.0)?;
        let early = self.device.check_requests(requests.clone())?;
        self.set_threshold(0.0)?;
        let whole = self.device.check_requests(requests)?;
        Ok(whole.into_iter().zip(early).map(|(whole, early)| CutRequest { whole, early }).collect())
    }

    fn set_threshold(&self, threshold: f64) -> Result<()> {
        let path = format!("/v1/tasks/task/exits/{}", self.exit);
        let body = json!({ "threshold": threshold });
        self.cluster.ask(HttpMethod::PUT, &path, Some(&body))?;
        // The gateway has it a moment later.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }
}

fn normal_link() -> LinkShape {
    LinkShape::default().with_delay(DELAY).with_megabits(RATE)
}

/// Sends requests when they are due, until there are no more.
fn ask_on(
    next: &AtomicUsize,
    due: &(impl Fn(usize) -> Instant + Sync),
    requests: &[CutRequest],
    address: SocketAddr,
    outcomes: &Mutex<Vec<Outcome>>,
) {
    let mut client = None;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= REQUESTS {
            return;
        }
        sleep_until(due(number));
        let asked = &requests[number % requests.len()];
        let sent = Instant::now();
        let (kind, reason) = match ask_once(&mut client, &asked.whole.request, address) {
            Ok((_, true)) => (Kind::Twice, None),
            Ok((answer, false)) => judge_answer(asked, &answer),
            Err(_) => (Kind::Unanswered, None),
        };
        lock(outcomes).push(Outcome { sent, took: sent.elapsed(), kind, reason });
    }
}

/// The answer, and whether more came than was asked for.
fn ask_once(
    client: &mut Option<TestClient>,
    request: &TestInferRequest,
    address: SocketAddr,
) -> Result<(HttpAnswer, bool)> {
    let mut connected = match client.take() {
        Some(client) => client,
        None => TestClient::connect(address)?,
    };
    let (_, answer) = request.send_to(&mut connected)?;
    let has_more = connected.has_unread();
    *client = Some(connected);
    Ok((answer, has_more))
}

fn judge_answer(asked: &CutRequest, answer: &HttpAnswer) -> (Kind, Option<String>) {
    if answer.status != 200 {
        let reason = String::from_utf8_lossy(&answer.body).into_owned();
        return (Kind::Refused, Some(reason));
    }
    let (json, _) = answer.json_and_tensors();
    let is_degraded = json.is_some_and(|json| json["parameters"]["degraded"] == true);
    let (expected, kind) =
        if is_degraded { (&asked.early, Kind::Degraded) } else { (&asked.whole, Kind::Full) };
    (if expected.is_right(answer) { kind } else { Kind::Wrong }, None)
}

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}
