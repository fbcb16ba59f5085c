//! `tessera devices`: what blocks can run on.

use serde::Serialize;
use tessera_core::{Result, bytes_of_line};
use tessera_cuda::{GpuInfo, NvmlMonitor, NvmlReading};
use tessera_report::{Table, format_bytes, output};

use crate::arguments::DevicesArguments;

#[derive(Serialize)]
struct DevicesReport {
    cpu: ListedCpu,
    gpus: Vec<ListedGpu>,
    /// The newest CUDA that the driver knows.
    cuda: Option<String>,
    /// Version of the driver.
    driver: Option<String>,
    /// Why there are no GPUs, or no readings of them.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct ListedCpu {
    model: Option<String>,
    cores: usize,
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct ListedGpu {
    #[serde(flatten)]
    info: GpuInfo,
    reading: Option<NvmlReading>,
}

pub(super) fn run_devices(arguments: &DevicesArguments) -> Result<()> {
    let report = find_devices();
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = Table::new(&["device", "what", ">memory", ">free", "connected by"]);
    let memory = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    let cores = format!("{} cores", report.cpu.cores);
    let what = report.cpu.model.as_ref().map_or(cores.clone(), |model| format!("{model}, {cores}"));
    table.add_row([
        "cpu".to_owned(),
        what,
        memory(report.cpu.memory_bytes),
        "-".to_owned(),
        "-".to_owned(),
    ]);
    for gpu in &report.gpus {
        let info = &gpu.info;
        table.add_row([
            format!("cuda:{}", info.number),
            format!("{}, compute {}", info.name, info.compute_capability),
            format_bytes(info.memory_bytes),
            format_bytes(info.free_bytes),
            gpu.connected_by(),
        ]);
    }
    table.print_table()?;
    if let Some(cuda) = &report.cuda {
        let driver = report.driver.as_deref().unwrap_or("unknown");
        output::print_line(&format!("driver {driver}, CUDA {cuda}"))?;
    }
    report.notes.iter().try_for_each(|note| output::print_line(note))
}

impl ListedGpu {
    fn connected_by(&self) -> String {
        let mut ways = vec![match self.reading.as_ref().and_then(|reading| reading.pcie) {
            Some((generation, lanes)) => format!("PCIe {generation} x{lanes}"),
            None => format!("PCIe {}", self.info.pci),
        }];
        if let Some(links) = self.reading.as_ref().map(|reading| reading.nvlinks).filter(|&n| n > 0)
        {
            ways.push(format!("{links} NVLinks"));
        }
        let peers = self.info.peers.iter().filter(|peer| peer.access);
        let peers: Vec<String> = peers.map(|peer| format!("cuda:{}", peer.number)).collect();
        if !peers.is_empty() {
            ways.push(format!("peer access to {}", peers.join(", ")));
        }
        if !self.info.shares_memory {
            ways.push("no memory for other processes (CUDA IPC)".to_owned());
        }
        ways.join(", ")
    }
}

fn find_devices() -> DevicesReport {
    let mut notes = Vec::new();
    let infos = tessera_cuda::list_gpus().unwrap_or_else(|error| {
        notes.push(format!("no GPU: {error}"));
        Vec::new()
    });
    let monitor = if infos.is_empty() {
        None
    } else {
        NvmlMonitor::open().map_err(|error| notes.push(error.to_string())).ok()
    };
    let reading = |info: &GpuInfo| monitor.as_ref()?.read_gpu(&info.pci).ok();
    let gpus = infos.into_iter().map(|info| ListedGpu { reading: reading(&info), info });
    DevicesReport {
        cpu: describe_cpu(),
        gpus: gpus.collect(),
        cuda: tessera_cuda::supported_cuda_version().ok(),
        driver: monitor.as_ref().and_then(NvmlMonitor::driver_version),
        notes,
    }
}

fn describe_cpu() -> ListedCpu {
    let value = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    ListedCpu {
        model: value("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory.and_then(|text| bytes_of_line(&text, "MemTotal")),
    }
}
