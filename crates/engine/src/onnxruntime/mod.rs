//! ONNX Runtime, through its shared library.
//!
//! A block is loaded in two steps. First ONNX Runtime optimises it and writes the result out
//! ([`prepare`]); the weights of that, some of them laid out anew for this CPU, are mapped and
//! shared by all sessions of the block. Then a session is made of the optimised form with all
//! optimisation off and every weight a reference into the mapping: loading takes milliseconds, a
//! second session costs no second copy, and a run is as fast as if the model had been loaded the
//! plain way (measured on ResNet-50: 4 ms to load instead of 150, the same run time, output
//! identical to the bit).

mod layout;
mod library;
mod prepare;
mod session;
mod value;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session as OrtSession;
use ort::session::builder::{GraphOptimizationLevel, PrepackedWeights, SessionBuilder};
use tessera_core::{ContentHash, DType, Device, Error, Result};

use crate::{Engine, LoadOptions, Program, Session};
use prepare::Prepared;

pub use library::find_library;

/// The engine that is fast.
pub struct OnnxRuntime {
    environment: Environment,
    version: String,
    /// Packed forms of weights, which all sessions share.
    packed: PrepackedWeights,
    /// Blocks that are prepared, for as long as a session uses them.
    prepared: Mutex<HashMap<ContentHash, Weak<Prepared>>>,
}

impl OnnxRuntime {
    /// Opens the library, wherever [`find_library`] finds it.
    pub fn new() -> Result<Self> {
        let (environment, version) = library::open()?;
        Ok(Self {
            environment,
            version,
            packed: PrepackedWeights::new(),
            prepared: Mutex::new(HashMap::new()),
        })
    }

    /// Starts a session. What is loaded to stay uses the shared arena; what is loaded to be
    /// optimised must not, as an arena never shrinks.
    fn builder(&self, options: &LoadOptions) -> Result<SessionBuilder> {
        if let Device::Cuda(_) = options.device {
            return Err(Error::unsupported(format!(
                "device {}: this build runs ONNX Runtime on the CPU",
                options.device
            )));
        }
        let build = || -> ort::Result<SessionBuilder> {
            // Threads that spin while idle starve the next block of the chain: with two threads on
            // two cores a chain of four took 1.35 times the whole model, without spinning 1.035.
            Ok(OrtSession::builder(&self.environment)?
                .with_intra_threads(options.threads.get())?
                .with_inter_threads(1)?
                .with_intra_op_spinning(false)?
                .with_inter_op_spinning(false)?
                .with_log_level(LogLevel::Fatal)?)
        };
        build().map_err(|error| Error::engine(format!("ONNX Runtime: {error}")))
    }

    /// The optimised form of a block, made once for all sessions that live at the same time.
    fn prepared(&self, program: &Program) -> Result<Arc<Prepared>> {
        let hash = program.key();
        let lock = || {
            self.prepared
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        if let Some(known) = lock().get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Arc::new(Prepared::make(
            self.builder(&LoadOptions::default())?,
            program,
        )?);
        let mut table = lock();
        table.retain(|_, prepared| prepared.strong_count() > 0);
        // Somebody may have been quicker; whoever came first is shared.
        if let Some(known) = table.get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        table.insert(hash, Arc::downgrade(&made));
        Ok(made)
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load(&self, program: &Program, options: &LoadOptions) -> Result<Box<dyn Session>> {
        let fail = |error: ort::Error| engine_error(&program.label(), &error);
        let builder = self.builder(options)?;
        let prepared = self.prepared(program)?;
        let build = || -> ort::Result<SessionBuilder> {
            Ok(builder
                .with_optimization_level(GraphOptimizationLevel::Disable)?
                .with_prepacked_weights(&self.packed)?
                .with_env_allocators()?)
        };
        let mut builder = build().map_err(fail)?;
        let weights = prepared.add_to(&mut builder).map_err(fail)?;
        let session = builder.commit_from_memory(prepared.model()).map_err(fail)?;
        for weight in program.weights() {
            if let Some(mapping) = &weight.mapping {
                mapping.release_pages();
            }
        }
        let ports = |ports: &[tessera_graph::BlockPort]| {
            ports
                .iter()
                .map(|port| (port.name.clone(), port.dtype))
                .collect::<Vec<_>>()
        };
        let block = program.block();
        let session = session::OrtBlock::new(
            session,
            program.label(),
            ports(block.inputs()),
            ports(block.outputs()),
            Some((prepared, weights)),
        )?;
        Ok(Box::new(session))
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
        let session = self
            .builder(options)?
            .commit_from_file(file)
            .map_err(fail)?;
        let mut expected = Vec::with_capacity(inputs.len());
        for name in inputs {
            let outlet = session.inputs().iter().find(|outlet| outlet.name() == name);
            let dtype = outlet.and_then(|outlet| value::dtype_of(outlet.dtype()));
            let dtype = dtype.ok_or_else(|| {
                Error::usage(format!(
                    "{label}: input \"{name}\" is no tensor of the model"
                ))
            })?;
            expected.push((name.clone(), dtype));
        }
        let session = session::OrtBlock::new(session, label, expected, outputs.to_vec(), None)?;
        Ok(Box::new(session))
    }
}

/// An error of ONNX Runtime, about the block or file that `label` names.
fn engine_error<R>(label: &str, error: &ort::Error<R>) -> Error {
    Error::engine(format!("{label}: ONNX Runtime: {error}"))
}
