//! rten: pure Rust, nothing to install.
//!
//! rten knows four dtypes: f32, i32, i8 and u8. Tensors of i64 and bool are passed as i32, as rten
//! itself does with the weights of a model; the other dtypes are refused by name.

mod convert;
mod deep_stack;
mod guard;
mod thread_pools;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use rten::{Model, ModelOptions, NodeId, RunOptions};
use tessera_core::{DType, Device, Error, Result, Tensor, TensorMut};

use deep_stack::with_stack_for;
use guard::guard_panics;
use tessera_graph::MOST_UNIT_NODES;
use thread_pools::ThreadPools;

use crate::program::check_run_arguments;
use crate::{Engine, EngineSession, FileMapping, LoadOptions, Program};

/// The engine that is always there.
#[derive(Default)]
pub struct Rten {
    /// Of all sessions.
    pools: Arc<ThreadPools>,
}

impl Rten {
    /// The engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// The pools for a run on so many threads of the CPU.
    fn run_threads(&self, options: &LoadOptions, label: &str) -> Result<RunThreads> {
        if options.device != Device::Cpu {
            return Err(Error::unsupported(format!(
                "{label}: rten runs on the CPU, not on {}",
                options.device
            )));
        }
        Ok(RunThreads { pools: Arc::clone(&self.pools), threads: options.threads })
    }
}

impl Engine for Rten {
    fn name(&self) -> &'static str {
        "rten"
    }

    fn version(&self) -> String {
        "0.27".to_owned()
    }

    fn load_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        let label = program.label();
        let threads = self.run_threads(options, &label)?;
        let block = program.block();
        for port in block.inputs().iter().chain(block.outputs()) {
            convert::check_supported(&label, &port.name, port.dtype)?;
        }
        let mut weights = Vec::with_capacity(program.weights().len());
        for weight in program.weights() {
            let tensor = aligned_weight(&weight.tensor);
            weights.push(tensor.map_err(|error| error.with_context(&label))?);
        }
        let load = || {
            let mut settings = ModelOptions::with_all_ops();
            for (reference, tensor) in block.weights().iter().zip(&weights) {
                let bytes = tensor.bytes().unwrap_or_default();
                // SAFETY: rten keeps this slice no longer than the model lives, and `RtenSession`
                // drops the model before the weights that own the memory.
                let bytes: &'static [u8] =
                    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
                settings.external_data_static(&reference.location(), bytes);
            }
            load_model(&label, settings, |settings| settings.load(program.file().to_vec()))
        };
        let model = with_stack_for(block.node_count(), &label, load)??;
        let ports = |ports: &[tessera_graph::BlockPort]| {
            ports.iter().map(|port| (port.name.clone(), port.dtype)).collect::<Vec<_>>()
        };
        let mut session = RtenSession::new(
            model,
            weights,
            label,
            ports(block.inputs()),
            ports(block.outputs()),
            threads,
        )?;
        session.node_count = block.node_count();
        let mappings = program.weights().iter().filter_map(|weight| weight.mapping.clone());
        session.mappings = mappings.collect();
        session.check_intact()?;
        Ok(Box::new(session))
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        let label = file.display().to_string();
        let threads = self.run_threads(options, &label)?;
        let settings = ModelOptions::with_all_ops();
        let model = load_model(&label, settings, |settings| settings.load_file(file))?;
        // The dtypes are the caller's to get right: rten does not keep what the file declared.
        let mut session =
            RtenSession::new(model, Vec::new(), label, Vec::new(), outputs.to_vec(), threads)?;
        session.input_ids = inputs
            .iter()
            .map(|name| node_id(&session.model, &session.label, name))
            .collect::<Result<_>>()?;
        session.any_input_dtype = true;
        Ok(Box::new(session))
    }
}

/// The weight where it is if it is aligned for its elements, as in a repository it is; else a copy.
fn aligned_weight(weight: &Tensor) -> Result<Tensor> {
    let bytes = weight.bytes().ok_or_else(|| Error::unsupported("a weight is not on the host"))?;
    if bytes.as_ptr().addr().is_multiple_of(8) {
        return Ok(weight.clone());
    }
    Tensor::copy_from_bytes(weight.dtype(), weight.shape(), bytes)
}

