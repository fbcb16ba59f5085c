//! Tensors that take longer on a link than TensorMQ is silent at most, and than its leases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_core::{Error, Result};
use tessera_graph::Split;
use tessera_lab::LinkShape;
use tessera_repository::Repository;
use tessera_zoo::TinyModel;

use super::lab_cluster::LabCluster;
use super::{BenchCluster, Experiment};
use crate::finding::Finding;
use crate::stored_model::store_model;
use crate::test_client::{TestClient, TestInferRequest};

pub(super) const LARGE_TENSORS: Experiment = Experiment {
    name: "large-tensors",
    about: "tensors that take 8 and more seconds on a link with 300 ms more, with and without loss",
    make: send_large,
};

/// The links: milliseconds there and back, megabits per second, and the share that is lost.
const LINKS: [(u64, u64, f64); 3] = [(310, 4, 0.0), (310, 4, 0.005), (10, 2, 0.0)];
/// Floats of a tensor that goes there and comes back.
const LARGE: usize = 1_000_000;
const SMALL: usize = 16;
/// Large ones, one after the other.
const ROUNDS: usize = 2;
/// What each request may take.
const DEADLINE: Duration = Duration::from_secs(55);
/// How long a link is left alone after it was changed.
const SETTLING: Duration = Duration::from_secs(12);
/// How long after an answer another small one is asked for.
const PAUSE: Duration = Duration::from_millis(100);
/// Headers, encryption, what fills a link at first, and what small ones take of it.
const ROOM: f64 = 1.25;

fn send_large(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let device = cluster.add_node("device", &["--gateway"])?;
    let cloud = cluster.add_node("cloud", &["--tier", "1"])?;
    let repository = Repository::open_or_create(&cluster.repository())?;
    let model = TinyModel::Absolute.build_model();
    store_model(&repository, "absolute", &model, &Split::Blocks(1))?;
    cluster.put_task("absolute", &json!({ "model": "absolute", "node": "cloud" }))?;
    let address = device.process.address("http")?;
    let mut findings = Vec::new();
    for (round_trip, rate, loss) in LINKS {
        let delay = Duration::from_millis(round_trip) / 2;
        let shape = LinkShape { loss, ..LinkShape::default().with_delay(delay) };
        cluster.lab.set_link(&device.host, &cloud.host, shape.with_megabits(rate));
        // Until TCP has forgotten how short the way was before: bbr remembers that for 10 s.
        std::thread::sleep(SETTLING);
        let is_over = AtomicBool::new(false);
        let carried = || {
            let there = cluster.lab.traffic(&device.host, &cloud.host).bytes;
            [there, cluster.lab.traffic(&cloud.host, &device.host).bytes]
        };
        let before = carried();
        let (large, small) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                device.host.enter()?;
                ask_small(address, &is_over)
            });
            let large = device.host.run_inside(|| ask_large(address)).and_then(|asked| asked);
            is_over.store(true, Ordering::Relaxed);
            let small =
                asking.join().map_err(|_| Error::engine("who asks for small ones panicked"));
            Ok::<_, Error>((large?, small??))
        })?;
        let name = format!("{rate} Mbit/s, {round_trip} ms, {} % lost", loss * 100.0);
        let least = LARGE as f64 * 32.0 / (rate as f64 * 1e6) * 2.0 + round_trip as f64 / 1e3;
        let right = Finding::exactly(format!("{name}: right answers"), large.right, ROUNDS);
        findings.push(right.with_detail(large.errors.join("; ")));
        let ratio = large.slowest.as_secs_f64() / least;
        let [there, back] = carried();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let took = format!(
            "{:.1} s, {least:.1} s at least; {:.1} MB went there and {:.1} back",
            large.slowest.as_secs_f64(),
            megabytes(there - before[0]),
            megabytes(back - before[1])
        );
        let slowest =
            Finding::at_most(format!("{name}: over what the link takes"), ratio, ROOM, "×");
        findings.push(slowest.with_detail(took));
        let failed = small.errors.len();
        let detail = format!(
            "of {}, slowest {:.1} s {}",
            small.right + failed,
            small.slowest.as_secs_f64(),
            small.errors.first().map_or("", String::as_str)
        );
        let failed = Finding::exactly(format!("{name}: small ones failed"), failed, 0);
        findings.push(failed.with_detail(detail));
    }
    let units = cluster.ask(tessera_command::HttpMethod::GET, "/v1/units", None)?;
    let restarts = units["units"][0]["instances"][0]["restarts"].as_u64().unwrap_or(u64::MAX);
    findings.push(Finding::exactly("instances started again", restarts as usize, 0));
    Ok(findings)
}

/// What became of requests.
#[derive(Default)]
struct Asked {
    right: usize,
    errors: Vec<String>,
    slowest: Duration,
}

impl Asked {
    fn ask(&mut self, client: &mut TestClient, request: &TestInferRequest) -> Result<()> {
        let begun = Instant::now();
        let (_, answer) = request.send_to(client)?;
        self.slowest = self.slowest.max(begun.elapsed());
        let (_, tensor) = answer.json_and_tensors();
        if answer.status == 200 && tensor == request.tensor {
            self.right += 1;
        } else {
            self.errors.push(format!(
                "{}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)])
            ));
        }
        Ok(())
    }
}

/// Floats that are their own absolute values.
fn request(floats: usize) -> TestInferRequest {
    let tensor: Vec<u8> = (0..floats).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let json = json!({
        "inputs": [{
            "name": "x", "shape": [1, floats], "datatype": "FP32",
            "parameters": { "binary_data_size": tensor.len() },
        }],
        "parameters": {
            "binary_data_output": true,
            "timeout": DEADLINE.as_micros() as u64,
        },
    });
    TestInferRequest::with_json(TinyModel::Absolute.task_name(), &json, tensor)
}

fn ask_large(address: std::net::SocketAddr) -> Result<Asked> {
    let (mut asked, large) = (Asked::default(), request(LARGE));
    let mut client = TestClient::connect(address)?;
    for _ in 0..ROUNDS {
        asked.ask(&mut client, &large)?;
    }
    Ok(asked)
}

fn ask_small(address: std::net::SocketAddr, is_over: &AtomicBool) -> Result<Asked> {
    let (mut asked, small) = (Asked::default(), request(SMALL));
    let mut client = TestClient::connect(address)?;
    while !is_over.load(Ordering::Relaxed) {
        asked.ask(&mut client, &small)?;
        std::thread::sleep(PAUSE);
    }
    Ok(asked)
}
