//! Nodes that are killed under load, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_command::HttpMethod;
use tessera_core::{Error, Result};

use super::lab_cluster::{LabCluster, LabNode, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const NODE_KILLS: Experiment = Experiment {
    name: "node-kills",
    about: "the node that runs a task is killed under load, again and again",
    make: kill_nodes,
};

fn kill_nodes(arguments: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let gate = cluster.add_node("gate", &["--gateway"])?;
    let mut workers = vec![cluster.add_node("first", &[])?, cluster.add_node("second", &[])?];
    // It answers, and others compute.
    cluster.ask(HttpMethod::POST, "/v1/nodes/gate/drain", None)?;
    let (files, requests) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    cluster.put_task("task0", &json!({ "model": "task0" }))?;
    let requests = Arc::new(gate.check_requests(requests)?);
    let clients = gate.start_clients(arguments.clients, &requests)?;
    let (mut noticed, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..arguments.kills {
        // A request that was hit twice may have been the cause, and is not tried a third time.
        std::thread::sleep(Duration::from_secs(1));
        let (at, took) = kill_one(&cluster, &mut workers)?;
        noticed.push(at);
        moved.push(took);
    }
    std::thread::sleep(Duration::from_secs(1));
    let counts = clients.stop_and_count();
    let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let errors: u64 = counts.errors.values().sum();
    let detail = match counts.errors.iter().next() {
        Some((error, _)) => format!("of {}; {error}", counts.asked),
        None => format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms),
    };
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(vec![
        Finding::exactly("requests without an answer", count(counts.unanswered), 0)
            .with_detail(format!("{} kills", arguments.kills)),
        Finding::exactly("wrong answers", count(counts.wrong), 0),
        Finding::exactly("requests that failed", count(errors), 0).with_detail(detail),
        Finding::at_most("until a death was noticed, at most", most(&noticed), 3.0, "s"),
        Finding::at_most("until the task ran elsewhere, at most", most(&moved), 6.0, "s"),
    ])
}

/// Kills the node that computes, and starts it again when the other does; how long it took until
/// that was noticed, and until then.
fn kill_one(cluster: &LabCluster, workers: &mut [LabNode]) -> Result<(f64, f64)> {
    let places = cluster.unit_places()?;
    let at = places.first().map(|(node, _)| node.clone()).unwrap_or_default();
    let node = workers.iter_mut().find(|node| node.name == at);
    let node = node.ok_or_else(|| Error::engine(format!("the task runs at \"{at}\"")))?;
    let start = Instant::now();
    node.process.kill();
    wait_until("it is noticed", || Ok(cluster.node_state(&at)? == "away"))?;
    let noticed = start.elapsed().as_secs_f64();
    wait_until("it runs elsewhere", || {
        let places = cluster.unit_places()?;
        let has_moved = |(node, instance): &(String, String)| *node != at && !instance.is_empty();
        Ok(!places.is_empty() && places.iter().all(has_moved))
    })?;
    let moved = start.elapsed().as_secs_f64();
    cluster.restart_node(node)?;
    cluster.wait_for_state(&at, "attached")?;
    Ok((noticed, moved))
}
