//! Engines: what loads a block and runs it.
//!
//! Two back ends stand behind one trait, and one conformance suite ([`conformance`]) tells whether
//! a back end keeps its promises: ONNX Runtime where its library is found, and rten, which is pure
//! Rust and always there.

pub mod conformance;
mod cuda_device;
mod cuda_options;
mod device_weights;
mod engine_choice;
mod executable_pages;
mod file_mapping;
mod host_allocator;
mod live_table;
mod mapped_ranges;
mod onnxruntime;
mod part_times;
mod program;
mod rten_engine;
mod run_profile;
mod weight_arrival;
mod weight_image;
mod weight_loading;
mod weight_parts;
mod working_folder;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tessera_core::{DType, Device, Error, Result, Tensor, TensorMut};

pub use cuda_device::{begin_gpu_span, gpu_memory, is_device_shared, to_gpu};
pub use cuda_options::{ConvolutionSearch, CudaOptions};
pub use device_weights::{DeviceWeights, DeviceWeightsStatus, WeightStay};
pub use engine_choice::{EngineName, choose_engine};
pub use executable_pages::release_executable_pages;
pub use file_mapping::{FileMapping, SharedFileMapping};
pub use host_allocator::{give_large_memory_back, release_freed_memory, release_grown_memory};
pub use onnxruntime::{OnnxRuntime, find_library, limit_run_memory};
pub use part_times::PartTimes;
pub use program::{Program, ProgramWeight};
pub use rten_engine::Rten;
pub use tessera_cuda::{
    CopyCounts, GpuSpan, OpenGpuSpan, PinnedAllocator, concatenate_on_device, copy_all_to_host,
    copy_all_to_host_async, copy_between_gpus, copy_counts, copy_on_device, entropy_on_device,
    measure_copy_rate, release_spare_memory, to_host,
};
pub use weight_arrival::{begin_stays, finish_leaving, queue_rest};
pub use weight_loading::WeightLoading;
pub use working_folder::{remove_abandoned_folders, remove_folders_of, unfinished_prefix};

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
    /// Whether its weights may leave a GPU and come back, and how.
    pub weights: WeightLoading,
    /// With direct host access: so many bytes of its weights are on the GPU at most, and all others
    /// are read over the bus, too; `None` where tables are.
    pub most_on_gpu: Option<u64>,
    /// Whether the host's memory keeps the files of weights that may leave a GPU, also before they
    /// do for the first time.
    pub keeps_files: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            device: Device::Cpu,
            cache: None,
            cuda: CudaOptions::default(),
            weights: WeightLoading::Once,
            most_on_gpu: None,
            keeps_files: true,
        }
    }
}

/// Loads blocks.
pub trait Engine: Send + Sync {
    /// Name that users see and choose by.
    fn name(&self) -> &'static str;

    /// Version of the library behind it.
    fn version(&self) -> String;

    /// Loads a block. The session reads the program's weights where they are.
    fn load_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>>;

    /// Loads a block onto the GPU that the options name. Its weights are there once, however often
    /// it is loaded.
    fn load_cuda_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn CudaEngineSession>> {
        Err(Error::unsupported(format!(
            "{}: {} runs on the CPU alone, not on {}",
            program.label(),
            self.name(),
            options.device
        )))
    }

    /// Loads a whole model as its file is, to compare with.
    ///
    /// `inputs` and `outputs` name what [`EngineSession::run_inference`] takes and returns, in
    /// order.
    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>>;

    /// Gives memory that runs needed for themselves, and none needs now, back to the system.
    fn release_idle_memory(&self) {}

    /// Which weights are on devices with memory of their own, for as long as somebody has them
    /// loaded.
    fn list_device_weights(&self) -> Vec<DeviceWeightsStatus> {
        Vec::new()
    }
}

/// Ends runs of a session from another thread.
pub trait RunTerminator: Send + Sync {
    /// Has a run that is under way end with an error before its next operator. Where none is,
    /// nothing happens: the next one is not affected.
    fn terminate_run(&self);
}

/// A loaded block.
pub trait EngineSession: Send {
    /// Whether a run computes into the memory that it is given, or copies its result there.
    fn computes_in_place(&self) -> bool;

    /// What ends a run of it from another thread, where the engine can.
    fn run_terminator(&self) -> Option<Arc<dyn RunTerminator>> {
        None
    }

    /// Runs the block.
    ///
    /// `outputs` has an entry per output: memory to write the result to, or `None` to have it
    /// allocated. Results come back in the order of the block's outputs; one that was bound is the
    /// same memory.
    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>>;
}

/// A block that is loaded onto a GPU.
pub trait CudaEngineSession: EngineSession {
    /// Has runs be captured as CUDA graphs from now on: a run on the same memory as one before is
    /// replayed then. Where that can't be, or was turned off, nothing changes.
    fn capture_cuda_graphs(&mut self);

    /// What has its weights be on the GPU, for whoever runs it to see to it from now on that they
    /// are there. `None` where they can't leave, and the second time.
    fn take_weight_stay(&mut self) -> Option<WeightStay>;

    /// How many runs were replayed.
    fn replayed_runs(&self) -> u64;

    /// What runs on these inputs take for each part of its weights, wherever these are, by so many
    /// runs each way. Nothing where they don't come in parts.
    fn measure_part_times(&mut self, inputs: &[Tensor], runs: usize) -> Result<Vec<PartTimes>>;
}
