//! ONNX Runtime, through its shared library.
//!
//! A block is loaded in two steps. First ONNX Runtime optimises it and writes the result out
//! ([`prepare`]); the weights of that, some of them laid out anew for this CPU, are mapped and
//! shared by all sessions of the block. Then a session is made of the optimised form with all
//! optimisation off and every weight a reference into the mapping, and whoever loads the block again
//! shares that session, or with another number of threads its packed weights: a block costs its weights once, and a run is as fast as if the model had
//! been loaded the plain way (measured on ResNet-50; output identical to the bit).

mod allocator;
mod bound;
mod copies;
mod cuda;
mod layout;
mod library;
mod prepare;
mod recorded;
mod recorder;
mod run_options;
mod scratch;
mod session;
mod value;

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session as OrtSession;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use tessera_core::{ContentHash, DType, Device, Error, Result};

use crate::{CudaOptions, Engine, LoadOptions, Program, Session};
use cuda::Arena;
use prepare::{Machine, Prepared};
use session::SharedSession;
use tessera_cuda::Gpu;

pub use library::find_library;

/// How long a thread of a run looks for more work before it goes to sleep.
const SPIN_MICROSECONDS: &str = "20";

/// The first version that is known to take that; others spin for much longer or not at all.
const SPINS_BRIEFLY: (u32, u32) = (1, 31);

/// Whether a version is this one or a later one.
fn is_at_least(version: &str, least: (u32, u32)) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= least)
}

/// The engine that is fast.
pub struct OnnxRuntime {
    builders: Builders,
    version: String,
    /// Blocks that are prepared, for as long as a session uses them.
    prepared: Mutex<HashMap<ContentHash, Weak<Prepared>>>,
    /// Sessions, for as long as somebody has the block loaded.
    sessions: Mutex<HashMap<SessionKey, Weak<SharedSession>>>,
    /// Blocks whose weights are on a GPU, for as long as a session uses them.
    on_gpus: Mutex<HashMap<GpuKey, Weak<cuda::OnGpu>>>,
}

/// Begins sessions.
#[derive(Clone)]
struct Builders {
    environment: Environment,
    /// Whether the library can be told for how long threads spin.
    spins_briefly: bool,
}

impl Builders {
    /// Starts a session. What is loaded to stay uses the shared arena; what is loaded to be
    /// optimised must not, as an arena never shrinks.
    fn builder(&self, options: &LoadOptions) -> Result<SessionBuilder> {
        let build = || -> ort::Result<SessionBuilder> {
            // A thread that sleeps between two operators has to be woken for each: ResNet-50 on two
            // threads takes 1.3 times as long. One that spins for as long as the library would starves
            // the next block of the chain: 1.35 times the whole model. After 20 µs it is neither.
            Ok(OrtSession::builder(&self.environment)?
                .with_intra_threads(options.threads.get())?
                .with_inter_threads(1)?
                .with_intra_op_spinning(self.spins_briefly)?
                .with_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)?
                .with_inter_op_spinning(false)?
                .with_log_level(LogLevel::Fatal)?)
        };
        build().map_err(|error| Error::engine(format!("ONNX Runtime: {error}")))
    }
}

/// A program, the GPU, and what it was optimised for.
type GpuKey = (ContentHash, u32, CudaOptions);

/// A program, the threads that a run may use, and where it runs.
type SessionKey = (ContentHash, NonZeroUsize, Device);

impl OnnxRuntime {
    /// Opens the library, wherever [`find_library`] finds it.
    pub fn new() -> Result<Self> {
        let (environment, version) = library::open()?;
        let spins_briefly = is_at_least(&version, SPINS_BRIEFLY);
        Ok(Self {
            builders: Builders { environment, spins_briefly },
            version,
            sessions: Mutex::default(),
            on_gpus: Mutex::default(),
            prepared: Mutex::default(),
        })
    }