/// Loads a model; one whose shapes rten stumbles over is loaded without looking at them.
fn load_model(
    label: &str,
    mut settings: ModelOptions,
    load: impl Fn(&ModelOptions) -> Result<Model, rten::LoadError>,
) -> Result<Model> {
    let loaded = match guard_panics(label, || load(&settings)) {
        Ok(loaded) => loaded,
        Err(_) => {
            settings.shape_inference(rten::ShapeInferenceMode::Off);
            guard_panics(label, || load(&settings))?
        }
    };
    loaded.map_err(|error| load_error(label, &error))
}

fn load_error(label: &str, error: &rten::LoadError) -> Error {
    let text = error.to_string();
    let kind = match error.kind() {
        rten::LoadErrorKind::OperatorInvalid => tessera_core::ErrorKind::Unsupported,
        _ => tessera_core::ErrorKind::Engine,
    };
    Error::new(kind, format!("{label}: rten: {text}"))
}

fn node_id(model: &Model, label: &str, name: &str) -> Result<NodeId> {
    model.find_node(name).ok_or_else(|| {
        Error::engine(format!("{label}: rten dropped the tensor \"{name}\" while loading"))
    })
}

/// A loaded block or file.
struct RtenSession {
    // Dropped first: the model refers to the weights.
    model: Model,
    _weights: Vec<Tensor>,
    /// The files that they are in.
    mappings: Vec<Arc<FileMapping>>,
    label: String,
    inputs: Vec<(String, DType)>,
    outputs: Vec<(String, DType)>,
    input_ids: Vec<NodeId>,
    output_ids: Vec<NodeId>,
    any_input_dtype: bool,
    node_count: usize,
    /// Whether rten has found the order of the nodes, which it does in the first run.
    is_planned: bool,
    threads: RunThreads,
}

/// What a session's runs are computed on.
struct RunThreads {
    pools: Arc<ThreadPools>,
    threads: NonZeroUsize,
}

impl RtenSession {
    fn new(
        model: Model,
        weights: Vec<Tensor>,
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
        threads: RunThreads,
    ) -> Result<Self> {
        let ids = |ports: &[(String, DType)]| {
            ports.iter().map(|(name, _)| node_id(&model, &label, name)).collect::<Result<Vec<_>>>()
        };
        let (input_ids, output_ids) = (ids(&inputs)?, ids(&outputs)?);
        Ok(Self {
            model,
            _weights: weights,
            mappings: Vec::new(),
            label,
            inputs,
            outputs,
            input_ids,
            output_ids,
            any_input_dtype: false,
            node_count: MOST_UNIT_NODES,
            is_planned: false,
            threads,
        })
    }

    /// Fails where its weights are not what they were.
    fn check_intact(&self) -> Result<()> {
        let checked = self.mappings.iter().try_for_each(|mapping| mapping.check_intact());
        checked.map_err(|error| error.with_context(&self.label))
    }
}

impl EngineSession for RtenSession {
    fn computes_in_place(&self) -> bool {
        false
    }

    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        let given = if self.any_input_dtype { &[] } else { inputs };
        check_run_arguments(&self.label, &self.inputs, given, (outputs.len(), self.outputs.len()))?;
        let values = self
            .input_ids
            .iter()
            .zip(inputs)
            .map(|(&id, tensor)| Ok((id, convert::to_rten(&self.label, tensor)?)))
            .collect::<Result<Vec<_>>>()?;
        let taken = self.threads.pools.take_pool(self.threads.threads);
        let options = RunOptions::default().with_thread_pool(Some(taken.pool()));
        let (model, output_ids) = (&self.model, &self.output_ids);
        let run = || guard_panics(&self.label, || model.run(values, output_ids, Some(options)));
        let results = match std::mem::replace(&mut self.is_planned, true) {
            true => run()?,
            false => with_stack_for(self.node_count, &self.label, run)??,
        };
        drop(taken);
        self.check_intact()?;
        let results =
            results.map_err(|error| Error::engine(format!("{}: rten: {error}", self.label)))?;
        results
            .into_iter()
            .zip(&self.outputs)
            .zip(outputs)
            .map(|((value, (name, dtype)), bound)| {
                let tensor = convert::from_rten(&self.label, name, *dtype, value)?;
                match bound {
                    Some(bound) => convert::copy_into(&self.label, name, &tensor, bound),
                    None => Ok(tensor),
                }
            })
            .collect()
    }
}
