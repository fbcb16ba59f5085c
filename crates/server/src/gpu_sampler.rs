//! What the GPUs that units run on do.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use tessera_core::Device;
use tessera_cuda::{GpuProcess, NvmlMonitor, pci_bus_id};
use tessera_telemetry::{GpuProcessSample, GpuSample};

/// Reads GPUs; opened when the first unit runs on one.
#[derive(Default)]
pub(crate) struct GpuSampler {
    monitor: OnceLock<Option<NvmlMonitor>>,
}

impl GpuSampler {
    /// What those among these devices do.
    pub(crate) fn sample_gpus(&self, devices: impl Iterator<Item = Device>) -> Vec<GpuSample> {
        let number = |device: Device| match device {
            Device::Cuda(number) => Some(number),
            Device::Cpu => None,
        };
        let numbers: BTreeSet<u32> = devices.filter_map(number).collect();
        if numbers.is_empty() {
            return Vec::new();
        }
        let open = || {
            let opened = NvmlMonitor::open();
            opened.inspect_err(|error| tracing::warn!(%error, "no metrics of GPUs")).ok()
        };
        let Some(monitor) = self.monitor.get_or_init(open) else { return Vec::new() };
        let process =
            |process: GpuProcess| GpuProcessSample { pid: process.pid, bytes: process.bytes };
        let read = |number: u32| {
            let place = pci_bus_id(number).ok()?;
            let reading = monitor.read_gpu(&place).ok()?;
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
