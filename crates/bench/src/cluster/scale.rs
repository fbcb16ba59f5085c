//! A controller with a thousand nodes that only say that they are some.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_cluster::wire::{
    AssignmentApplied, AssignmentDrained, GatewayDescription, NodeDescription, NodeReport,
    NodeState, Pong, UnitReports, node_order, node_report,
};
use tessera_cluster::{
    ControllerAddress, ControllerConnection, InstanceDetail, NodeAssignment, NodeSession,
    UnitReport, UnitState, join_cluster, write_document,
};
use tessera_core::{Error, Result, lock};
use tessera_deploy::{EntropyCounts, Unit, UnitId};
use tessera_identity::{JoinToken, NodeName};
use tessera_node::LatencySummary;
use tessera_report::output;

use super::lab_cluster::{LabCluster, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::process_memory::resident_bytes;
use crate::stored_model::store_split;

pub(super) const SCALE: Experiment = Experiment {
    name: "scale",
    about: "a controller with many nodes that only say that they are some, and changes for all",
    make: attach_many,
};

/// Tasks that are there before, and changes that are made.
const TASKS: usize = 20;
const CHANGES: usize = 20;
/// How long the controller is looked at.
const WATCHED: Duration = Duration::from_secs(20);
/// Nodes that join at the same time.
const JOINING: usize = 16;
/// How long a change may take to get anywhere.
const CHANGE_PATIENCE: Duration = Duration::from_secs(30);

/// What the nodes have seen.
#[derive(Default)]
struct Seen {
    /// When each node got a table with as many tasks as are waited for.
    arrivals: Mutex<HashMap<usize, Instant>>,
    waited: AtomicU64,
    attached: AtomicU64,
    ended: AtomicU64,
}

fn attach_many(arguments: &BenchCluster) -> Result<Vec<Finding>> {
    let cluster = LabCluster::start()?;
    let (files, _) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    let seen = Arc::new(Seen::default());
    let host = cluster.controller_host.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(move || drop(host.enter()))
        .enable_all()
        .build()
        .map_err(|error| Error::from_io("a runtime", &error))?;
    let count = arguments.nodes;
    let tokens: Vec<String> =
        (0..count).map(|_| cluster.create_token(600)).collect::<Result<_>>()?;
    let start = Instant::now();
    runtime.spawn(start_nodes(cluster.join_address(), tokens, Arc::clone(&seen)));
    let has_all = || Ok(seen.attached.load(Ordering::Relaxed) >= count as u64);
    wait_for(&seen, has_all)?;
    let joined = start.elapsed();
    let put = |number: usize| {
        let node = format!("fake-{}", number % count);
        cluster.put_task(&format!("t{number}"), &json!({ "model": "task0", "node": node }))
    };
    for number in 0..TASKS {
        put(number)?;
    }
    let process = cluster.controller_id();
    let before = (cpu_seconds(process)?, Instant::now());
    std::thread::sleep(WATCHED);
    let cores = (cpu_seconds(process)? - before.0) / before.1.elapsed().as_secs_f64();
    let mut times = Vec::new();
    for change in 0..CHANGES {
        lock(&seen.arrivals).clear();
        seen.waited.store((TASKS + change + 1) as u64, Ordering::SeqCst);
        let start = Instant::now();
        put(TASKS + change)?;
        let have_all = || Ok(lock(&seen.arrivals).len() >= count);
        wait_for(&seen, have_all)?;
        let arrivals = lock(&seen.arrivals);
        times.extend(arrivals.values().map(|at| at.duration_since(start)));
    }
    let slowest = times.iter().max().copied().unwrap_or_default().as_secs_f64();
    let summary = LatencySummary::from_times(&times);
    let (median, p99) = summary.map_or((f64::NAN, f64::NAN), |all| (all.median_ms, all.p99_ms));
    let resident = resident_bytes(&process.to_string())? as f64 / 1e6;
    let ended = seen.ended.load(Ordering::Relaxed);
    runtime.shutdown_background();
    let detail = format!(
        "{count} nodes joined in {:.1} s; {TASKS} tasks; changes took {median:.0} ms in the median, \
         {:.0} at most",
        joined.as_secs_f64(),
        slowest * 1e3,
    );
    Ok(vec![
        Finding::at_most("the controller, while nothing changes", cores, 0.25, "cores")
            .with_detail(detail),
        Finding::at_most("its memory", resident, 200.0, "MB"),
        Finding::at_most("a change is in all tables, 99th percentile", p99 / 1e3, 1.0, "s"),
        Finding::exactly("streams that ended", usize::try_from(ended).unwrap_or(usize::MAX), 0),
    ])
}

/// Waits until something is so, as long as every node is there.
fn wait_for(seen: &Seen, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    wait_until("all nodes have it", || {
        if seen.ended.load(Ordering::Relaxed) > 0 || start.elapsed() > CHANGE_PATIENCE * 4 {
            return Err(Error::lost("a node that was attached is not any more"));
        }
        is_so()
    })
}

/// Seconds that a process has computed.
fn cpu_seconds(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::from_io(&path, &error))?;
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    let ticks = ticks.ok_or_else(|| Error::unsupported(format!("{path} has no times")))?;
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Has them join, some at a time.
async fn start_nodes(address: String, tokens: Vec<String>, seen: Arc<Seen>) {
    let permits = Arc::new(tokio::sync::Semaphore::new(JOINING));
    for (number, token) in tokens.into_iter().enumerate() {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (address, seen) = (address.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let attached = attach_one(&address, &token, number).await;
            drop(permit);
            let ended = match attached {
                Ok(session) => FakeNode::new(number, Arc::clone(&seen)).obey(session).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                output::print_notice(&format!("fake-{number}: {error}"));
            }
            seen.ended.fetch_add(1, Ordering::Relaxed);
        });
    }
}

