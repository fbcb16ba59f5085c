//! The problem: a graph of blocks, with what each costs on either device.

use serde::{Deserialize, Serialize};

/// Where a block can run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverflowDevice {
    /// The host's processor, in whose memory inputs and results of the model are.
    Cpu,
    /// The GPU.
    Gpu,
}

impl OverflowDevice {
    /// Both.
    pub const ALL: [OverflowDevice; 2] = [OverflowDevice::Cpu, OverflowDevice::Gpu];

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            OverflowDevice::Cpu => OverflowDevice::Gpu,
            OverflowDevice::Gpu => OverflowDevice::Cpu,
        }
    }
}

impl std::fmt::Display for OverflowDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OverflowDevice::Cpu => "CPU",
            OverflowDevice::Gpu => "GPU",
        })
    }
}

/// A graph of blocks on a node with one GPU.
///
/// Inputs and results of the model are counted where blocks have them: they are in the host's
/// memory before the first block and after the last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverflowProblem {
    /// The blocks.
    pub blocks: Vec<OverflowBlock>,
    /// What blocks hand over to each other.
    #[serde(default)]
    pub edges: Vec<OverflowEdge>,
    /// How fast copies between the devices are.
    pub rates: CopyRates,
    /// How much slower than on the GPU a block may be on the CPU and still be moved there by
    /// `slowdown` and `communication`.
    #[serde(default = "default_threshold")]
    pub threshold_us: f64,
    /// What taking a block from a queue costs the device. A chain of blocks pays it once.
    #[serde(default)]
    pub dispatch_us: f64,
}

/// About what it costs to launch a kernel on a GPU, which is where the paper starts.
fn default_threshold() -> f64 {
    100.0
}

/// A block, and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverflowBlock {
    /// Its name, which edges use.
    pub name: String,
    /// Its time on the CPU; none where it can't run there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// Its time on the GPU; none where it can't run there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_us: Option<f64>,
    /// Inputs of the model that it takes: on the GPU it waits until they are copied.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input_bytes: f64,
    /// Results of the model that it gives: from the GPU they are copied before the run is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_bytes: f64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// What a block hands over to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverflowEdge {
    /// The block that makes it.
    pub from: String,
    /// The block that takes it.
    pub to: String,
    /// How large it is.
    #[serde(default)]
    pub bytes: f64,
}

/// How fast copies are. A copy takes the latency, and its bytes divided by the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRates {
    /// From the host's memory to the GPU's.
    pub cpu_to_gpu_bytes_per_second: f64,
    /// From the GPU's memory to the host's.
    pub gpu_to_cpu_bytes_per_second: f64,
    /// What every copy costs before its first byte.
    #[serde(default)]
    pub latency_us: f64,
}
