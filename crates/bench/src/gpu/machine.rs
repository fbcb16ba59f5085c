//! What the experiments ran on.

use std::path::PathBuf;
use tessera_report::format_bytes;

use serde::Serialize;
use tessera_core::Device;

use super::{GpuBenchSetup, or_dash};

#[derive(Serialize)]
pub(crate) struct BenchMachine {
    pub(crate) device: String,
    /// What the GPU is called.
    pub(crate) gpu: Option<String>,
    pub(crate) gpu_memory_bytes: Option<u64>,
    pub(crate) driver: Option<String>,
    /// The newest CUDA that the driver knows.
    pub(crate) cuda: Option<String>,
    pub(crate) cores: usize,
    pub(crate) engine: String,
    /// Whether processes share the GPU through NVIDIA's MPS.
    pub(crate) mps: bool,
}

/// Looks at the machine. This opens the GPU: what needs it empty comes before.
pub(crate) fn inspect_machine(setup: &GpuBenchSetup) -> BenchMachine {
    let device = setup.options.device;
    let info = match device {
        Device::Cuda(number) => tessera_cuda::list_gpus()
            .ok()
            .and_then(|all| all.into_iter().find(|info| info.number == number)),
        Device::Cpu => None,
    };
    let is_gpu = device != Device::Cpu;
    BenchMachine {
        device: device.to_string(),
        gpu_memory_bytes: info.as_ref().map(|info| info.memory_bytes),
        gpu: info.map(|info| info.name),
        driver: setup.meter.driver(),
        cuda: is_gpu.then(|| tessera_cuda::supported_cuda_version().ok()).flatten(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        engine: format!("{} {}", setup.engine.name(), setup.engine.version()),
        mps: has_mps(),
    }
}

/// Its control program has a pipe in this folder for as long as it runs.
fn has_mps() -> bool {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    folder.join("control").exists()
}

/// What there is to say, in the order of reading.
pub(crate) fn machine_facts(machine: &BenchMachine) -> Vec<(&'static str, String)> {
    let text = |text: &Option<String>| or_dash(text.as_ref(), |text| text.clone());
    vec![
        ("device", machine.device.clone()),
        ("GPU", text(&machine.gpu)),
        ("video memory", or_dash(machine.gpu_memory_bytes, format_bytes)),
        ("driver", text(&machine.driver)),
        ("CUDA", text(&machine.cuda)),
        ("CPU cores", machine.cores.to_string()),
        ("engine", machine.engine.clone()),
        ("MPS", if machine.mps { "yes" } else { "no" }.to_owned()),
    ]
}