    /// The session of a block, one for all who load it in the same way at the same time.
    ///
    /// ONNX Runtime packs the weights of matrix products per session, whatever is shared below; so
    /// the session itself is shared, which may run on several threads at once.
    fn shared(&self, program: &Program, options: &LoadOptions) -> Result<Arc<SharedSession>> {
        let key = (program.key(), options.threads, options.device);
        known_or(&self.sessions, key, || {
            let fail = |error: ort::Error| engine_error(&program.label(), &error);
            let builder = self.builders.builder(options)?;
            let prepared = known_or(&self.prepared, program.key(), || {
                let builder = self.builders.builder(&LoadOptions::default())?;
                self.prepare(builder, program, options, Machine::Cpu)
            })?;
            let build = || -> ort::Result<SessionBuilder> {
                Ok(builder
                    .with_optimization_level(GraphOptimizationLevel::Disable)?
                    .with_env_allocators()?
                    .with_prepacked_weights(prepared.packed())?)
            };
            let builder = build().map_err(fail)?;
            let made = Arc::clone(&prepared).session(builder);
            let session = made.map_err(|error| error.told(&program.label()))?;
            for mapping in program.weights().iter().filter_map(|weight| weight.mapping.as_ref()) {
                mapping.release_pages();
            }
            prepared.release_pages();
            crate::release_freed_memory();
            Ok(session)
        })
    }

    /// The optimised form of a block, kept where that is wanted.
    fn prepare(
        &self,
        builder: SessionBuilder,
        program: &Program,
        options: &LoadOptions,
        on: Machine<'_>,
    ) -> Result<Prepared> {
        match &options.cache {
            Some(cache) => Prepared::cached(cache, &self.version, builder, program, on),
            None => Prepared::make(builder, program, on),
        }
    }

    /// Where sessions on a GPU have their memory from: all from one allocator. Where the library can't do that, each has its
    /// own arena.
    fn arena(&self, gpu: &Gpu) -> Arena {
        // As the environment, it is the same for the whole process.
        static ARENAS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
        let mut arenas = lock(&ARENAS);
        if arenas.contains(&gpu.number()) {
            return Arena::Shared;
        }
        let register = || -> Result<()> {
            let fail = |error: ort::Error| Error::engine(format!("ONNX Runtime: {error}"));
            let mut builder = self.builders.builder(&LoadOptions::default())?;
            let options = CudaOptions::default();
            cuda::provide(&mut builder, gpu, gpu.stream(), &options).map_err(fail)?;
            let session = builder.commit_from_memory(&allocator::smallest_model()).map_err(fail)?;
            allocator::register(&self.builders.environment, &session, gpu.number()).map_err(fail)
        };
        match register() {
            Ok(()) => {
                arenas.insert(gpu.number());
                Arena::Shared
            }
            // The next may have more luck, where there was no memory.
            Err(error) => {
                tracing::debug!(%error, "a session on a GPU has an arena of its own");
                Arena::Own
            }
        }
    }

    /// Loads a block onto a GPU. Its weights are there once; every load is a session of its own, as one must not
    /// be run twice at the same time.
    fn load_on_gpu(
        &self,
        program: &Program,
        options: &LoadOptions,
        number: u32,
    ) -> Result<Box<dyn Session>> {
        let gpu = Gpu::open(number)?;
        let label = program.label();
        let arena = self.arena(&gpu);
        let builder = || -> Result<SessionBuilder> {
            let mut builder = self.builders.builder(options)?;
            cuda::provide(&mut builder, &gpu, gpu.stream(), &options.cuda)
                .map_err(|error| no_cuda(&error))?;
            Ok(builder)
        };
        let key = (program.key(), number, options.cuda);
        let on_gpu = known_or(&self.on_gpus, key, || {
            let machine = Machine::Cuda(options.cuda.name());
            let prepared = self.prepare(builder()?, program, options, machine)?;
            let on_gpu = cuda::OnGpu::new(&gpu, prepared).map_err(|error| error.within(&label))?;
            for mapping in program.weights().iter().filter_map(|weight| weight.mapping.as_ref()) {
                mapping.release_pages();
            }
            crate::release_freed_memory();
            Ok(on_gpu)
        })?;
        let (inputs, outputs) = ports(program);
        let sessions = cuda::GpuSessions {
            builders: self.builders.clone(),
            options: options.clone(),
            gpu,
            on_gpu,
            ports: Arc::new(bound::Ports::new(label, inputs, outputs)?),
            arena,
        };
        Ok(Box::new(cuda::CudaBlock::of_block(sessions)?))
    }
}

