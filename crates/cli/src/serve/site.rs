//! A node and its dispatcher as the one site that intent is carried out at.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tessera_control::{
    Applied, BlockStatus, Doing, ExitStatus, InstanceReport, PingAnswer, Site, TaskStatus,
};
use tessera_core::{Device, Error, Result};
use tessera_gateway::{
    Dispatcher, InstanceGpu, InstanceSample, Monitor, Sample, TaskSample, UnitEntry,
};
use tessera_node::{GpuUse, InstanceState, InstanceStatus, Node, NodeEvent, UnitFacts};
use tessera_plan::{Isolation, PlannedTask, Unit, UnitId, deploy};
use tessera_tensormq::Courier;

use super::gpus::Gpus;
use super::input_memory::InputMemory;

/// Requests of one task whose rows may leave at exits travel row by row: so many of them at a time.
const ROWS_AT_A_TIME: usize = 32;

/// What runs here.
pub(crate) struct ServeSite {
    pub(crate) node: Node,
    pub(super) dispatcher: Dispatcher,
    pub(super) monitor: Arc<Monitor>,
    courier: Courier,
    cores: usize,
    memory: Arc<InputMemory>,
    units: Mutex<BTreeMap<UnitId, Unit>>,
    /// Held while units are started or stopped: what one change stops, the next may need again.
    changing: Arc<tokio::sync::Mutex<()>>,
    gpus: Gpus,
}

/// Passes what happens to instances on to the dispatcher.
pub(super) fn pass_on(dispatcher: Dispatcher, monitor: Arc<Monitor>) -> impl Fn(NodeEvent) {
    move |event| match event {
        NodeEvent::Up { unit, instance } => {
            dispatcher.instance_up(&unit, &instance);
            monitor.tell(json!({ "kind": "up", "block": unit, "instance": instance }));
        }
        NodeEvent::Down { unit, instance, why, comes_back } => {
            dispatcher.instance_down(&unit, &instance, &why, comes_back);
            monitor.tell(json!({
                "kind": "down", "block": unit, "instance": instance, "why": why,
                "comes_back": comes_back,
            }));
        }
        NodeEvent::Lost { request, part } => dispatcher.lost(request, part),
    }
}

impl ServeSite {
    pub(super) fn new(
        node: Node,
        dispatcher: Dispatcher,
        monitor: Arc<Monitor>,
        courier: Courier,
        cores: usize,
        memory: Arc<InputMemory>,
    ) -> Self {
        let (units, changing) = (Mutex::default(), Arc::default());
        let gpus = Gpus::default();
        Self { node, dispatcher, monitor, courier, cores, memory, units, changing, gpus }
    }

    /// Requests that wait or are on their way.
    pub(super) fn in_flight(&self) -> usize {
        let tasks = self.dispatcher.tasks();
        tasks.iter().map(|entry| self.dispatcher.in_flight(&entry.route.task)).sum()
    }

