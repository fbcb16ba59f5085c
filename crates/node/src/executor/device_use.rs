//! What a worker did on a GPU, and what it has there.

use serde::{Deserialize, Serialize};
use tessera_engine::CopyCounts;

/// What a worker did on a GPU, and what it has there; nothing for one on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Nanoseconds that the GPU worked for it.
    pub nanoseconds: u64,
    /// Nanoseconds that its launches took.
    pub launch_nanoseconds: u64,
    /// In how many runs.
    pub runs: u64,
    /// How many runs of its blocks were replayed from a CUDA graph.
    #[serde(default)]
    pub replayed_runs: u64,
    /// Bytes of its weights there.
    pub weight_bytes: u64,
    /// Bytes of the buffers that it hands over to others there.
    pub pool_bytes: u64,
    /// Copies of its process, which other workers may share.
    pub copies: CopyCounts,
}
