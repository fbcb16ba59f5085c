//! Tasks and units of a cluster as people see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_cluster::UnitReport;
use tessera_deploy::{PlannedTask, RouteExit, TaskRoute, Unit, UnitId};

use super::carrying_out::unit_readiness;
use super::node_table::KnownNode;
use crate::site::{ExitStatus, InstanceReport, TaskStatus, UnitStatus};

pub(super) fn unplaced_status(task: &PlannedTask) -> TaskStatus {
    TaskStatus {
        name: task.name.clone(),
        version: task.version.clone(),
        state: "unavailable".to_owned(),
        reason: Some("no node is there to run it".to_owned()),
        path: Vec::new(),
        exits: Vec::new(),
        in_flight: 0,
    }
}

pub(super) fn unit_status(
    unit: &Unit,
    tasks: Vec<String>,
    report: Option<&UnitReport>,
) -> UnitStatus {
    let instances = report.into_iter().flat_map(|report| &report.instances);
    UnitStatus {
        name: unit.id.to_string(),
        blocks: unit.block_hashes().map(|hash| hash.to_string()).collect(),
        tasks,
        isolation: unit.settings.isolation.to_string(),
        device: unit.settings.device.to_string(),
        node: unit.settings.node.clone(),
        weight_bytes: report.map_or(0, |report| report.weight_bytes),
        max_batch_rows: report.and_then(|report| report.max_batch_rows),
        instances: instances
            .map(|instance| InstanceReport {
                name: instance.name.clone(),
                state: instance.state.clone(),
                reason: instance.reason.clone(),
                process: instance.process,
                restarts: instance.restarts,
                requests: instance.requests,
                in_flight: 0,
                weights: instance.weights.clone(),
            })
            .collect(),
    }
}

pub(super) fn task_status(
    route: &TaskRoute,
    units: &BTreeMap<UnitId, Arc<Unit>>,
    nodes: &BTreeMap<String, KnownNode>,
) -> TaskStatus {
    let steps = route.steps.iter().filter_map(|step| units.get(&step.unit));
    let mut state = ("ready", None);
    for unit in steps {
        match unit_readiness(unit, nodes) {
            Ok(true) => {}
            Ok(false) => state = ("loading", Some(format!("unit {} is starting", unit.id))),
            Err(error) => {
                state = ("unavailable", Some(error.to_string()));
                break;
            }
        }
    }
    let traffic = || nodes.values().filter_map(|node| node.traffic.get(&route.task));
    let exit = |exit: &RouteExit| ExitStatus {
        name: exit.name.clone(),
        threshold: exit.threshold,
        taken: traffic().filter_map(|traffic| traffic.exits.get(&exit.name)).sum(),
    };
    TaskStatus {
        name: route.task.clone(),
        version: route.version.clone(),
        state: state.0.to_owned(),
        reason: state.1,
        path: route.steps.iter().map(|step| step.unit.to_string()).collect(),
        exits: route.exits.iter().map(exit).collect(),
        in_flight: traffic().map(|traffic| traffic.in_flight).sum(),
    }
}