    fn units(&self) -> MutexGuard<'_, BTreeMap<UnitId, Unit>> {
        self.units.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The unit of this name, or with a block whose hash begins so.
    fn unit(&self, name: &str) -> Result<UnitId> {
        let units = self.units();
        if let Some((id, _)) = units.iter().find(|(id, _)| id.0 == name) {
            return Ok(id.clone());
        }
        let is_it = |unit: &Unit| {
            name.len() >= 6 && unit.blocks().any(|hash| hash.to_string().starts_with(name))
        };
        let found: Vec<&UnitId> =
            units.iter().filter(|(_, unit)| is_it(unit)).map(|(id, _)| id).collect();
        match found[..] {
            [id] => Ok(id.clone()),
            [] => {
                let known: Vec<&str> = units.keys().map(|id| id.0.as_str()).take(20).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Error::not_found(format!("unknown block \"{name}\", there is {known}")))
            }
            _ => {
                let known: Vec<&str> = found.iter().map(|id| id.0.as_str()).collect();
                Err(Error::not_found(format!(
                    "block \"{name}\" is part of several, expected one of: {}",
                    known.join(", ")
                )))
            }
        }
    }

    /// How many requests an instance takes in.
    fn window(&self, unit: &Unit, facts: Option<&UnitFacts>, splits: bool) -> usize {
        let batch = facts.and_then(|facts| facts.findings.batching).map_or(1, |b| b.max_rows);
        // One that runs and one that waits for each core, so that none is ever idle.
        let busy = 2 * self.cores + 2;
        let rows = if splits && unit.is_batchable { ROWS_AT_A_TIME } else { 0 };
        busy.max(2 * batch).max(rows)
    }

    async fn apply_all(&self, tasks: Vec<PlannedTask>, fusion: bool) -> Result<Applied> {
        let deployment = deploy(&tasks, fusion)?;
        let _changing = self.changing.lock().await;
        let mut applied = Applied::default();
        let before = self.units().clone();
        for unit in &deployment.units {
            if before.contains_key(&unit.id) {
                applied.kept.push(unit.id.to_string());
            } else {
                applied.started.push(unit.id.to_string());
            }
        }
        // Also those that are kept: they may have more replicas now.
        let (node, units) = (self.node.clone(), deployment.units.clone());
        let new: Vec<UnitId> = deployment
            .units
            .iter()
            .map(|unit| unit.id.clone())
            .filter(|id| !before.contains_key(id))
            .collect();
        let started = tokio::task::spawn_blocking(move || {
            units.iter().try_for_each(|unit| node.start(unit)).inspect_err(|_| {
                new.iter().for_each(|id| node.remove(id));
            })
        });
        started.await.map_err(|error| Error::lost(format!("starting blocks: {error}")))??;
        let mut entries = HashMap::new();
        for unit in &deployment.units {
            let facts = self.node.facts(&unit.id);
            let splits = deployment.routes.iter().any(|route| {
                !route.exits.is_empty() && route.steps.iter().any(|step| step.unit == unit.id)
            });
            let window = self.window(unit, facts.as_ref(), splits);
            let time = facts.as_ref().map_or_else(Default::default, |facts| facts.findings.time);
            entries.insert(unit.id.clone(), UnitEntry { window, time });
            if unit.graph.blocks.len() > 1 {
                let blocks = unit.blocks().map(|hash| hash.to_string()).collect();
                applied.fused.push((unit.id.to_string(), blocks));
            }
        }
        let wanted: BTreeMap<UnitId, Unit> =
            deployment.units.into_iter().map(|unit| (unit.id.clone(), unit)).collect();
        let superfluous: Vec<UnitId> =
            before.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        applied.stopped = superfluous.iter().map(ToString::to_string).collect();
        let is_process = |unit: &Unit| unit.settings.isolation == Isolation::Process;
        self.memory.set_shared(wanted.values().any(is_process));
        let on_gpu = |unit: &Unit| match (unit.settings.device, unit.settings.isolation) {
            (Device::Cuda(number), Isolation::Thread) => Some(number),
            _ => None,
        };
        self.memory.set_gpu(wanted.values().find_map(on_gpu));
        *self.units() = wanted;
        let previous = self.dispatcher.swap(deployment.routes, entries);
        self.retire_surplus();
        self.monitor.tell(json!({ "kind": "system", "started": applied.started,
            "stopped": applied.stopped, "tasks": tasks.iter().map(|t| &t.name).collect::<Vec<_>>() }));
        Ok(self.stop_later(previous, superfluous, applied))
    }

    /// Stops the instances that units have more than they should, once nothing passes them.
    fn retire_surplus(&self) {
        for (id, unit) in self.units().clone() {
            for instance in self.node.surplus(&id, unit.settings.replicas) {
                self.dispatcher.retire(&id, &instance);
                let (node, dispatcher) = (self.node.clone(), self.dispatcher.clone());
                tokio::spawn(async move {
                    dispatcher.retired(&instance).await;
                    let stop = move || node.remove_instance(&instance);
                    if let Err(error) = tokio::task::spawn_blocking(stop).await {
                        tracing::error!(%error, "stopping an instance that is not needed any more");
                    }
                });
            }
        }
    }

    /// Stops what is not needed any more once nobody uses it.
    fn stop_later(&self, previous: u64, superfluous: Vec<UnitId>, applied: Applied) -> Applied {
        if superfluous.is_empty() {
            return applied;
        }
        let (node, dispatcher) = (self.node.clone(), self.dispatcher.clone());
        let changing = Arc::clone(&self.changing);
        tokio::spawn(async move {
            dispatcher.drained(previous).await;
            let _changing = changing.lock().await;
            let stop = move || {
                // It may be needed again by now.
                for id in superfluous.iter().filter(|id| !dispatcher.uses(id)) {
                    node.remove(id);
                }
            };
            if let Err(error) = tokio::task::spawn_blocking(stop).await {
                tracing::error!(%error, "stopping blocks that are not needed any more");
            }
        });
        applied
    }

    /// What the monitor shows.
    pub(super) fn sample(&self) -> Sample {
        let units = self.units().clone();
        let isolation = |id: &UnitId| {
            units.get(id).map_or_else(String::new, |unit| unit.settings.isolation.to_string())
        };
        let gpu = |status: &InstanceStatus| {
            let device = units.get(&status.unit).map(|unit| unit.settings.device);
            let device = device.filter(|device| *device != Device::Cpu)?;
            let GpuUse { nanoseconds, runs, played, weight_bytes, pool_bytes, copies, .. } =
                status.pulse.gpu;
            let copies = [copies.to_device, copies.to_host, copies.on_device];
            Some(InstanceGpu {
                device: device.to_string(),
                seconds: nanoseconds as f64 / 1e9,
                runs,
                played,
                weight_bytes,
                pool_bytes,
                copies: status.process.map(|_| copies),
            })
        };
        let tasks = self.dispatcher.tasks();
        Sample {
            tasks: tasks
                .iter()
                .map(|entry| TaskSample {
                    name: entry.route.task.clone(),
                    version: entry.route.version.clone(),
                    ready: self.dispatcher.unavailable(entry).is_none(),
                    in_flight: self.dispatcher.in_flight(&entry.route.task),
                })
                .collect(),
            instances: self
                .node
                .status()
                .into_iter()
                .map(|status| InstanceSample {
                    gpu: gpu(&status),
                    isolation: isolation(&status.unit),
                    up: status.state == InstanceState::Up,
                    in_flight: self.dispatcher.at_instance(&status.instance),
                    block: status.unit.to_string(),
                    instance: status.instance,
                    process: status.process,
                    restarts: status.restarts,
                })
                .collect(),
            waiting: self.dispatcher.waiting(),
            copied_bytes: self.courier.copied_bytes(),
            gpus: self.gpus.sample(units.values().map(|unit| unit.settings.device)),
        }
    }
}

