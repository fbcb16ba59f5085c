//! What NVML tells of GPUs: how busy they are, and what they draw.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use serde::Serialize;
use tessera_core::{Error, Result};

/// What a GPU does right now. What it can't tell is missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvmlReading {
    /// What tells it from all others.
    pub uuid: Option<String>,
    /// Share of the time that something ran on it, lately.
    pub utilisation: Option<f64>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// Memory in use, by all.
    pub used_bytes: Option<u64>,
    /// Memory that this process uses.
    pub own_bytes: Option<u64>,
    /// The processes that compute on it. In a container there may be none, or they go by numbers
    /// that mean something outside only.
    pub processes: Vec<GpuProcess>,
    /// Clock of its multiprocessors.
    pub clock_mhz: Option<u32>,
    /// Temperature.
    pub celsius: Option<u32>,
    /// What it draws.
    pub watts: Option<f64>,
    /// What it has drawn since the driver was loaded.
    pub joules: Option<f64>,
    /// PCIe: generation and lanes in use.
    pub pcie: Option<(u32, u32)>,
    /// NVLinks that are up.
    pub nvlinks: u32,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its number.
    pub pid: u32,
    /// Memory of the GPU that it uses, where that is known.
    pub bytes: Option<u64>,
}

/// Reads what GPUs do.
pub struct NvmlMonitor {
    library: Nvml,
}

impl NvmlMonitor {
    /// Opens NVML.
    pub fn open() -> Result<Self> {
        let library = Nvml::init()
            .map_err(|error| Error::unsupported(format!("NVML (libnvidia-ml.so.1): {error}")))?;
        Ok(Self { library })
    }

    /// Version of the driver.
    pub fn driver_version(&self) -> Option<String> {
        self.library.sys_driver_version().ok()
    }

    /// Memory in use, by all, of the GPU at this place: one question, where [`Self::read_gpu`] asks
    /// many.
    pub fn used_bytes(&self, pci: &str) -> Option<u64> {
        let device = self.library.device_by_pci_bus_id(pci).ok()?;
        device.memory_info().ok().map(|memory| memory.used)
    }

    /// What the GPU at this place has drawn since the driver was loaded: one question, too.
    pub fn energy_joules(&self, pci: &str) -> Option<f64> {
        let device = self.library.device_by_pci_bus_id(pci).ok()?;
        device.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3)
    }

    /// What the GPU at this place on the PCIe bus does.
    pub fn read_gpu(&self, pci: &str) -> Result<NvmlReading> {
        let device = self
            .library
            .device_by_pci_bus_id(pci)
            .map_err(|error| Error::unsupported(format!("NVML: GPU {pci}: {error}")))?;
        let process = |process: ProcessInfo| GpuProcess {
            pid: process.pid,
            bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        };
        let running = device.running_compute_processes().unwrap_or_default();
        let processes: Vec<GpuProcess> = running.into_iter().map(process).collect();
        let own = processes.iter().find(|process| process.pid == std::process::id());
        let up = (0..18).filter(|&link| device.link_wrapper_for(link).is_active().unwrap_or(false));
        let pcie = device.current_pcie_link_gen().ok().zip(device.current_pcie_link_width().ok());
        let memory = device.memory_info().ok();
        Ok(NvmlReading {
            uuid: device.uuid().ok(),
            memory_bytes: memory.as_ref().map(|memory| memory.total),
            utilisation: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            used_bytes: memory.map(|memory| memory.used),
            own_bytes: own.and_then(|own| own.bytes),
            processes,
            clock_mhz: device.clock_info(Clock::SM).ok(),
            celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            watts: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            joules: device
                .total_energy_consumption()
                .ok()
                .map(|millijoules| millijoules as f64 / 1e3),
            pcie,
            nvlinks: up.count() as u32,
        })
    }
}
