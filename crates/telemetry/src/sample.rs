//! What telemetry is told of the system as it is at one moment.

use std::sync::Arc;

/// Takes a sample: once a second, and whenever metrics are asked for. Must not wait for long.
pub type TakeSample = Arc<dyn Fn() -> SystemSample + Send + Sync>;

/// The system at one moment.
#[derive(Clone, Debug, Default)]
pub struct SystemSample {
    /// The tasks there are.
    pub tasks: Vec<TaskSample>,
    /// The instances of units there are.
    pub instances: Vec<InstanceSample>,
    /// Requests that wait at the dispatcher.
    pub waiting: usize,
    /// Bytes of tensors that were copied since the server started.
    pub copied_bytes: u64,
    /// The GPUs that units run on.
    pub gpus: Vec<GpuSample>,
    /// What weights take of each memory where that is bounded.
    pub weight_memory: Vec<WeightMemorySample>,
    /// The units that run or should.
    pub units: Vec<UnitSample>,
}

/// A unit at one moment.
#[derive(Clone, Debug, Default)]
pub struct UnitSample {
    /// Its name.
    pub name: String,
    /// The tasks that use it.
    pub tasks: Vec<String>,
    /// What it runs on.
    pub device: String,
    /// Bytes of its weights, as far as they are known.
    pub weight_bytes: u64,
}

/// What weights take of a memory.
#[derive(Clone, Debug, Default)]
pub struct WeightMemorySample {
    /// The device whose memory it is.
    pub device: String,
    /// Bytes that they may take.
    pub budget_bytes: u64,
    /// Bytes that they take.
    pub used_bytes: u64,
}

/// Where the weights of an instance are, and how often they came and went.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstanceWeightSample {
    /// Where they are, in a word.
    pub place: &'static str,
    /// How often they were used.
    pub uses: u64,
    /// How often they were loaded.
    pub loads: u64,
    /// How often they had to leave.
    pub evictions: u64,
    /// Bytes that were loaded.
    pub loaded_bytes: u64,
    /// Seconds that this took.
    pub load_seconds: f64,
}

/// A GPU at one moment. What it can't tell is missing.
#[derive(Clone, Debug, Default)]
pub struct GpuSample {
    /// Its number, as in `cuda:0`.
    pub device: String,
    /// What tells it from all others.
    pub uuid: String,
    /// Share of the time that something ran on it, lately.
    pub utilisation: Option<f64>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// Memory in use, by all.
    pub used_bytes: Option<u64>,
    /// Clock of its multiprocessors.
    pub clock_mhz: Option<u32>,
    /// Temperature.
    pub celsius: Option<u32>,
    /// What it draws.
    pub watts: Option<f64>,
    /// What it has drawn since the driver was loaded.
    pub joules: Option<f64>,
    /// The processes that compute on it, also those of others.
    pub processes: Vec<GpuProcessSample>,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuProcessSample {
    /// Its number.
    pub pid: u32,
    /// Memory of the GPU that it uses, where that is known.
    pub bytes: Option<u64>,
}

/// A task at one moment.
#[derive(Clone, Debug, Default)]
pub struct TaskSample {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it answers.
    pub ready: bool,
    /// Requests of it that wait or are on their way.
    pub in_flight: usize,
}

/// An instance of a unit at one moment.
#[derive(Clone, Debug, Default)]
pub struct InstanceSample {
    /// Its unit.
    pub unit: String,
    /// Its name, `UNIT.REPLICA.GENERATION`.
    pub instance: String,
    /// What keeps it apart from others.
    pub isolation: String,
    /// Its process, where it has one of its own.
    pub pid: Option<u32>,
    /// Whether it takes requests.
    pub up: bool,
    /// Requests that are on their way to it or through it.
    pub in_flight: usize,
    /// How often it was started again.
    pub restarts: u64,
    /// What it did on a GPU and has there, where it runs on one.
    pub gpu: Option<InstanceGpuSample>,
    /// Where its weights are, where they come and go.
    pub weights: Option<InstanceWeightSample>,
}

/// What an instance of a unit did on a GPU, and has there.
#[derive(Clone, Debug, Default)]
pub struct InstanceGpuSample {
    /// Which.
    pub device: String,
    /// Seconds that the GPU worked for it.
    pub seconds: f64,
    /// In how many runs.
    pub runs: u64,
    /// How many of its runs were replayed from a CUDA graph.
    pub replayed_runs: u64,
    /// Bytes of its weights there.
    pub weight_bytes: u64,
    /// Bytes of the buffers there that it hands over to other processes.
    pub pool_bytes: u64,
    /// Copies of its process: from the host to the GPU, back, and on the GPU. Not told for
    /// instances on threads of the server, which have a process in common.
    pub copies: Option<[u64; 3]>,
}
