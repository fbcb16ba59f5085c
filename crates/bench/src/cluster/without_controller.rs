//! A controller that is away while a cluster is asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_core::Result;

use super::lab_cluster::{LabCluster, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const WITHOUT_CONTROLLER: Experiment = Experiment {
    name: "without-controller",
    about: "the controller is killed under load, and another begins later",
    make: kill_controller,
};

fn kill_controller(arguments: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let (edge, _cloud) =
        (cluster.add_node("edge", &["--gateway"])?, cluster.add_node("cloud", &[])?);
    let (files, requests) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    cluster.put_task("task0", &json!({ "model": "task0", "node": ["edge", "cloud"] }))?;
    let before = cluster.unit_places()?;
    let requests = Arc::new(edge.check_requests(requests)?);
    let clients = edge.start_clients(arguments.clients, &requests)?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.kill_controller();
    std::thread::sleep(Duration::from_secs(arguments.away));
    let start = Instant::now();
    cluster.start_controller()?;
    for name in ["edge", "cloud"] {
        wait_until("nodes are back", || Ok(cluster.node_state(name)? == "attached"))?;
    }
    let back = start.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    let counts = clients.stop_and_count();
    let failed = counts.asked - counts.answered + counts.wrong;
    let after = cluster.unit_places()?;
    let restarts = after.iter().filter(|place| !before.contains(place)).count();
    let detail = format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms);
    Ok(vec![
        Finding::exactly("failed requests", usize::try_from(failed).unwrap_or(0), 0)
            .with_detail(detail),
        Finding::exactly("units that run anew", restarts, 0),
        Finding::at_most("until the nodes are back at the next", back, 5.0, "s"),
    ])
}
