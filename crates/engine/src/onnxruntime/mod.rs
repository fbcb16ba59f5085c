//! ONNX Runtime, through its shared library.
//!
//! A block is loaded in two steps. First ONNX Runtime optimises it and writes the result out
//! ([`prepared_block`]); the weights of that, some of them laid out anew for this CPU, are mapped
//! and shared by all sessions of the block. Then a session is made of the optimised form with all
//! optimisation off and every weight a reference into the mapping, and whoever loads the block
//! again shares that session, or with another number of threads its packed weights: a block costs
//! its weights once, and a run is as fast as if the model had been loaded the plain way (measured
//! on ResNet-50; output identical to the bit).

mod aligned_weights;
mod arena;
mod blocked_layout;
mod cpu_session;
mod cuda;
mod external_weights;
mod library;
mod memcpy_removal;
mod ort_value;
mod prepared_block;
mod session_builder;
mod session_run_options;
mod wait_operators;
mod weight_layout;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use ort::session::Session as OrtSession;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use tessera_core::{ContentHash, DType, Device, Error, Result};
use tessera_cuda::Gpu;

use crate::device_weights::DeviceWeightsStatus;
use crate::live_table::LiveTable;
use crate::{CudaEngineSession, Engine, EngineSession, LoadOptions, Program};
use arena::ArenaShrinker;
use cpu_session::{OrtCpuSession, SharedSession};
use cuda::CudaLoader;
use ort_value::OrtValue;
use prepared_block::{ExecutionTarget, PreparedBlock};
use session_builder::{SessionBuilders, engine_error};

pub use arena::limit_run_memory;
pub use library::find_library;
pub(crate) use library::is_library_named;

/// The engine that is fast.
pub struct OnnxRuntime {
    builders: SessionBuilders,
    version: String,
    /// Blocks that are prepared, for as long as a session uses them.
    prepared: LiveTable<ContentHash, PreparedBlock>,
    /// Sessions, for as long as somebody has the block loaded.
    sessions: LiveTable<SessionKey, SharedSession>,
    /// Loads blocks that don't run on the CPU.
    cuda: CudaLoader,
    arena: ArenaShrinker,
}

/// A program, the threads that a run may use, and where it runs.
type SessionKey = (ContentHash, NonZeroUsize, Device);

impl OnnxRuntime {
    /// Opens the library, wherever [`find_library`] finds it.
    pub fn new() -> Result<Self> {
        let (environment, version) = library::open_library()?;
        let builders = SessionBuilders::new(environment, &version);
        Ok(Self {
            cuda: CudaLoader::new(builders.clone(), version.clone()),
            builders,
            version,
            sessions: LiveTable::default(),
            prepared: LiveTable::default(),
            arena: ArenaShrinker::default(),
        })
    }

