//! A node and its dispatcher as the one site that intent is carried out at.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tessera_control::{AppliedUnits, PingAnswer, Site, SiteFuture, TaskStatus, UnitStatus};
use tessera_core::{Device, Error, Result, lock};
use tessera_deploy::{Isolation, PlannedTask, Unit, UnitId, plan_deployment};
use tessera_dispatch::{Dispatcher, UnitEntry};
use tessera_node::{NodeSupervisor, UnitFacts};
use tessera_telemetry::Telemetry;
use tessera_tensormq::Endpoint;

use crate::gateway::DispatchPart;
use crate::node::NodePart;

/// Requests of one task whose rows may leave at exits travel row by row: so many of them at a time.
const ROWS_AT_A_TIME: usize = 32;

/// What runs here.
pub struct LocalSite {
    pub(super) node: NodePart,
    pub(super) dispatch: DispatchPart,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) endpoint: Endpoint,
    cores: NonZeroUsize,
    units: Mutex<BTreeMap<UnitId, Unit>>,
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
        let (units, changing) = (Mutex::default(), Arc::default());
        Self { node, dispatch, telemetry, endpoint, cores, units, changing }
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

    pub(super) fn lock_units(&self) -> MutexGuard<'_, BTreeMap<UnitId, Unit>> {
        lock(&self.units)
    }

    /// The unit of this name, or with a block whose hash begins so.
    fn find_unit(&self, name: &str) -> Result<UnitId> {
        let units = self.lock_units();
        if let Some((id, _)) = units.iter().find(|(id, _)| id.0 == name) {
            return Ok(id.clone());
        }
        let is_it = |unit: &Unit| {
            name.len() >= 6 && unit.block_hashes().any(|hash| hash.to_string().starts_with(name))
        };
        let found: Vec<&UnitId> =
            units.iter().filter(|(_, unit)| is_it(unit)).map(|(id, _)| id).collect();
        match found[..] {
            [id] => Ok(id.clone()),
            [] => {
                let known: Vec<&str> = units.keys().map(|id| id.0.as_str()).take(20).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Error::not_found(format!("unknown unit \"{name}\", there is {known}")))
            }
            _ => {
                let known: Vec<&str> = found.iter().map(|id| id.0.as_str()).collect();
                Err(Error::not_found(format!(
                    "block \"{name}\" is part of several units, expected one of: {}",
                    known.join(", ")
                )))
            }
        }
    }

    /// How many requests an instance takes in.
    fn instance_window(&self, unit: &Unit, facts: Option<&UnitFacts>, splits: bool) -> usize {
        let batch = facts.and_then(|facts| facts.calibration.batching).map_or(1, |b| b.max_rows);
        // One that runs and one that waits for each core, so that none is ever idle.
        let busy = 2 * self.cores.get() + 2;
        let rows = if splits && unit.is_batchable { ROWS_AT_A_TIME } else { 0 };
        busy.max(2 * batch).max(rows)
    }

    async fn apply_all(&self, tasks: Vec<PlannedTask>, fusion: bool) -> Result<AppliedUnits> {
        let deployment = plan_deployment(&tasks, fusion)?;
        let _changing = self.changing.lock().await;
        let mut applied = AppliedUnits::default();
        let before = self.lock_units().clone();
        for unit in &deployment.units {
            if before.contains_key(&unit.id) {
                applied.kept.push(unit.id.to_string());
            } else {
                applied.started.push(unit.id.to_string());
            }
        }
        // Also those that are kept and others than before: they may have more replicas now.
        let is_as_before = |unit: &&Unit| before.get(&unit.id).is_some_and(|known| known == *unit);
        let units: Vec<Unit> =
            deployment.units.iter().filter(|unit| !is_as_before(unit)).cloned().collect();
        let node = self.node.supervisor.clone();
        let new: Vec<UnitId> = deployment
            .units
            .iter()
            .map(|unit| unit.id.clone())
            .filter(|id| !before.contains_key(id))
            .collect();
        let started = tokio::task::spawn_blocking(move || {
            units.iter().try_for_each(|unit| node.start_unit(unit)).inspect_err(|_| {
                new.iter().for_each(|id| node.remove_unit(id));
            })
        });
        started.await.map_err(|error| Error::lost(format!("starting units: {error}")))??;
        let mut entries = HashMap::new();
        let with_exits = deployment.routes.iter().filter(|route| !route.exits.is_empty());
        let splitting: HashSet<UnitId> =
            with_exits.flat_map(|route| &route.steps).map(|step| step.unit.clone()).collect();
        for unit in &deployment.units {
            let facts = self.node.supervisor.unit_facts(&unit.id);
            let splits = splitting.contains(&unit.id);
            let window = self.instance_window(unit, facts.as_ref(), splits);
            let time = facts.as_ref().map_or_else(Default::default, |facts| facts.calibration.time);
            entries.insert(unit.id.clone(), UnitEntry { window, time });
            if unit.graph.blocks.len() > 1 {
                let blocks = unit.block_hashes().map(|hash| hash.to_string()).collect();
                applied.fused.push((unit.id.to_string(), blocks));
            }
        }
        let wanted: BTreeMap<UnitId, Unit> =
            deployment.units.into_iter().map(|unit| (unit.id.clone(), unit)).collect();
        let superfluous: Vec<UnitId> =
            before.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        applied.stopped = superfluous.iter().map(ToString::to_string).collect();
        let is_process = |unit: &Unit| unit.settings.isolation == Isolation::Process;
        self.dispatch.memory.set_shared(wanted.values().any(is_process));
        let on_gpu = |unit: &Unit| match (unit.settings.device, unit.settings.isolation) {
            (Device::Cuda(number), Isolation::Thread) => Some(number),
            _ => None,
        };
        self.dispatch.memory.set_gpu(wanted.values().find_map(on_gpu));
        *self.lock_units() = wanted;
        let previous = self.dispatch.dispatcher.swap_routes(deployment.routes, entries);
        self.retire_surplus();
        self.telemetry.publish_event(json!({ "kind": "system", "started": applied.started,
            "stopped": applied.stopped, "tasks": tasks.iter().map(|t| &t.name).collect::<Vec<_>>() }));
        Ok(self.stop_later(previous, superfluous, applied))
    }

    /// Stops the instances that units have more than they should, once nothing passes them.
    fn retire_surplus(&self) {
        let replicas = |(id, unit): (&UnitId, &Unit)| (id.clone(), unit.settings.replicas);
        let wanted: Vec<(UnitId, usize)> = self.lock_units().iter().map(replicas).collect();
        for (id, replicas) in wanted {
            for instance in self.node.supervisor.surplus_instances(&id, replicas) {
                self.dispatch.dispatcher.retire_instance(&id, &instance);
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
    }

    /// Stops what is not needed any more once nobody uses it.
    fn stop_later(
        &self,
        previous: u64,
        superfluous: Vec<UnitId>,
        applied: AppliedUnits,
    ) -> AppliedUnits {
        if superfluous.is_empty() {
            return applied;
        }
        let (node, dispatcher) = (self.node.supervisor.clone(), self.dispatch.dispatcher.clone());
        let changing = Arc::clone(&self.changing);
        tokio::spawn(async move {
            dispatcher.wait_until_drained(previous).await;
            let _changing = changing.lock().await;
            let stop = move || {
                // It may be needed again by now.
                for id in superfluous.iter().filter(|id| !dispatcher.uses_unit(id)) {
                    node.remove_unit(id);
                }
            };
            if let Err(error) = tokio::task::spawn_blocking(stop).await {
                tracing::error!(%error, "stopping units that are not needed any more");
            }
        });
        applied
    }
}

impl Site for LocalSite {
    fn apply_tasks(
        &self,
        tasks: Vec<PlannedTask>,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        Box::pin(self.apply_all(tasks, fusion))
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

    fn set_threshold(&self, task: &str, exit: &str, threshold: f32) -> Result<()> {
        self.dispatch.dispatcher.set_threshold(task, exit, threshold)
    }

    fn subscribe_events(&self) -> tokio::sync::broadcast::Receiver<Arc<str>> {
        self.telemetry.subscribe_events()
    }
}
