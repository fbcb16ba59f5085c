//! Several gateways that are together asked for more than what they share can do.

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::{Error, Result};
use tessera_load::{
    Arrivals, LoadMode, LoadReport, LoadTarget, LoadTestOptions, StopToken, Workload,
    WorkloadOptions,
};

use super::lab_cluster::{LabCluster, LabNode};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const OVERLOAD: Experiment = Experiment {
    name: "overload",
    about: "two gateways are asked for more than what the node that they share can do",
    make: overload_gateways,
};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_millis(1000);
/// How long the capacity is looked for, before and after; and how long there is more than that.
const CAPACITY_TIME: Duration = Duration::from_secs(5);
const OVERLOAD_TIME: Duration = Duration::from_secs(15);
/// How long it takes at most until the controller knows what was computed.
const REPORT_TIME: Duration = Duration::from_millis(1500);
/// Cores of a gateway's host, and of the node that computes: the ones are not the others.
const GATEWAY_CORES: &str = "16";
const WORKER_CORES: &str = "1";
/// What of the capacity must be answered in time.
const LEAST_GOODPUT: f64 = 0.9;
/// What may be neither answered in time nor refused.
const MOST_LATE: f64 = 0.05;
/// The status of a refusal.
const REFUSED: u16 = 503;

fn overload_gateways(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let _worker = cluster.add_node("worker", &["--cores", WORKER_CORES])?;
    let of_gateway = ["--gateway", "--cores", GATEWAY_CORES];
    let mut gates = Vec::new();
    for name in ["first", "second", "third"] {
        gates.push(cluster.add_node(name, &of_gateway)?);
    }
    let (files, _) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    cluster.put_task("task0", &json!({ "model": "task0", "node": "worker" }))?;
    let mut findings = Vec::new();
    // Two are asked for as much, or one for nearly all of it; or one for very much, that has learnt
    // nothing yet.
    let ways = [
        ("alike", 1, [1.0, 1.0]),
        ("one for nearly all", 1, [0.1, 1.9]),
        ("a new one", 2, [1.0, 9.0]),
    ];
    for (how, other, shares) in ways {
        let before = measure_capacity(&gates[0])?;
        let computed = computed_requests(&cluster)?;
        let reports = ask_both([&gates[0], &gates[other]], shares.map(|share| share * before))?;
        let computed = computed_requests(&cluster)? - computed;
        // Whatever else this machine does comes and goes.
        let capacity = before.midpoint(measure_capacity(&gates[0])?);
        findings.extend(judge_reports(how, capacity, computed, &reports));
    }
    Ok(findings)
}

fn judge_reports(how: &str, capacity: f64, computed: f64, reports: &[LoadReport]) -> [Finding; 3] {
    let goodput: f64 = reports.iter().map(|report| report.goodput_per_second.unwrap_or(0.0)).sum();
    let what = |measured: &str| format!("asked {how}: {measured}");
    let in_time = what("answered in time over capacity");
    let of_computed = what("answered in time over computed");
    let answered = goodput * OVERLOAD_TIME.as_secs_f64();
    let late: f64 = reports.iter().map(late_requests).sum();
    let all: u64 = reports.iter().map(|report| report.outcomes.total()).sum();
    let too_late = what("neither answered in time nor refused");
    [
        Finding::at_least(in_time, goodput / capacity, LEAST_GOODPUT, "×")
            .with_detail(format!("of {capacity:.1}/s")),
        Finding::at_least(of_computed, answered / computed.max(1.0), LEAST_GOODPUT, "×")
            .with_detail(format!("of {computed:.0}")),
        Finding::at_most(too_late, late / all.max(1) as f64, MOST_LATE, "×")
            .with_detail(format!("of {all}")),
    ]
}

/// Requests that the node that computes has run to their end, or as good as that: at its last unit.
fn computed_requests(cluster: &LabCluster) -> Result<f64> {
    // It is told once a second.
    std::thread::sleep(REPORT_TIME);
    let units = cluster.ask(HttpMethod::GET, "/v1/units", None)?;
    let units = units["units"].as_array().cloned().unwrap_or_default();
    let count = |unit: &Value| unit["instances"][0]["requests"].as_f64().unwrap_or(0.0);
    Ok(units.iter().map(count).reduce(f64::min).unwrap_or(0.0))
}

/// Requests that were neither answered in time nor refused.
fn late_requests(report: &LoadReport) -> f64 {
    let in_time = report.goodput_per_second.unwrap_or(0.0) * OVERLOAD_TIME.as_secs_f64();
    let refused = report.outcomes.status.get(&REFUSED).copied().unwrap_or(0) as f64;
    (report.outcomes.total() as f64 - in_time - refused).max(0.0)
}

/// Answers per second of clients that wait for their answers.
fn measure_capacity(gate: &LabNode) -> Result<f64> {
    let mode = LoadMode::Closed { clients: 8, duration: Some(CAPACITY_TIME), requests: None };
    Ok(ask(gate, mode, None)?.join_load()?.throughput_per_second)
}

/// Asks both gateways at the same time, each at its rate.
fn ask_both(gates: [&LabNode; 2], rates: [f64; 2]) -> Result<Vec<LoadReport>> {
    let asking = gates.into_iter().zip(rates).zip(1..).map(|((gate, rate), seed)| {
        let (arrivals, duration) = (Arrivals::Poisson, OVERLOAD_TIME);
        ask(gate, LoadMode::Open { rate, arrivals, duration, seed }, Some(DEADLINE))
    });
    let asking = asking.collect::<Result<Vec<_>>>()?;
    asking.into_iter().map(Asking::join_load).collect()
}

/// Requests that are sent, on a thread at the host of a node.
struct Asking(JoinHandle<Result<LoadReport>>);

impl Asking {
    fn join_load(self) -> Result<LoadReport> {
        self.0.join().map_err(|_| Error::engine("what sends requests panicked"))?
    }
}

/// Asks the gateway of a node, at its host.
fn ask(gate: &LabNode, mode: LoadMode, deadline: Option<Duration>) -> Result<Asking> {
    let (host, address) = (gate.host.clone(), gate.process.address("http")?);
    let send = move || {
        host.enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::from_io("the runtime of a load", &error))?;
        runtime.block_on(async {
            let target = LoadTarget::new(format!("http://{address}"), "task0");
            let description = target.fetch_description().await?;
            let workload = WorkloadOptions { send_deadline: deadline, ..Default::default() };
            let workload = Workload::new(&description, &workload)?;
            let mut options = LoadTestOptions::new(mode);
            // What a gateway learns it has to learn in time.
            (options.warm_up, options.deadline) = (Duration::ZERO, deadline);
            tessera_load::run_load_test(&target, &workload, &options, &StopToken::new(), |_| {})
                .await
        })
    };
    let spawned = std::thread::Builder::new().name("load".to_owned()).spawn(send);
    spawned.map(Asking).map_err(|error| Error::from_io("a thread that sends requests", &error))
}