impl Site for ServeSite {
    fn apply(&self, tasks: Vec<PlannedTask>, fusion: bool) -> Doing<'_, Result<Applied>> {
        Box::pin(self.apply_all(tasks, fusion))
    }

    fn blocks(&self) -> Vec<BlockStatus> {
        let status = self.node.status();
        let units = self.units().clone();
        units
            .into_iter()
            .map(|(id, unit)| {
                let facts = self.node.facts(&id);
                let mine = status.iter().filter(|status| status.unit == id);
                let instances = mine.map(|status| {
                    let (state, reason) = shown(&status.state);
                    InstanceReport {
                        name: status.instance.clone(),
                        state,
                        reason,
                        process: status.process,
                        restarts: status.restarts,
                        requests: status.pulse.done,
                        in_flight: self.dispatcher.at_instance(&status.instance) as u64,
                    }
                });
                BlockStatus {
                    instances: instances.collect(),
                    name: id.to_string(),
                    blocks: unit.blocks().map(|hash| hash.to_string()).collect(),
                    isolation: unit.settings.isolation.to_string(),
                    device: unit.settings.device.to_string(),
                    weight_bytes: facts.as_ref().map_or(0, |facts| facts.weight_bytes as u64),
                    max_batch_rows: facts
                        .and_then(|facts| facts.findings.batching)
                        .map(|batching| batching.max_rows as u64),
                    tasks: unit.tasks,
                }
            })
            .collect()
    }

    fn tasks(&self) -> Vec<TaskStatus> {
        let tasks = self.dispatcher.tasks();
        tasks
            .iter()
            .map(|entry| {
                let reason = self.dispatcher.unavailable(entry);
                let route = &entry.route;
                TaskStatus {
                    name: route.task.clone(),
                    version: route.version.clone(),
                    state: if reason.is_none() { "ready" } else { "unavailable" }.to_owned(),
                    reason,
                    path: route.steps.iter().map(|step| step.unit.to_string()).collect(),
                    exits: entry
                        .exits()
                        .into_iter()
                        .map(|(name, threshold, taken)| ExitStatus { name, threshold, taken })
                        .collect(),
                    in_flight: self.dispatcher.in_flight(&route.task) as u64,
                }
            })
            .collect()
    }

    fn ping<'a>(&'a self, block: &'a str) -> Doing<'a, Result<Vec<PingAnswer>>> {
        Box::pin(async move {
            let id = self.unit(block)?;
            let node = self.node.clone();
            let pinged = tokio::task::spawn_blocking(move || node.ping(&id)).await;
            let pinged = pinged.map_err(|error| Error::lost(format!("a ping: {error}")))??;
            let answer = |(instance, result): (String, tessera_node::Pinged)| match result {
                Ok((took, pulse)) => PingAnswer {
                    instance,
                    answered_ms: Some(took.as_secs_f64() * 1e3),
                    error: None,
                    busy_ms: pulse.busy_ms,
                    requests: pulse.done,
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

    fn stop<'a>(&'a self, block: &'a str) -> Doing<'a, Result<()>> {
        Box::pin(async move {
            let (id, node) = (self.unit(block)?, self.node.clone());
            let stopped = tokio::task::spawn_blocking(move || node.stop(&id)).await;
            stopped.map_err(|error| Error::lost(format!("stopping a block: {error}")))?
        })
    }

    fn start<'a>(&'a self, block: &'a str) -> Doing<'a, Result<()>> {
        Box::pin(async move {
            let (id, node) = (self.unit(block)?, self.node.clone());
            let started = tokio::task::spawn_blocking(move || node.restart(&id)).await;
            started.map_err(|error| Error::lost(format!("starting a block: {error}")))?
        })
    }

    fn set_threshold(&self, task: &str, exit: &str, threshold: f32) -> Result<()> {
        self.dispatcher.set_threshold(task, exit, threshold)
    }

    fn events(&self) -> tokio::sync::broadcast::Receiver<Arc<str>> {
        self.monitor.events()
    }
}

/// A state in a word, and why where it needs one.
fn shown(state: &InstanceState) -> (String, Option<String>) {
    let (word, why) = match state {
        InstanceState::Starting => ("starting", None),
        InstanceState::Up => ("up", None),
        InstanceState::Restarting => ("restarting", None),
        InstanceState::Failed(why) => ("failed", Some(why.clone())),
        InstanceState::Stopped => ("stopped", None),
    };
    (word.to_owned(), why)
}
