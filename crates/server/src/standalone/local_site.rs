//! A node and its dispatcher as the one site that intent is carried out at.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tessera_control::{
    AppliedUnits, PingAnswer, Site, SiteFuture, TaskStatus, UnitStatus, UsedUnit, used_units,
};
use tessera_core::{Error, Result, lock};
use tessera_deploy::{Deployment, DeploymentChange, PlannedTask, TaskChange, Unit, UnitId};
use tessera_dispatch::{Dispatcher, RouteChange, UnitEntry};
use tessera_node::{DetachedInstances, NodeSupervisor};
use tessera_telemetry::{SystemSample, Telemetry};
use tessera_tensormq::Endpoint;

use crate::gateway::DispatchPart;
use crate::host_memory::check_memory;
use crate::node::{NodePart, instance_window};
use crate::system_sample::SampledParts;

/// What runs here.
pub struct LocalSite {
    pub(super) node: NodePart,
    pub(super) dispatch: DispatchPart,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) endpoint: Endpoint,
    cores: NonZeroUsize,
    deployment: Mutex<Deployment>,
    /// Held while units are started or stopped: what one change stops, the next may need again.
    changing: Arc<tokio::sync::Mutex<()>>,
}

impl LocalSite {
    pub(super) fn new(
        node: NodePart,
        dispatch: DispatchPart,
        telemetry: Arc<Telemetry>,
        endpoint: Endpoint,
        cores: NonZeroUsize,
    ) -> Self {
        let deployment = Mutex::new(Deployment::new(true));
        let changing = Arc::default();
        Self { node, dispatch, telemetry, endpoint, cores, deployment, changing }
    }

    /// The node.
    pub fn node_supervisor(&self) -> &NodeSupervisor {
        &self.node.supervisor
    }

    /// The engine of its units, with the version.
    pub(super) fn engine_name(&self) -> String {
        self.node.engine_name()
    }

    /// Cores that it computes on.
    pub(super) fn core_count(&self) -> usize {
        self.cores.get()
    }

