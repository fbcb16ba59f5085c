//! Several gateways, of which one is killed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tessera_core::Result;

use super::lab_cluster::LabCluster;
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const GATEWAYS: Experiment = Experiment {
    name: "gateways",
    about: "three gateways are asked, and one of them is killed",
    make: kill_gateway,
};

fn kill_gateway(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let _worker = cluster.add_node("worker", &[])?;
    let mut gates = Vec::new();
    for name in ["first", "second", "third"] {
        gates.push(cluster.add_node(name, &["--gateway"])?);
    }
    let (files, requests) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    cluster.put_task("task0", &json!({ "model": "task0", "node": "worker" }))?;
    let requests = Arc::new(gates[0].check_requests(requests)?);
    let mut clients = Vec::new();
    for gate in &gates {
        clients.push(gate.start_clients(1, &requests)?);
    }
    std::thread::sleep(Duration::from_secs(2));
    gates[2].process.kill();
    std::thread::sleep(Duration::from_secs(5));
    let mut findings = Vec::new();
    for (number, clients) in clients.into_iter().enumerate().take(2) {
        let counts = clients.stop_and_count();
        let failed = usize::try_from(counts.asked - counts.answered + counts.wrong).unwrap_or(0);
        let what = format!("failed at gateway {}, which lives on", number + 1);
        let detail = format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms);
        findings.push(Finding::exactly(what, failed, 0).with_detail(detail));
    }
    Ok(findings)
}
