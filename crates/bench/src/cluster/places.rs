//! Where tasks are placed under five delays, and what they are expected to take there: the addnn
//! thesis' section 7.3.4.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_graph::{ExitSpec, Split};
use tessera_lab::{LinkShape, SlowGroup};
use tessera_report::output;
use tessera_repository::{ModelFile, Repository};
use tessera_zoo::{Architecture, Recipe, random_inputs};

use super::lab_cluster::{LabCluster, LabNode, wait_until};
use super::{BenchCluster, Experiment};
use crate::finding::Finding;
use crate::test_client::{TestClient, TestInferRequest};
use crate::zoo_file;

pub(super) const PLACES: Experiment = Experiment {
    name: "places",
    about: "two models with exits of three kinds under five delays, beside all at the cloud or device",
    make: compare_places,
};

/// Milliseconds that are added to the round trip.
const MORE_DELAYS: [u64; 5] = [0, 50, 100, 150, 200];
/// The link otherwise: milliseconds there and back, and megabits per second.
const ROUND_TRIP: u64 = 50;
const RATE: u64 = 15;
/// Cores of the device: the thesis' device computes a ninth of what its cloud does.
const DEVICE_CORES: f64 = 0.11;
/// Shares of requests that leave at the exit.
const EXIT_SHARES: [f64; 3] = [0.0, 0.37, 0.76];
/// Blocks of each model, beside the head of its exit.
const BLOCKS: usize = 8;
/// After so long it is known what gateways counted.
const REPORT_PAUSE: Duration = Duration::from_millis(1300);
/// Distinct requests.
const INPUTS: usize = 8;

/// What came of one delay and one variant.
struct PlacedCase {
    name: String,
    /// What requests took in the mean, in milliseconds: as placed, at the cloud, at the device.
    took: [f64; 3],
    expected: f64,
    nodes: String,
}

impl PlacedCase {
    fn line(&self) -> String {
        let [placed, cloud, device] = self.took;
        format!(
            "{}: at {} {placed:.0} ms, expected {:.0}, cloud {cloud:.0}, device {device:.0}",
            self.name, self.nodes, self.expected
        )
    }
}

fn compare_places(arguments: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cases = Vec::new();
    for architecture in &arguments.models {
        let site = PlacedModel::start(architecture)?;
        for (variant, share) in EXIT_SHARES.into_iter().enumerate() {
            site.set_exit_share(share)?;
            // The link makes no difference to what is at the device.
            let at_device = mean(&site.ask_all(2)?);
            for more in MORE_DELAYS {
                let name = format!("{architecture} {variant}, {more} ms more");
                let case = site.measure(name, more, at_device)?;
                output::print_notice(&case.line());
                cases.push(case);
            }
        }
    }
    let is_best = |case: &&PlacedCase| {
        let [placed, others @ ..] = case.took;
        placed <= 1.05 * others.into_iter().fold(f64::INFINITY, f64::min)
    };
    let is_expected = |case: &&PlacedCase| (case.expected / case.took[0] - 1.0).abs() <= 0.1;
    let all = cases.len();
    let others = |is: &dyn Fn(&&PlacedCase) -> bool| {
        let those = cases.iter().filter(|case| !is(case)).map(PlacedCase::line);
        those.collect::<Vec<_>>().join("; ")
    };
    let count = |is: &dyn Fn(&&PlacedCase) -> bool| cases.iter().filter(|case| is(case)).count();
    let mut findings = vec![
        Finding::exactly("within 5% of the best", count(&is_best), all)
            .with_detail(others(&is_best)),
        Finding::exactly("expected within 10%", count(&is_expected), all)
            .with_detail(others(&is_expected)),
    ];
    findings.extend(cases.iter().map(|case| {
        let best = case.took.into_iter().fold(f64::INFINITY, f64::min);
        Finding::at_most(case.name.clone(), case.took[0] / best, 1.05, "×").with_detail(case.line())
    }));
    Ok(findings)
}

