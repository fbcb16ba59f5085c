//! What telemetry shows of a process that runs units or answers requests.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_core::Device;
use tessera_deploy::{Unit, UnitId};
use tessera_dispatch::{Dispatcher, TaskAvailability, TaskEntry};
use tessera_node::{DeviceUse, InstanceState, InstanceStatus, WeightStatus};
use tessera_telemetry::{
    InstanceGpuSample, InstanceSample, InstanceWeightSample, SystemSample, TaskSample, UnitSample,
    WeightMemorySample,
};

use crate::node::NodePart;

/// What there is to take a sample of.
pub(crate) struct SampledParts<'a> {
    pub(crate) node: &'a NodePart,
    /// Who answers requests, where somebody does.
    pub(crate) dispatcher: Option<&'a Dispatcher>,
    /// The units that run there.
    pub(crate) units: HashMap<UnitId, Arc<Unit>>,
    /// Bytes of tensors that were copied.
    pub(crate) copied_bytes: u64,
}

impl SampledParts<'_> {
    /// All of it at this moment.
    pub(crate) fn take_sample(self) -> SystemSample {
        let Self { node, dispatcher, units, copied_bytes } = self;
        let isolation = |id: &UnitId| {
            units.get(id).map_or_else(String::new, |unit| unit.settings.isolation.to_string())
        };
        let gpu = |status: &InstanceStatus| {
            let device = units.get(&status.unit).map(|unit| unit.settings.device);
            let device = device.filter(|device| *device != Device::Cpu)?;
            let DeviceUse {
                nanoseconds,
                runs,
                replayed_runs,
                weight_bytes,
                pool_bytes,
                copies,
                ..
            } = status.heartbeat.device;
            let copies = [copies.to_device, copies.to_host, copies.on_device];
            Some(InstanceGpuSample {
                device: device.to_string(),
                seconds: nanoseconds as f64 / 1e9,
                runs,
                replayed_runs,
                weight_bytes,
                pool_bytes,
                copies: status.process.map(|_| copies),
            })
        };
        let in_flight = |instance: &str| {
            dispatcher.map_or(0, |dispatcher| dispatcher.instance_in_flight(instance))
        };
        SystemSample {
            units: sample_units(node, dispatcher, &units),
            tasks: dispatcher.map(sample_tasks).unwrap_or_default(),
            instances: node
                .supervisor
                .instance_statuses()
                .into_iter()
                .map(|status| InstanceSample {
                    gpu: gpu(&status),
                    weights: status.weights.as_ref().map(sample_weights),
                    isolation: isolation(&status.unit),
                    up: status.state == InstanceState::Up,
                    in_flight: in_flight(&status.instance),
                    unit: status.unit.to_string(),
                    instance: status.instance,
                    pid: status.process,
                    restarts: status.restarts,
                })
                .collect(),
            waiting: dispatcher.map_or(0, Dispatcher::queue_length),
            copied_bytes,
            gpus: node.sample_gpus(units.values().map(|unit| unit.settings.device)),
            weight_memory: node
                .supervisor
                .weight_use()
                .into_iter()
                .map(|(device, used)| WeightMemorySample {
                    device: device.to_string(),
                    budget_bytes: used.budget,
                    used_bytes: used.used,
                })
                .collect(),
        }
    }
}

fn sample_units(
    node: &NodePart,
    dispatcher: Option<&Dispatcher>,
    units: &HashMap<UnitId, Arc<Unit>>,
) -> Vec<UnitSample> {
    let mut tasks: HashMap<UnitId, Vec<String>> = HashMap::new();
    for entry in dispatcher.map(Dispatcher::list_tasks).unwrap_or_default() {
        for step in &entry.route.steps {
            let own = tasks.entry(step.unit.clone()).or_default();
            if own.last() != Some(&entry.route.task) {
                own.push(entry.route.task.clone());
            }
        }
    }
    let sample = |unit: &Arc<Unit>| UnitSample {
        name: unit.id.to_string(),
        tasks: tasks.remove(&unit.id).unwrap_or_default(),
        device: unit.settings.device.to_string(),
        weight_bytes: node
            .supervisor
            .unit_facts(&unit.id)
            .map_or(0, |facts| facts.weight_bytes as u64),
    };
    let mut sampled: Vec<UnitSample> = units.values().map(sample).collect();
    sampled.sort_by(|one, other| one.name.cmp(&other.name));
    sampled
}

fn sample_weights(status: &WeightStatus) -> InstanceWeightSample {
    InstanceWeightSample {
        place: status.place.name(),
        uses: status.uses,
        loads: status.loads,
        evictions: status.evictions,
        loaded_bytes: status.loaded_bytes,
        load_seconds: status.load_time.as_secs_f64(),
    }
}

fn sample_tasks(dispatcher: &Dispatcher) -> Vec<TaskSample> {
    let sample = |entry: &Arc<TaskEntry>| TaskSample {
        name: entry.route.task.clone(),
        version: entry.route.version.clone(),
        ready: dispatcher.task_availability(entry) == TaskAvailability::Ready,
        in_flight: dispatcher.task_in_flight(&entry.route.task),
    };
    dispatcher.list_tasks().iter().map(sample).collect()
}