    /// The session of a block, one for all who load it in the same way at the same time.
    ///
    /// ONNX Runtime packs the weights of matrix products per session, whatever is shared below; so
    /// the session itself is shared, which may run on several threads at once.
    fn shared_session(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<SharedSession>> {
        let key = (program.key(), options.threads, options.device);
        let is_whole = |session: &SharedSession| session.check_intact().is_ok();
        self.sessions.get_or_make(key, is_whole, || {
            let prepared = self.prepared_block(program, options)?;
            let (session, values) = self.session_of_prepared(program, options, &prepared)?;
            let session = SharedSession::of_block(session, Arc::clone(&prepared), values);
            session.check_intact().map_err(|error| error.with_context(program.label()))?;
            program.release_weight_pages();
            prepared.release_pages();
            crate::release_freed_memory();
            Ok(session)
        })
    }
}

impl OnnxRuntime {
    /// The prepared form of a block, one for all who load it at the same time.
    fn prepared_block(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<PreparedBlock>> {
        let is_whole = |prepared: &PreparedBlock| prepared.check_intact().is_ok();
        self.prepared.get_or_make(program.key(), is_whole, || {
            let builder = self.builders.session_builder(&LoadOptions::default())?;
            let target = ExecutionTarget::Cpu;
            PreparedBlock::prepare(builder, program, options, &self.version, target)
        })
    }

    /// A session over the prepared form of a block, with values that must live as long as it does.
    ///
    /// It shares what it makes of weights with others of the block. Some kernels can't do that, as
    /// those of quantised convolutions: such a session has its own. Where the prepared form does not
    /// load at all, the block is loaded as it is.
    fn session_of_prepared(
        &self,
        program: &Program,
        options: &LoadOptions,
        prepared: &PreparedBlock,
    ) -> Result<(OrtSession, Vec<OrtValue>)> {
        let label = program.label();
        let builder = |level: GraphOptimizationLevel| -> Result<SessionBuilder> {
            let builder = self.builders.session_builder(options)?;
            let build = || -> ort::Result<SessionBuilder> {
                Ok(builder.with_optimization_level(level)?.with_env_allocators()?)
            };
            build().map_err(|error| engine_error(&label, &error))
        };
        let sharing = builder(GraphOptimizationLevel::Disable)?
            .with_prepacked_weights(prepared.packed_weights())
            .map_err(|error| engine_error(&label, &error))?;
        let first = match prepared.session_over_own(sharing) {
            Ok(made) => return Ok(made),
            Err(error) => error.into_error(&label),
        };
        if let Ok(made) = prepared.session_over_own(builder(GraphOptimizationLevel::Disable)?) {
            tracing::debug!(block = label, error = %first, "its packed weights are not shared");
            return Ok(made);
        }
        match PreparedBlock::session_as_given(builder(GraphOptimizationLevel::All)?, program) {
            Ok(session) => {
                tracing::warn!(block = label, error = %first, "its optimised form does not load");
                Ok((session, Vec::new()))
            }
            Err(_) => Err(first),
        }
    }
}

/// Loads a program; once more without what is known of its inputs' shapes where it does not load.
///
/// A branch of an `If` that is never taken need not make sense for the shapes that are, but is
/// checked against them.
fn without_shapes_if_need_be<T>(
    program: &Program,
    load: impl Fn(&Program) -> Result<T>,
) -> Result<T> {
    let first = match load(program) {
        Ok(loaded) => return Ok(loaded),
        Err(error) => error,
    };
    let Some(plain) = program.without_input_types() else {
        return Err(first);
    };
    match load(&plain) {
        Ok(loaded) => {
            tracing::warn!(
                block = program.label(), error = %first,
                "does not load with the shapes of its inputs, and runs without them"
            );
            Ok(loaded)
        }
        Err(_) => Err(first),
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        if options.device != Device::Cpu {
            return Ok(self.load_cuda_program(program, options)?);
        }
        let session =
            without_shapes_if_need_be(program, |program| self.shared_session(program, options))?;
        let (inputs, outputs) = program.ports();
        Ok(Box::new(OrtCpuSession::new(session, program.label(), inputs, outputs)?))
    }

    fn load_cuda_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn CudaEngineSession>> {
        match options.device {
            Device::Cuda(number) => without_shapes_if_need_be(program, |program| {
                self.cuda.load_block(program, options, number)
            }),
            Device::Cpu => Err(Error::usage("a block for the CPU was to be loaded onto a GPU")),
        }
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        let label = file.display().to_string();
        let fail = |error: ort::Error| engine_error(&label, &error);
        let gpu = match options.device {
            Device::Cuda(number) => Some(Gpu::open(number)?),
            Device::Cpu => None,
        };
        let session = match &gpu {
            Some(gpu) => CudaLoader::commit_file(self.cuda.session_builder(options, gpu)?, file),
            None => self.builders.session_builder(options)?.commit_from_file(file),
        };
        let session = session.map_err(fail)?;
        let mut expected = Vec::with_capacity(inputs.len());
        let optional = session.overridable_initializers();
        for name in inputs {
            let outlet = session.inputs().iter().find(|outlet| outlet.name() == name);
            let optional = optional.iter().find(|known| known.name() == name);
            let known = outlet.map(|outlet| outlet.dtype()).or(optional.map(|known| known.dtype()));
            let dtype = known.and_then(ort_value::dtype_of);
            let dtype = dtype.ok_or_else(|| {
                Error::usage(format!("{label}: input \"{name}\" is no tensor of the model"))
            })?;
            expected.push((name.clone(), dtype));
        }
        if let Some(gpu) = gpu {
            return CudaLoader::file_session(session, gpu, label, expected, outputs.to_vec());
        }
        let session = Arc::new(SharedSession::of_file(session));
        Ok(Box::new(OrtCpuSession::new(session, label, expected, outputs.to_vec())?))
    }

    fn release_idle_memory(&self) {
        if let Err(error) = self.arena.shrink_arena(&self.builders) {
            tracing::debug!(%error, "the arena was not shrunk");
        }
    }

    fn list_device_weights(&self) -> Vec<DeviceWeightsStatus> {
        self.cuda.list_weights()
    }
}