/// A model that three tasks serve: placed, at the cloud, at the device.
struct PlacedModel {
    cluster: LabCluster,
    device: LabNode,
    cloud: LabNode,
    exit: String,
    requests: Vec<Vec<TestInferRequest>>,
    _slow: SlowGroup,
}

const TASKS: [&str; 3] = ["placed", "at-cloud", "at-device"];

impl PlacedModel {
    fn start(architecture: &str) -> Result<Self> {
        let mut cluster = LabCluster::start()?;
        let slow = SlowGroup::new(DEVICE_CORES)?;
        let device = cluster.add_limited_node("device", &["--gateway", "--cores", "1"], &slow)?;
        let cloud = cluster.add_node("cloud", &["--tier", "1", "--cores", "1"])?;
        let architecture: Architecture = architecture.parse()?;
        let recipe = Recipe { exits: true, ..Recipe::new(architecture) };
        let file = cluster.path().join("model.onnx");
        zoo_file::write_recipe(&recipe, &file)?;
        let exit = architecture.exit_output().unwrap_or_default().to_owned();
        let requests = store_with_exit(&file, &exit, &cluster.repository(), &TASKS)?.requests;
        let site = Self { cluster, device, cloud, exit, requests, _slow: slow };
        site.set_delay(0);
        // At the device first: weights get there while the link is as it is.
        for (task, node) in [("at-device", "device"), ("at-cloud", "cloud")] {
            site.cluster.put_task(task, &json!({ "model": "model", "node": node }))?;
        }
        site.cluster.put_task("placed", &json!({ "model": "model" }))?;
        Ok(site)
    }

    fn set_delay(&self, more: u64) {
        let delay = Duration::from_millis(ROUND_TRIP + more) / 2;
        let shape = LinkShape::default().with_delay(delay).with_megabits(RATE);
        self.cluster.lab.set_link(&self.device.host, &self.cloud.host, shape);
    }

    fn set_threshold(&self, task: &str, threshold: f64) -> Result<()> {
        let path = format!("/v1/tasks/{task}/exits/{}", self.exit);
        let body = json!({ "threshold": threshold });
        self.cluster.ask(HttpMethod::PUT, &path, Some(&body)).map(drop)
    }

    fn exits_taken(&self, task: &str) -> Result<u64> {
        let status = self.cluster.ask(HttpMethod::GET, &format!("/v1/tasks/{task}"), None)?;
        Ok(status["exits"][0]["taken"].as_u64().unwrap_or_default())
    }

    /// Finds the threshold at which this share of requests leaves, and has all tasks use it.
    fn set_exit_share(&self, share: f64) -> Result<()> {
        let wanted = (share * INPUTS as f64).round() as u64;
        // The link makes no difference to how certain an exit is.
        self.cluster.lab.set_link(&self.device.host, &self.cloud.host, LinkShape::default());
        let threshold = if wanted == 0 { 0.0 } else { self.find_threshold(wanted)? };
        self.set_delay(0);
        for task in TASKS {
            self.set_threshold(task, threshold)?;
        }
        // The planner learns what leaves from what does.
        for _ in 0..2 {
            self.ask_all(0)?;
        }
        std::thread::sleep(REPORT_PAUSE);
        Ok(())
    }

    /// The threshold at which so many of the requests leave.
    fn find_threshold(&self, wanted: u64) -> Result<f64> {
        let (mut low, mut high) = (0.0, 1.0);
        loop {
            let threshold = f64::midpoint(low, high);
            self.set_threshold("at-cloud", threshold)?;
            std::thread::sleep(Duration::from_millis(100));
            let before = self.exits_taken("at-cloud")?;
            self.ask_all(1)?;
            // Counts come with the next report.
            std::thread::sleep(REPORT_PAUSE);
            let taken = self.exits_taken("at-cloud")? - before;
            if taken == wanted || high - low < 1e-7 {
                return Ok(threshold);
            }
            let bound = if taken > wanted { &mut high } else { &mut low };
            *bound = threshold;
        }
    }