/// What a mutex guards, also after somebody panicked: what is behind ours stays whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of `table` that is still in use, or a new one.
fn known_or<K: Eq + Hash, V>(
    table: &Mutex<HashMap<K, Weak<V>>>,
    key: K,
    make: impl FnOnce() -> Result<V>,
) -> Result<Arc<V>> {
    if let Some(known) = lock(table).get(&key).and_then(Weak::upgrade) {
        return Ok(known);
    }
    let made = Arc::new(make()?);
    let mut table = lock(table);
    table.retain(|_, entry| entry.strong_count() > 0);
    // Somebody may have been quicker; whoever came first is shared.
    if let Some(known) = table.get(&key).and_then(Weak::upgrade) {
        return Ok(known);
    }
    table.insert(key, Arc::downgrade(&made));
    Ok(made)
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load(&self, program: &Program, options: &LoadOptions) -> Result<Box<dyn Session>> {
        if let Device::Cuda(number) = options.device {
            return self.load_on_gpu(program, options, number);
        }
        let session = self.shared(program, options)?;
        let (inputs, outputs) = ports(program);
        Ok(Box::new(session::OrtBlock::new(session, program.label(), inputs, outputs)?))
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn Session>> {
        let label = file.display().to_string();
        let fail = |error: ort::Error| engine_error(&label, &error);
        let gpu = match options.device {
            Device::Cuda(number) => Some(Gpu::open(number)?),
            Device::Cpu => None,
        };
        let mut builder = self.builders.builder(options)?;
        if let Some(gpu) = &gpu {
            cuda::provide(&mut builder, gpu, gpu.stream(), &options.cuda)
                .map_err(|error| no_cuda(&error))?;
        }
        let session = builder.commit_from_file(file).map_err(fail)?;
        let mut expected = Vec::with_capacity(inputs.len());
        for name in inputs {
            let outlet = session.inputs().iter().find(|outlet| outlet.name() == name);
            let dtype = outlet.and_then(|outlet| value::dtype_of(outlet.dtype()));
            let dtype = dtype.ok_or_else(|| {
                Error::usage(format!("{label}: input \"{name}\" is no tensor of the model"))
            })?;
            expected.push((name.clone(), dtype));
        }
        if let Some(gpu) = gpu {
            let outputs = outputs.to_vec();
            let ports = bound::Ports::new(label, expected, outputs)?;
            return Ok(Box::new(cuda::CudaBlock::of_file(session, gpu, ports)?));
        }
        let session = Arc::new(SharedSession::of_file(session));
        Ok(Box::new(session::OrtBlock::new(session, label, expected, outputs.to_vec())?))
    }
}

/// What a block takes and gives.
#[allow(clippy::type_complexity, reason = "two lists of the same kind")]
fn ports(program: &Program) -> (Vec<(String, DType)>, Vec<(String, DType)>) {
    let ports = |ports: &[tessera_graph::BlockPort]| {
        ports.iter().map(|port| (port.name.clone(), port.dtype)).collect::<Vec<_>>()
    };
    (ports(program.block().inputs()), ports(program.block().outputs()))
}

/// Why there is no CUDA provider: the library is one without, or lacks what it needs.
fn no_cuda(error: &ort::Error) -> Error {
    Error::unsupported(format!(
        "ONNX Runtime's CUDA provider can't be used (libonnxruntime_providers_cuda.so beside the library, CUDA and cuDNN \
         on the loader's path): {error}"
    ))
}

/// An error of ONNX Runtime, about the block or file that `label` names.
fn engine_error<R>(label: &str, error: &ort::Error<R>) -> Error {
    Error::engine(format!("{label}: ONNX Runtime: {error}"))
}
