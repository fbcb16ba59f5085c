//! Blocks on a GPU, through ONNX Runtime's CUDA provider.
//!
//! As on the CPU, a block is optimised first, by the provider that will run it, and its weights are
//! then ours: they are copied to the GPU once, and every session of the block reads them there. All
//! sessions put their work into the one stream that the process has on the GPU, and a run returns
//! before the GPU is done; so blocks in a row wait for nothing, and memory passes from one to the
//! next by pointer.

mod allocator;
mod bound_session;
mod capture_lock;
mod capture_scratch;
mod capture_session;
mod cublas_workspace;
mod cuda_session;
mod graph_cache;
mod part_measurement;
mod prepared_on_gpu;
mod provider;
mod run_waits;
mod session_factory;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ort::session::Session as OrtSession;
use ort::session::builder::SessionBuilder;
use tessera_core::{ContentHash, DType, Error, Result, lock};
use tessera_cuda::Gpu;

use super::prepared_block::{ExecutionTarget, PreparedBlock};
use super::session_builder::SessionBuilders;
use super::weight_layout::WeightLayout;
use crate::device_weights::DeviceWeightsStatus;
use crate::live_table::LiveTable;
use crate::{CudaEngineSession, CudaOptions, EngineSession, LoadOptions, Program, WeightLoading};
use bound_session::SessionPorts;
use capture_lock::lock_device_for_setup;
use cuda_session::OrtCudaSession;
use prepared_on_gpu::GpuPreparedBlock;
use provider::{add_cuda_provider, no_cuda_provider};
use run_waits::StreamPointer;
use session_factory::{ArenaChoice, GpuSessionFactory};

/// A program, the GPU, what it was optimised for, and where its weights are.
type GpuKey = (ContentHash, u32, CudaOptions, WeightLayout);

/// Loads blocks onto GPUs.
pub(super) struct CudaLoader {
    builders: SessionBuilders,
    /// The version of the library.
    version: String,
    /// Blocks whose weights are on a GPU, for as long as a session uses them.
    prepared: LiveTable<GpuKey, GpuPreparedBlock>,
}

/// How the file has weights that are loaded so.
fn weight_layout(options: &LoadOptions) -> WeightLayout {
    match (options.weights, options.most_on_gpu) {
        (WeightLoading::DirectHostAccess, Some(bytes)) => WeightLayout::AtMost(bytes),
        (WeightLoading::DirectHostAccess, None) => WeightLayout::TablesApart,
        _ => WeightLayout::InParts,
    }
}

impl CudaLoader {
    pub(super) fn new(builders: SessionBuilders, version: String) -> Self {
        Self { builders, version, prepared: LiveTable::default() }
    }

    /// Which weights are on GPUs.
    pub(super) fn list_weights(&self) -> Vec<DeviceWeightsStatus> {
        self.prepared.live_values().iter().map(|block| block.weights().status()).collect()
    }

    /// Loads a block onto a GPU. Its weights are there once; every load is a session of its own, as
    /// one must not be run twice at the same time.
    pub(super) fn load_block(
        &self,
        program: &Program,
        options: &LoadOptions,
        number: u32,
    ) -> Result<Box<dyn CudaEngineSession>> {
        let gpu = Gpu::open(number)?;
        let label = program.label();
        let arena = self.choose_arena(&gpu);
        let layout = weight_layout(options);
        let key = (program.key(), number, options.cuda, layout);
        let prepared_on_gpu =
            self.prepared.get_or_make(key, GpuPreparedBlock::is_intact, || {
                let target = ExecutionTarget::Cuda(options.cuda.cache_name(), layout);
                let builder = self.session_builder(options, &gpu)?;
                let setup = lock_device_for_setup();
                let prepared =
                    PreparedBlock::prepare(builder, program, options, &self.version, target)?;
                drop(setup);
                let on_gpu = GpuPreparedBlock::new(program.key(), &gpu, prepared, options)
                    .map_err(|error| error.with_context(&label))?;
                program.release_weight_pages();
                crate::release_freed_memory();
                Ok(on_gpu)
            })?;
        // Sessions are made of what is there.
        let stay = prepared_on_gpu.weights().begin_stay();
        let stay = stay.map_err(|error| error.with_context(&label))?;
        let (inputs, outputs) = program.ports();
        let factory = GpuSessionFactory {
            builders: self.builders.clone(),
            options: options.clone(),
            gpu,
            prepared_on_gpu,
            ports: Arc::new(SessionPorts::new(label, inputs, outputs)?),
            arena,
        };
        Ok(Box::new(OrtCudaSession::of_block(factory, stay)?))
    }

    /// Begins a session that puts its work into the stream of a GPU.
    pub(super) fn session_builder(
        &self,
        options: &LoadOptions,
        gpu: &Arc<Gpu>,
    ) -> Result<SessionBuilder> {
        cublas_workspace::share_workspace(gpu, StreamPointer(gpu.stream_pointer()))?;
        let mut builder = self.builders.session_builder(options)?;
        add_cuda_provider(&mut builder, gpu, gpu.stream_pointer(), &options.cuda)
            .map_err(|error| no_cuda_provider(&error))?;
        Ok(builder)
    }

    /// Makes a session of a file on a GPU.
    pub(super) fn commit_file(mut builder: SessionBuilder, file: &Path) -> ort::Result<OrtSession> {
        let _setup = lock_device_for_setup();
        builder.commit_from_file(file)
    }

    /// The session of a file on a GPU, to be run.
    pub(super) fn file_session(
        session: OrtSession,
        gpu: Arc<Gpu>,
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
    ) -> Result<Box<dyn EngineSession>> {
        let ports = SessionPorts::new(label, inputs, outputs)?;
        Ok(Box::new(OrtCudaSession::of_file(session, gpu, ports)?))
    }

    /// Where sessions on a GPU have their memory from: all from one allocator. Where the library
    /// can't do that, each has its own arena.
    fn choose_arena(&self, gpu: &Gpu) -> ArenaChoice {
        // As the environment, it is the same for the whole process.
        static ARENAS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
        let mut arenas = lock(&ARENAS);
        if arenas.contains(&gpu.number()) {
            return ArenaChoice::Shared;
        }
        let register = || -> Result<()> {
            let _setup = lock_device_for_setup();
            let fail = |error: ort::Error| Error::engine(format!("ONNX Runtime: {error}"));
            let mut builder = self.builders.session_builder(&LoadOptions::default())?;
            let options = CudaOptions::default();
            add_cuda_provider(&mut builder, gpu, gpu.stream_pointer(), &options).map_err(fail)?;
            let session = builder.commit_from_memory(&allocator::smallest_model()).map_err(fail)?;
            allocator::register_allocator(&self.builders.environment, &session, gpu.number())
                .map_err(fail)
        };
        match register() {
            Ok(()) => {
                arenas.insert(gpu.number());
                ArenaChoice::Shared
            }
            // The next may have more luck, where there was no memory.
            Err(error) => {
                tracing::debug!(%error, "a session on a GPU has an arena of its own");
                ArenaChoice::Own
            }
        }
    }
}