    /// Asks a task all requests; returns what each took, in milliseconds.
    fn ask_all(&self, task: usize) -> Result<Vec<f64>> {
        let address = self.device.process.address("http")?;
        self.device.host.run_inside(|| -> Result<Vec<f64>> {
            let mut client = TestClient::connect(address)?;
            let ask = |request: &TestInferRequest| {
                let (took, answer) = request.send_to(&mut client)?;
                answer.require_ok("a request")?;
                Ok(took.as_secs_f64() * 1e3)
            };
            self.requests[task].iter().map(ask).collect()
        })?
    }

    fn plan(&self) -> Result<Value> {
        let plan = self.cluster.ask(HttpMethod::GET, "/v1/plan", None)?;
        let tasks = plan["tasks"].as_array().cloned().unwrap_or_default();
        Ok(tasks.into_iter().find(|task| task["task"] == "placed").unwrap_or_default())
    }

    fn measure(&self, name: String, more: u64, at_device: f64) -> Result<PlacedCase> {
        self.set_delay(more);
        // A moment to see the link, and to move.
        std::thread::sleep(Duration::from_secs(4));
        self.ask_all(0)?;
        wait_until("the plan stays", || {
            let task = self.plan()?;
            Ok(task["nodes"].is_array() && task["moves"] == false)
        })?;
        let (placed, at_cloud) = (mean(&self.ask_all(0)?), mean(&self.ask_all(1)?));
        let task = self.plan()?;
        let mut nodes: Vec<String> = task["nodes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|node| Some(node.as_str()?.to_owned()))
            .collect();
        nodes.dedup();
        Ok(PlacedCase {
            name,
            took: [placed, at_cloud, at_device],
            expected: task["expected_ms"].as_f64().unwrap_or(f64::NAN),
            nodes: nodes.join(", "),
        })
    }
}

/// What is expected of a request: those that leave early and those that don't differ.
fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// A model with an exit, as it is stored.
pub(super) struct StoredExitModel {
    pub(super) blocks: usize,
    /// How many of them come before its exit, and which is the exit's head.
    pub(super) before_exit: usize,
    pub(super) exit_head: usize,
    /// Requests for each task.
    pub(super) requests: Vec<Vec<TestInferRequest>>,
}

/// Cuts a model with an exit, and stores it for these tasks.
pub(super) fn store_with_exit(
    file: &Path,
    exit: &str,
    repository: &Path,
    tasks: &[&str],
) -> Result<StoredExitModel> {
    let exit = ExitSpec { output: exit.to_owned(), threshold: 0.0 };
    let model = ModelFile::read_file(file, &BTreeMap::new(), &[exit])?;
    let partition = model.split_into_blocks(Some(&Split::Blocks(BLOCKS)))?;
    Repository::open_or_create(repository)?.put_model("model", &partition)?;
    let ports = &partition.graph.inputs;
    let given = (0..INPUTS as u64).map(|seed| random_inputs(ports, &HashMap::new(), seed));
    let given = given.collect::<Result<Vec<_>>>()?;
    let requests = tasks.iter().map(|task| {
        let request = |given: &Vec<tessera_core::Tensor>| {
            let bytes = given[0].bytes().unwrap_or_default();
            TestInferRequest::new(task, &ports[0].name, given[0].shape(), bytes)
        };
        given.iter().map(request).collect()
    });
    let graph = &partition.graph;
    let blocks = graph.blocks.len();
    let exit = graph.exits.first();
    let before_exit = exit.and_then(|exit| exit.after).map_or(0, |after| after + 1);
    let exit_head = exit.map_or(0, |exit| exit.head);
    Ok(StoredExitModel { blocks, before_exit, exit_head, requests: requests.collect() })
}
