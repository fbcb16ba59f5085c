//! What the control plane tells of a site: its units and tasks.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_cluster::WeightReport;
use tessera_control::{ExitStatus, InstanceReport, TaskStatus, UnitStatus};
use tessera_core::Device;
use tessera_deploy::{Unit, UnitId};
use tessera_dispatch::TaskAvailability;
use tessera_node::{InstanceState, InstanceStatus};

use super::local_site::LocalSite;

impl LocalSite {
    /// The units, with their instances.
    pub(super) fn list_units(&self) -> Vec<UnitStatus> {
        let status = self.node.supervisor.instance_statuses();
        let mut units: Vec<(Arc<Unit>, Vec<String>)> = {
            let deployment = self.lock_deployment();
            let units = deployment.units().into_iter();
            units.map(|unit| (Arc::clone(&unit), deployment.unit_tasks(&unit.id))).collect()
        };
        units.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        let mut instances_of: HashMap<&UnitId, Vec<&InstanceStatus>> = HashMap::new();
        for status in &status {
            instances_of.entry(&status.unit).or_default().push(status);
        }
        units
            .into_iter()
            .map(|(unit, tasks)| {
                let facts = self.node.supervisor.unit_facts(&unit.id);
                let mine = instances_of.get(&unit.id).into_iter().flatten();
                let instances = mine.map(|status| {
                    let (state, reason) = describe_state(&status.state);
                    InstanceReport {
                        name: status.instance.clone(),
                        state,
                        reason,
                        process: status.process,
                        restarts: status.restarts,
                        requests: status.heartbeat.done,
                        in_flight: self.dispatch.dispatcher.instance_in_flight(&status.instance)
                            as u64,
                        weights: weight_report(status, unit.settings.device),
                    }
                });
                UnitStatus {
                    instances: instances.collect(),
                    name: unit.id.to_string(),
                    blocks: unit.block_hashes().map(|hash| hash.to_string()).collect(),
                    isolation: unit.settings.isolation.to_string(),
                    device: unit.settings.device.to_string(),
                    node: None,
                    weight_bytes: facts.as_ref().map_or(0, |facts| facts.weight_bytes as u64),
                    max_batch_rows: facts
                        .and_then(|facts| facts.calibration.batching)
                        .map(|batching| batching.max_rows as u64),
                    tasks,
                }
            })
            .collect()
    }

    /// The tasks, with their paths and exits.
    pub(super) fn list_tasks(&self) -> Vec<TaskStatus> {
        let tasks = self.dispatch.dispatcher.list_tasks();
        tasks
            .iter()
            .map(|entry| {
                let availability = self.dispatch.dispatcher.task_availability(entry);
                let (state, reason) = match availability {
                    TaskAvailability::Ready => ("ready", None),
                    TaskAvailability::Loading(reason) => ("loading", Some(reason)),
                    TaskAvailability::Unavailable(reason) => ("unavailable", Some(reason)),
                };
                let route = &entry.route;
                TaskStatus {
                    name: route.task.clone(),
                    version: route.version.clone(),
                    state: state.to_owned(),
                    reason,
                    path: route.steps.iter().map(|step| step.unit.to_string()).collect(),
                    exits: entry
                        .list_exits()
                        .into_iter()
                        .map(|(name, threshold, taken)| ExitStatus { name, threshold, taken })
                        .collect(),
                    in_flight: self.dispatch.dispatcher.task_in_flight(&route.task) as u64,
                }
            })
            .collect()
    }
}

/// Where the weights of an instance are; `None` where it has none.
pub(crate) fn weight_report(status: &InstanceStatus, device: Device) -> Option<WeightReport> {
    let Some(known) = &status.weights else {
        let place = if device == Device::Cpu { "memory" } else { "gpu" };
        let report =
            WeightReport { place: place.to_owned(), loads: None, evictions: None, load_ms: None };
        return (status.state == InstanceState::Up).then_some(report);
    };
    Some(WeightReport {
        place: known.place.name().to_owned(),
        loads: Some(known.loads),
        evictions: Some(known.evictions),
        load_ms: (known.loads > 0)
            .then(|| known.load_time.as_secs_f64() * 1e3 / known.loads as f64),
    })
}

/// A state in a word, and why where it needs one.
pub(crate) fn describe_state(state: &InstanceState) -> (String, Option<String>) {
    let (word, reason) = match state {
        InstanceState::Starting => ("starting", None),
        InstanceState::Up => ("up", None),
        InstanceState::Restarting => ("restarting", None),
        InstanceState::Failed(reason) => ("failed", Some(reason.clone())),
        InstanceState::Stopped => ("stopped", None),
    };
    (word.to_owned(), reason)
}
