//! A node that does nothing, on the embedded engine.

use std::time::Duration;

use tessera_core::Result;

use super::lab_cluster::LabCluster;
use super::{BenchCluster, Experiment};
use crate::finding::Finding;
use crate::process_memory::resident_bytes;

pub(super) const IDLE: Experiment = Experiment {
    name: "idle",
    about: "a node that has nothing to do, with the embedded engine",
    make: measure_idle,
};

fn measure_idle(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let node = cluster.add_node("idle", &["--engine", "rten"])?;
    std::thread::sleep(Duration::from_secs(3));
    let resident = resident_bytes(&node.process.id().to_string())? as f64 / 1e6;
    Ok(vec![Finding::at_most("resident memory", resident, 25.0, "MB")])
}
