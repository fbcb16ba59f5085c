//! What telemetry shows of a site.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_core::Device;
use tessera_deploy::{Unit, UnitId};
use tessera_dispatch::TaskAvailability;
use tessera_node::{DeviceUse, InstanceState, InstanceStatus};
use tessera_telemetry::{InstanceGpuSample, InstanceSample, SystemSample, TaskSample};

use super::local_site::LocalSite;

impl LocalSite {
    /// The site at this moment.
    pub(super) fn take_sample(&self) -> SystemSample {
        let units: HashMap<UnitId, Arc<Unit>> = {
            let units = self.lock_deployment().units().into_iter();
            units.map(|unit| (unit.id.clone(), unit)).collect()
        };
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
        let tasks = self.dispatch.dispatcher.list_tasks();
        SystemSample {
            tasks: tasks
                .iter()
                .map(|entry| TaskSample {
                    name: entry.route.task.clone(),
                    version: entry.route.version.clone(),
                    ready: self.dispatch.dispatcher.task_availability(entry)
                        == TaskAvailability::Ready,
                    in_flight: self.dispatch.dispatcher.task_in_flight(&entry.route.task),
                })
                .collect(),
            instances: self
                .node
                .supervisor
                .instance_statuses()
                .into_iter()
                .map(|status| InstanceSample {
                    gpu: gpu(&status),
                    isolation: isolation(&status.unit),
                    up: status.state == InstanceState::Up,
                    in_flight: self.dispatch.dispatcher.instance_in_flight(&status.instance),
                    unit: status.unit.to_string(),
                    instance: status.instance,
                    pid: status.process,
                    restarts: status.restarts,
                })
                .collect(),
            waiting: self.dispatch.dispatcher.queue_length(),
            copied_bytes: self.endpoint.copied_bytes(),
            gpus: self.node.sample_gpus(units.values().map(|unit| unit.settings.device)),
        }
    }
}
