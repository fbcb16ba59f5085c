//! What the GPUs that blocks run on do.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use tessera_core::Device;
use tessera_cuda::{GpuProcess, Monitor, pci};
use tessera_gateway::{GpuProcessSample, GpuSample};

/// Reads GPUs; opened when the first block runs on one.
#[derive(Default)]
pub(super) struct Gpus {
    monitor: OnceLock<Option<Monitor>>,
}

impl Gpus {
    /// What those among these devices do.
    pub(super) fn sample(&self, devices: impl Iterator<Item = Device>) -> Vec<GpuSample> {
        let number = |device: Device| match device {
            Device::Cuda(number) => Some(number),
            Device::Cpu => None,
        };
        let numbers: BTreeSet<u32> = devices.filter_map(number).collect();
        if numbers.is_empty() {
            return Vec::new();
        }
        let open = || {
            let opened = Monitor::open();
            opened.inspect_err(|error| tracing::warn!(%error, "no metrics of GPUs")).ok()
        };
        let Some(monitor) = self.monitor.get_or_init(open) else { return Vec::new() };
        let process =
            |process: GpuProcess| GpuProcessSample { pid: process.pid, bytes: process.bytes };
        let read = |number: u32| {
            let place = pci(number).ok()?;
            let reading = monitor.read(&place).ok()?;
            Some(GpuSample {
                device: Device::Cuda(number).to_string(),
                uuid: reading.uuid.unwrap_or(place),
                utilisation: reading.utilisation,
                memory_bytes: reading.memory_bytes,
                used_bytes: reading.used_bytes,
                clock_mhz: reading.clock_mhz,
                celsius: reading.celsius,
                watts: reading.watts,
                joules: reading.joules,
                processes: reading.processes.into_iter().map(process).collect(),
            })
        };
        numbers.into_iter().filter_map(read).collect()
    }
}