    /// The dispatcher.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatch.dispatcher
    }

    /// Requests that wait or are on their way.
    pub(super) fn in_flight(&self) -> usize {
        let tasks = self.dispatch.dispatcher.list_tasks();
        tasks.iter().map(|entry| self.dispatch.dispatcher.task_in_flight(&entry.route.task)).sum()
    }

    /// The site at this moment, as telemetry shows it.
    pub(super) fn take_sample(&self) -> SystemSample {
        let units = self.lock_deployment().units().into_iter();
        SampledParts {
            node: &self.node,
            dispatcher: Some(&self.dispatch.dispatcher),
            units: units.map(|unit| (unit.id.clone(), unit)).collect(),
            copied_bytes: self.endpoint.copied_bytes(),
        }
        .take_sample()
    }

    pub(super) fn lock_deployment(&self) -> MutexGuard<'_, Deployment> {
        lock(&self.deployment)
    }

    /// The unit of this name, or with a block whose hash begins so.
    fn find_unit(&self, name: &str) -> Result<UnitId> {
        let deployment = self.lock_deployment();
        if let Some(unit) = deployment.find_unit(&UnitId(name.to_owned())) {
            return Ok(unit.id.clone());
        }
        let units = deployment.units();
        let is_it = |unit: &Unit| {
            name.len() >= 6 && unit.block_hashes().any(|hash| hash.to_string().starts_with(name))
        };
        let found: Vec<&UnitId> =
            units.iter().filter(|unit| is_it(unit)).map(|unit| &unit.id).collect();
        let join_names = |names: &mut dyn Iterator<Item = &UnitId>| {
            names.map(|id| id.0.as_str()).collect::<Vec<_>>().join(", ")
        };
        match found[..] {
            [id] => Ok(id.clone()),
            [] => {
                let known = join_names(&mut units.iter().map(|unit| &unit.id).take(20));
                let known = if known.is_empty() { "none".to_owned() } else { known };
                Err(Error::not_found(format!("unknown unit \"{name}\", there is {known}")))
            }
            _ => Err(Error::not_found(format!(
                "block \"{name}\" is part of several units, expected one of: {}",
                join_names(&mut found.into_iter())
            ))),
        }
    }

    /// What the dispatcher must know of a unit: how many requests an instance takes in, and how
    /// long each takes.
    fn unit_entry(&self, unit: &Unit) -> UnitEntry {
        let calibration = self.node.supervisor.unit_facts(&unit.id).map(|facts| facts.calibration);
        let window = instance_window(unit, calibration.as_ref(), self.cores);
        let time = calibration.map_or_else(Default::default, |calibration| calibration.time);
        UnitEntry { window, time }
    }

    async fn apply_change(&self, change: TaskChange, fusion: bool) -> Result<AppliedUnits> {
        let _changing = self.changing.lock().await;
        if let Some(task) = change.put.iter().find(|task| !task.settings.nodes.is_empty()) {
            return Err(Error::usage(format!(
                "task \"{}\": node: there is one host here; `tessera controller` has nodes",
                task.name
            )));
        }
        if let Some(task) = change.put.iter().find(|task| task.settings.accuracy_goal.is_some()) {
            return Err(Error::usage(format!(
                "task \"{}\": least_accuracy: thresholds are chosen by `tessera controller`; \
                 here they are set with exits",
                task.name
            )));
        }
        let (found, undo) = self.lock_deployment().change_with_fusion(change, fusion)?;
        if let Err(error) = self.start_units(&found).await {
            if let Err(second) = self.lock_deployment().undo_change(undo) {
                tracing::error!(%second, "a plan could not be taken back");
            }
            return Err(error);
        }
        let DeploymentChange { new_units, changed_units, removed_units, routes, .. } = found;
        let changed: Vec<&Arc<Unit>> = new_units.iter().chain(&changed_units).collect();
        let entries = changed.iter().map(|unit| (unit.id.clone(), self.unit_entry(unit)));
        let entries = entries.collect();
        self.provide_memory();
        let tasks: Vec<String> = routes.iter().map(|route| route.task.clone()).collect();
        let change = RouteChange { routes, removed: found.removed_tasks.clone(), units: entries };
        let previous = self.dispatch.dispatcher.change_routes(change);
        changed.iter().for_each(|unit| self.retire_surplus(unit));
        let applied = AppliedUnits {
            started: new_units.iter().map(|unit| unit.id.to_string()).collect(),
            stopped: removed_units.iter().map(ToString::to_string).collect(),
        };
        self.telemetry.publish_event(json!({
            "kind": "system", "started": applied.started, "stopped": applied.stopped,
            "changed": tasks, "removed": found.removed_tasks,
        }));
        self.stop_later(previous, removed_units);
        Ok(applied)
    }

    /// Starts what is new, and more instances of what should have more.
    async fn start_units(&self, found: &DeploymentChange) -> Result<()> {
        let node = self.node.supervisor.clone();
        let units: Vec<Arc<Unit>> =
            found.new_units.iter().chain(&found.changed_units).cloned().collect();
        let new: Vec<UnitId> = found.new_units.iter().map(|unit| unit.id.clone()).collect();
        let started = tokio::task::spawn_blocking(move || {
            let forecast = node.forecast_start(&units);
            forecast.and_then(|forecast| check_memory(&forecast)).map_err(|error| (None, error))?;
            units.iter().try_for_each(|unit| {
                node.start_unit(unit).map_err(|error| {
                    new.iter().for_each(|id| node.remove_unit(id));
                    (Some(unit.id.clone()), error)
                })
            })
        });
        let started =
            started.await.map_err(|error| Error::lost(format!("starting units: {error}")))?;
        started.map_err(|(unit, error)| {
            let Some(id) = unit else { return error };
            let tasks = self.lock_deployment().unit_tasks(&id).join(", ");
            error.with_context(format!("unit {id} (of {tasks})"))
        })
    }

    /// Has inputs be in memory that the units can read.
    fn provide_memory(&self) {
        let deployment = self.lock_deployment();
        let units: Vec<Arc<Unit>> = deployment.all_units().cloned().collect();
        drop(deployment);
        self.dispatch.memory.provide_for(units.iter().map(|unit| &**unit));
    }

    /// Stops the instances that a unit has more than it should, once nothing passes them.
    fn retire_surplus(&self, unit: &Unit) {
        let more = self.node.supervisor.surplus_instances(&unit.id, unit.settings.replicas);
        for instance in more {
            self.dispatch.dispatcher.retire_instance(&unit.id, &instance);
            let (node, dispatcher) =
                (self.node.supervisor.clone(), self.dispatch.dispatcher.clone());
            tokio::spawn(async move {
                dispatcher.wait_until_retired(&instance).await;
                let stop = move || node.remove_instance(&instance);
                if let Err(error) = tokio::task::spawn_blocking(stop).await {
                    tracing::error!(%error, "stopping an instance that is not needed any more");
                }
            });
        }
    }

    /// Stops what is not needed any more once nobody uses it.
    fn stop_later(&self, previous: u64, superfluous: Vec<UnitId>) {
        if superfluous.is_empty() {
            return;
        }
        let (node, dispatcher) = (self.node.supervisor.clone(), self.dispatch.dispatcher.clone());
        let changing = Arc::clone(&self.changing);
        tokio::spawn(async move {
            dispatcher.wait_until_drained(previous).await;
            let detached: Vec<DetachedInstances> = {
                let _changing = changing.lock().await;
                // It may be needed again by now.
                let unused = superfluous.iter().filter(|id| !dispatcher.uses_unit(id));
                unused.map(|id| node.detach_unit(id)).collect()
            };
            let stop = move || detached.into_iter().for_each(DetachedInstances::stop_all);
            if let Err(error) = tokio::task::spawn_blocking(stop).await {
                tracing::error!(%error, "stopping units that are not needed any more");
            }
        });
    }
}

