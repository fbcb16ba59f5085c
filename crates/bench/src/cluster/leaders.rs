//! Three controllers with their state in etcd: the one that leads dies or sleeps, and etcd is away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::{Error, Result};
use tessera_lab::EtcdMembers;

use super::lab_cluster::{LabCluster, LabNode, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::{BackgroundClients, write_siblings};
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const LEADERS: Experiment = Experiment {
    name: "leaders",
    about: "three controllers and etcd: the leader is killed, then sleeps for 10 s; etcd is away",
    make: lose_leaders,
};

/// How long the leader sleeps.
const SLEEP: Duration = Duration::from_secs(10);
const CONTROLLERS: usize = 3;

/// Three controllers, two nodes, and a task that is asked.
struct LedCluster {
    cluster: LabCluster,
    etcd: EtcdMembers,
    clients: BackgroundClients,
    _nodes: [LabNode; 2],
}

impl LedCluster {
    fn start(arguments: &BenchCluster) -> Result<Self> {
        let (mut cluster, etcd) = LabCluster::start_with_etcd(CONTROLLERS)?;
        let (files, requests) = write_siblings("resnet18", 1, cluster.path())?;
        for number in 0..CONTROLLERS {
            store_split(&files[0], "task0", 2, &cluster.numbered_repository(number))?;
        }
        wait_until("a controller leads", || Ok(leader_of(&cluster).is_some()))?;
        let edge = cluster.add_node("edge", &["--gateway"])?;
        let cloud = cluster.add_node("cloud", &[])?;
        cluster.put_task("task0", &json!({ "model": "task0", "node": ["edge", "cloud"] }))?;
        let requests = Arc::new(edge.check_requests(requests)?);
        let clients = edge.start_clients(arguments.clients, &requests)?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(Self { cluster, etcd, clients, _nodes: [edge, cloud] })
    }

    fn leader(&self) -> Result<usize> {
        leader_of(&self.cluster).ok_or_else(|| Error::lost("no controller leads"))
    }

    /// How long it takes until another leads, and has all nodes.
    fn wait_for_leader(&self, since: Instant, but: Option<usize>) -> Result<f64> {
        wait_until("another leads and has the nodes", || {
            let is_other = leader_of(&self.cluster).is_some_and(|leader| Some(leader) != but);
            Ok(is_other && self.has_nodes())
        })?;
        Ok(since.elapsed().as_secs_f64())
    }

    fn has_nodes(&self) -> bool {
        let answer = self.cluster.ask(HttpMethod::GET, "/v1/nodes", None);
        let nodes = answer.ok().and_then(|answer| answer["nodes"].as_array().cloned());
        let is_attached = |node: &Value| node["state"] == "attached";
        nodes.is_some_and(|nodes| nodes.len() == 2 && nodes.iter().all(is_attached))
    }
}

/// The controller that answers by itself.
fn leader_of(cluster: &LabCluster) -> Option<usize> {
    let leads = |number: &usize| {
        let is_there = cluster.controller_process(*number).is_some();
        is_there && cluster.answers_itself(*number)
    };
    (0..CONTROLLERS).find(leads)
}

fn lose_leaders(arguments: &BenchCluster) -> Result<Vec<Finding>> {
    let mut led = LedCluster::start(arguments)?;
    let places = led.cluster.unit_places()?;
    let mut findings = Vec::new();
    // Killed.
    let (first, start) = (led.leader()?, Instant::now());
    led.cluster.kill_numbered(first);
    let took = led.wait_for_leader(start, Some(first))?;
    findings.push(Finding::at_most("the leader is killed: another has the nodes", took, 6.0, "s"));
    led.cluster.start_numbered(first)?;
    // Asleep, and a change meanwhile that it knows nothing of.
    let (second, start) = (led.leader()?, Instant::now());
    led.pause_controller(second, true)?;
    let took = led.wait_for_leader(start, Some(second))?;
    findings.push(Finding::at_most("the leader sleeps: another has the nodes", took, 6.0, "s"));
    led.cluster.put_task("later", &json!({ "model": "task0", "node": "cloud" }))?;
    std::thread::sleep(SLEEP.saturating_sub(start.elapsed()));
    let before = led.cluster.unit_places()?;
    led.pause_controller(second, false)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = led.cluster.unit_places()?;
    let lost = before.iter().filter(|place| !after.contains(place)).count();
    findings.push(Finding::exactly("units that it ended when it woke up", lost, 0));
    let leads = leader_of(&led.cluster) == Some(second) || led.cluster.answers_itself(second);
    findings.push(Finding::exactly("leads when it woke up", usize::from(leads), 0));
    findings.extend(led.without_etcd(arguments.away)?);
    let after = led.cluster.unit_places()?;
    let restarts = places.iter().filter(|place| !after.contains(place)).count();
    findings.push(Finding::exactly("units that run anew", restarts, 0));
    let counts = led.clients.stop_and_count();
    let failed = counts.asked - counts.answered + counts.wrong;
    let detail = format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms);
    findings.push(
        Finding::exactly("failed requests", usize::try_from(failed).unwrap_or(usize::MAX), 0)
            .with_detail(detail),
    );
    Ok(findings)
}

impl LedCluster {
    fn pause_controller(&self, number: usize, is_paused: bool) -> Result<()> {
        let process = self.cluster.controller_process(number);
        process.ok_or_else(|| Error::lost("a controller has ended"))?.pause(is_paused)
    }

    /// All of etcd is away for so many seconds.
    fn without_etcd(&mut self, seconds: u64) -> Result<Vec<Finding>> {
        for place in 0..3 {
            self.etcd.kill_member(place)?;
        }
        std::thread::sleep(Duration::from_secs(seconds));
        let task = json!({ "model": "task0" });
        let refused = self.cluster.put_task("refused", &task);
        let reason = refused.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let start = Instant::now();
        let host = self.cluster.controller_host.clone();
        host.run_inside(|| (0..3).try_for_each(|place| self.etcd.restart_member(place)))??;
        let took = self.wait_for_leader(start, None)?;
        Ok(vec![
            Finding::exactly("etcd is away: a change is refused", usize::from(refused.is_err()), 1)
                .with_detail(reason),
            Finding::at_most("etcd is back: one leads and has the nodes", took, 12.0, "s"),
        ])
    }
}
