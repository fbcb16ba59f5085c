//! A model that hands on little early, on a device, an edge and a cloud: what a plan over all of
//! them gains over the device alone and over the cloud alone.

use std::time::Duration;

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_lab::{LinkShape, SlowGroup};

use super::lab_cluster::{LabCluster, LabNode, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;
use crate::test_client::{TestClient, TestInferRequest};

pub(super) const TIERS: Experiment = Experiment {
    name: "tiers",
    about: "a model that hands on little early, on device, edge and cloud, beside all at one of them",
    make: compare_tiers,
};

/// What a user of split computing would serve.
const MODEL: &str = "split-resnet50";
const BLOCKS: usize = 8;
/// Parts of a core that the device and the edge have.
const DEVICE_CORES: f64 = 0.11;
const EDGE_CORES: f64 = 0.5;
/// Links: milliseconds there and back, and megabits per second.
const DEVICE_TO_EDGE: (u64, u64) = (10, 15);
const DEVICE_TO_CLOUD: (u64, u64) = (50, 15);
const EDGE_TO_CLOUD: (u64, u64) = (40, 100);
/// As placed; then where all of it is at one node.
const TASKS: [&str; 4] = ["placed", "at-device", "at-edge", "at-cloud"];
/// Requests of each task, in turns.
const ROUNDS: usize = 12;

fn compare_tiers(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let (slow, medium) = (SlowGroup::new(DEVICE_CORES)?, SlowGroup::new(EDGE_CORES)?);
    let cores = ["--cores", "1", "--tier"];
    let at_tier = |tier: &'static str| [&cores[..], &[tier]].concat();
    let device = [&at_tier("0")[..], &["--gateway"]].concat();
    let device = cluster.add_limited_node("device", &device, &slow)?;
    let edge = cluster.add_limited_node("edge", &at_tier("1"), &medium)?;
    let cloud = cluster.add_node("cloud", &at_tier("2"))?;
    let (files, requests) = write_siblings(MODEL, 1, cluster.path())?;
    store_split(&files[0], "model", BLOCKS, &cluster.repository())?;
    // At one node first: weights get there while links are as fast as this machine.
    for node in ["device", "edge", "cloud"] {
        let task = json!({ "model": "model", "node": node });
        cluster.put_task(&format!("at-{node}"), &task)?;
    }
    let links = [
        (&device, &edge, DEVICE_TO_EDGE),
        (&device, &cloud, DEVICE_TO_CLOUD),
        (&edge, &cloud, EDGE_TO_CLOUD),
    ];
    for (from, to, (round_trip, rate)) in links {
        let shape = LinkShape::default().with_delay(Duration::from_millis(round_trip) / 2);
        cluster.lab.set_link(&from.host, &to.host, shape.with_megabits(rate));
    }
    cluster.put_task("placed", &json!({ "model": "model" }))?;
    // Links are seen, and speeds under load.
    for _ in 0..4 {
        ask_in_turns(&device, &requests[0], 2)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    wait_until("the plan stays", || Ok(placed_task(&cluster)?["moves"] == false))?;
    let took = ask_in_turns(&device, &requests[0], ROUNDS)?;
    let [placed, at_device, at_edge, at_cloud] = took.map(median);
    let nodes = nodes_of(&placed_task(&cluster)?);
    let detail = format!(
        "at {}: {placed:.0} ms; device {at_device:.0}, edge {at_edge:.0}, cloud {at_cloud:.0}",
        nodes.join(", ")
    );
    Ok(vec![
        Finding::at_least("nodes that it is placed at", nodes.len() as f64, 2.0, ""),
        Finding::at_most(
            "placed over the better of device and cloud",
            placed / at_device.min(at_cloud),
            0.9,
            "×",
        )
        .with_detail(detail),
        Finding::at_most(
            "placed over the best of one node",
            placed / at_device.min(at_cloud).min(at_edge),
            1.05,
            "×",
        ),
    ])
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    tessera_node::median_of_sorted(&times).unwrap_or(f64::NAN)
}

/// What the plan has for the task that is placed.
fn placed_task(cluster: &LabCluster) -> Result<Value> {
    let plan = cluster.ask(HttpMethod::GET, "/v1/plan", None)?;
    let tasks = plan["tasks"].as_array().cloned().unwrap_or_default();
    Ok(tasks.into_iter().find(|task| task["task"] == "placed").unwrap_or_default())
}

/// The nodes that blocks of a task are at, each once for neighbours.
fn nodes_of(task: &Value) -> Vec<String> {
    let nodes = task["nodes"].as_array().into_iter().flatten();
    let mut nodes: Vec<String> = nodes.filter_map(|node| Some(node.as_str()?.to_owned())).collect();
    nodes.dedup();
    nodes
}

/// Asks all tasks, one after the other; what each request took, in milliseconds.
fn ask_in_turns(
    device: &LabNode,
    request: &TestInferRequest,
    rounds: usize,
) -> Result<[Vec<f64>; TASKS.len()]> {
    let asked = TASKS.map(|task| TestInferRequest {
        head: String::from_utf8_lossy(&request.head)
            .replace("/task0/", &format!("/{task}/"))
            .into(),
        tensor: request.tensor.clone(),
    });
    let address = device.process.address("http")?;
    device.host.run_inside(|| -> Result<_> {
        let mut client = TestClient::connect(address)?;
        let mut times = TASKS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (request, times) in asked.iter().zip(&mut times) {
                let (took, answer) = request.send_to(&mut client)?;
                answer.require_ok("a request")?;
                times.push(took.as_secs_f64() * 1e3);
            }
        }
        Ok(times)
    })?
}