impl Site for LocalSite {
    fn apply_tasks(
        &self,
        change: TaskChange,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        Box::pin(self.apply_change(change, fusion))
    }

    fn used_units(&self, tasks: &[&str]) -> Vec<UsedUnit> {
        used_units(&self.lock_deployment(), tasks)
    }

    fn unit_statuses(&self) -> Vec<UnitStatus> {
        self.list_units()
    }

    fn task_statuses(&self) -> Vec<TaskStatus> {
        self.list_tasks()
    }

    fn ping_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<Vec<PingAnswer>>> {
        Box::pin(async move {
            let id = self.find_unit(unit)?;
            let node = self.node.supervisor.clone();
            let pinged = tokio::task::spawn_blocking(move || node.ping_unit(&id)).await;
            let pinged = pinged.map_err(|error| Error::lost(format!("a ping: {error}")))??;
            let answer = |(instance, result): (String, tessera_node::PingResult)| match result {
                Ok((took, heartbeat)) => PingAnswer {
                    instance,
                    answered_ms: Some(took.as_secs_f64() * 1e3),
                    error: None,
                    busy_ms: heartbeat.busy_ms,
                    requests: heartbeat.done,
                },
                Err(error) => PingAnswer {
                    instance,
                    answered_ms: None,
                    error: Some(error.to_string()),
                    busy_ms: 0,
                    requests: 0,
                },
            };
            Ok(pinged.into_iter().map(answer).collect())
        })
    }

    fn stop_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            let (id, node) = (self.find_unit(unit)?, self.node.supervisor.clone());
            let stopped = tokio::task::spawn_blocking(move || node.stop_unit(&id)).await;
            stopped.map_err(|error| Error::lost(format!("stopping a unit: {error}")))?
        })
    }

    fn start_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            let (id, node) = (self.find_unit(unit)?, self.node.supervisor.clone());
            let started = tokio::task::spawn_blocking(move || node.restart_unit(&id)).await;
            started.map_err(|error| Error::lost(format!("starting a unit: {error}")))?
        })
    }

    fn set_threshold(&self, task: &Arc<PlannedTask>, exit: &str) -> Result<()> {
        let known = task.graph.exits.iter().find(|known| known.output == exit);
        let known = known.ok_or_else(|| {
            Error::not_found(format!("task \"{}\" has no exit \"{exit}\"", task.name))
        })?;
        self.dispatch.dispatcher.set_threshold(&task.name, exit, known.threshold)?;
        self.lock_deployment().set_threshold(&task.name, exit, known.threshold);
        Ok(())
    }

    fn subscribe_events(&self) -> tokio::sync::broadcast::Receiver<Arc<str>> {
        self.telemetry.subscribe_events()
    }

    fn subscribe_reports(&self) -> Option<tokio::sync::broadcast::Receiver<Arc<str>>> {
        Some(self.telemetry.subscribe_reports())
    }

    fn list_instance_events(&self) -> Vec<serde_json::Value> {
        self.telemetry.list_instance_events()
    }

    fn list_notable_requests(&self, task: Option<&str>) -> Option<serde_json::Value> {
        Some(self.telemetry.list_notable_requests(task))
    }
}