async fn attach_one(address: &str, token: &str, number: usize) -> Result<NodeSession> {
    let address: ControllerAddress = address.parse()?;
    let token: JoinToken = token.parse()?;
    let name: NodeName = format!("fake-{number}").parse()?;
    let node = join_cluster(&address, &token, &name).await?;
    ControllerConnection::open(&address, &node).await?.attach(0).await
}

/// A node that runs nothing and says that all is well.
struct FakeNode {
    number: usize,
    seen: Arc<Seen>,
    assignment: NodeAssignment,
}

impl FakeNode {
    fn new(number: usize, seen: Arc<Seen>) -> Self {
        Self { number, seen, assignment: NodeAssignment::default() }
    }

    async fn obey(mut self, mut session: NodeSession) -> Result<()> {
        let reports = session.reports.clone();
        let send = async |report| {
            let sent = reports.send(NodeReport { report: Some(report) }).await;
            sent.map_err(|_| Error::lost("the stream has ended"))
        };
        send(node_report::Report::Description(self.description()?)).await?;
        send(self.unit_reports()?).await?;
        self.seen.attached.fetch_add(1, Ordering::Relaxed);
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            let order = tokio::select! {
                order = session.next_order() => order?,
                _ = ticks.tick() => {
                    let state = NodeState {
                        available_memory: 8 << 30,
                        available_storage: 64 << 30,
                        idle_cores: 4.0,
                    };
                    send(node_report::Report::State(state)).await?;
                    continue;
                }
            };
            match order.order {
                Some(node_order::Order::Ping(ping)) => {
                    send(node_report::Report::Pong(Pong { number: ping.number })).await?;
                }
                Some(node_order::Order::Removed(removed)) => {
                    return Err(Error::usage(removed.reason));
                }
                Some(node_order::Order::Assignment(assignment)) => {
                    let newer = NodeAssignment::from_wire(&assignment)?;
                    let has_units = newer.units.is_some();
                    self.assignment.merge(newer);
                    let number = self.assignment.number;
                    self.note_table();
                    send(node_report::Report::Applied(AssignmentApplied { number })).await?;
                    send(node_report::Report::Drained(AssignmentDrained { number })).await?;
                    if has_units {
                        send(self.unit_reports()?).await?;
                    }
                }
                Some(node_order::Order::RemovedNodes(_)) | None => {}
            }
        }
    }

    /// Where its table is the one that is waited for: when it came.
    fn note_table(&self) {
        let tasks = self.assignment.routes.as_ref().map_or(0, Vec::len) as u64;
        if tasks >= self.seen.waited.load(Ordering::SeqCst) {
            lock(&self.seen.arrivals).entry(self.number).or_insert_with(Instant::now);
        }
    }

    fn description(&self) -> Result<NodeDescription> {
        let address = json!({ "tcp": format!("10.99.0.1:{}", 20_000 + self.number) });
        Ok(NodeDescription {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: "none".to_owned(),
            cores: 4,
            memory: 8 << 30,
            run_id: self.number as u64 + 1,
            gateway: Some(GatewayDescription {
                reply_inbox: format!("replies-{}", self.number),
                reply_address: write_document(&address)?,
                http: format!("10.99.0.1:{}", 20_000 + self.number),
                grpc: format!("10.99.0.1:{}", 30_000 + self.number),
            }),
            ..NodeDescription::default()
        })
    }

    fn unit_reports(&self) -> Result<node_report::Report> {
        let units = self.assignment.units.iter().flatten();
        let reports: Vec<UnitReport> = units.map(|unit| self.unit_report(unit)).collect();
        let document = write_document(&reports)?;
        Ok(node_report::Report::Units(UnitReports { document }))
    }

    fn unit_report(&self, unit: &Unit) -> UnitReport {
        let id: &UnitId = &unit.id;
        UnitReport {
            unit: id.clone(),
            state: UnitState::Up,
            instances: vec![InstanceDetail {
                name: format!("{id}-{}", self.number),
                state: "up".to_owned(),
                reason: None,
                address: Some(json!({ "tcp": format!("10.99.0.1:{}", 40_000 + self.number) })),
                process: None,
                restarts: 0,
                requests: 0,
                weights: None,
            }],
            window: 4,
            run_time: Duration::from_millis(5),
            recent_time: None,
            entropies: EntropyCounts::default(),
            weight_bytes: 1 << 20,
            max_batch_rows: None,
        }
    }
}
