//! Engines: what loads a block and runs it.
//!
//! Two back ends stand behind one trait, and one conformance suite ([`conformance`]) tells whether
//! a back end keeps its promises: ONNX Runtime where its library is found, and rten, which is pure
//! Rust and always there.

mod choose;
pub mod conformance;
mod mapping;
mod onnxruntime;
mod program;
mod rten_engine;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use tessera_core::{DType, Device, Error, Result, Tensor, TensorMut};

pub use choose::{EngineName, choose};
pub use mapping::{Mapping, SharedMapping};
pub use onnxruntime::{OnnxRuntime, find_library};
pub use program::{Program, ProgramWeight};
pub use rten_engine::Rten;
pub use tessera_cuda::{
    Copies, OpenSpan, Pinned, Span, bring as bring_from_device,
    bring_later as bring_from_device_later, copies, copy as copy_on_device, copy_across,
    entropy as entropy_on_device, join as join_on_device, to_host,
};

/// How a block is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Threads that one run may use.
    pub threads: NonZeroUsize,
    /// What the block runs on.
    pub device: Device,
    /// Folder to keep what was made of blocks in, so that the next process that loads one is quick;
    /// for engines that make something of them.
    pub cache: Option<PathBuf>,
    /// How it runs on a GPU.
    pub cuda: CudaOptions,
}

/// How blocks run on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct CudaOptions {
    /// Whether products of `f32` may be computed with ten bits of fraction, which is faster.
    pub tf32: bool,
    /// How the algorithm of a convolution is chosen.
    pub convolution: ConvolutionSearch,
    /// Whether runs may be recorded, see [`Session::record_runs`].
    pub recordings: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { tf32: false, convolution: ConvolutionSearch::default(), recordings: true }
    }
}

impl CudaOptions {
    /// What tells these from others, as part of a file's name.
    pub fn name(self) -> &'static str {
        if self.tf32 { "cuda-tf32" } else { "cuda" }
    }
}

/// How the algorithm of a convolution is chosen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionSearch {
    /// All are tried, when a shape comes first: hundreds of milliseconds for each.
    Exhaustive,
    /// By rules of thumb. On an H200, ResNet-50 is as fast as with a search, at batch 1 and 32.
    #[default]
    Heuristic,
    /// Always the same one.
    Default,
}

impl std::str::FromStr for ConvolutionSearch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "exhaustive" => Ok(Self::Exhaustive),
            "heuristic" => Ok(Self::Heuristic),
            "default" => Ok(Self::Default),
            _ => Err(Error::usage(format!(
                "convolution search \"{text}\", expected exhaustive, heuristic or default"
            ))),
        }
    }
}

impl std::fmt::Display for ConvolutionSearch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exhaustive => "exhaustive",
            Self::Heuristic => "heuristic",
            Self::Default => "default",
        })
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            device: Device::Cpu,
            cache: None,
            cuda: CudaOptions::default(),
        }
    }
}

/// Has the allocator give large pieces back to the system when they are freed.
///
/// By default glibc learns from the first large piece that is freed to keep the next ones, up to 64 MB per
/// thread: a server that has loaded its blocks would hold that for good.
pub fn give_large_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls take plain numbers and may be made at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
    }
}

/// Gives memory that was freed back to the system, as far as the allocator lets it.
///
/// Loading makes and drops much: a model's file, what engines make of weights and share in the end.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers and may be made at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Whether several processes run on a device at the same time; on a GPU without MPS they take turns.
pub fn is_shared(device: Device) -> bool {
    match device {
        Device::Cpu => true,
        Device::Cuda(number) => tessera_cuda::Gpu::open(number).is_ok_and(|gpu| gpu.is_shared()),
    }
}

/// The tensor in the memory of a GPU: itself where it is there, or where it is of strings, which are nowhere but on the
/// host; else a copy.
pub fn to_gpu(number: u32, tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::String => Ok(tensor.clone()),
        _ => tessera_cuda::to_device(&tessera_cuda::Gpu::open(number)?, tensor),
    }
}

/// Begins to time what a device is told to do from now on; `None` for the CPU, which does it at once.
pub fn begin_work(device: Device) -> Result<Option<OpenSpan>> {
    let Device::Cuda(number) = device else { return Ok(None) };
    Span::begin(&tessera_cuda::Gpu::open(number)?).map(Some)
}

/// Loads blocks.
pub trait Engine: Send + Sync {
    /// Name that users see and choose by.
    fn name(&self) -> &'static str;

    /// Version of the library behind it.
    fn version(&self) -> String;

    /// Loads a block. The session reads the program's weights where they are.
    fn load(&self, program: &Program, options: &LoadOptions) -> Result<Box<dyn Session>>;

    /// Loads a whole model as its file is, to compare with.
    ///
    /// `inputs` and `outputs` name what [`Session::run`] takes and returns, in order.
    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn Session>>;
}

/// A loaded block.
pub trait Session: Send {
    /// Whether a run computes into the memory that it is given, or copies its result there.
    fn computes_in_place(&self) -> bool;

    /// Has the next run give the memory that it needed for itself back to the system at its end.
    fn release_memory(&mut self) {}

    /// Has runs be recorded from now on, for devices where telling them what to do takes long: a run on the same memory
    /// as one before is played then. Where that can't be, or was turned off, nothing changes.
    fn record_runs(&mut self) {}

    /// How many runs were played.
    fn played_runs(&self) -> u64 {
        0
    }

    /// Runs the block.
    ///
    /// `outputs` has an entry per output: memory to write the result to, or `None` to have it
    /// allocated. Results come back in the order of the block's outputs; one that was bound is the
    /// same memory.
    fn run(&mut self, inputs: &[Tensor], outputs: Vec<Option<TensorMut>>) -> Result<Vec<Tensor>>;
}
