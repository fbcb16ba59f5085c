//! What all experiments work with: the model, its blocks, and ways to run them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use prost::Message;
use tessera_core::{Device, Dim, Error, Result, Tensor};
use tessera_engine::{Engine, LoadOptions};
use tessera_graph::Partition;
use tessera_node::{Memory, PinnedMemory};
use tessera_plan::Isolation;
use tessera_repository::Repository;
use tessera_tensormq::{Transport, Wait};
use tessera_zoo::{Architecture, Batch, Recipe};

use super::super::super::verify::{Whole, load_recorded, load_whole};
use super::latency::Arm;
use super::meter::Meter;
use super::pipeline::{Pipeline, PipelineOptions};
use crate::arguments::bench::BenchGpu;
use crate::model_file::ModelFile;
use crate::{commands, inputs, interrupt, model_file};

/// The model's name in the repository.
const NAME: &str = "pipeline";
/// And as one block.
const ONE_BLOCK: &str = "whole";

pub(super) struct Setup {
    pub(super) model: ModelFile,
    pub(super) partition: Partition,
    /// The same as one block.
    one: Partition,
    repository: PathBuf,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) options: LoadOptions,
    pub(super) batches: Vec<usize>,
    pub(super) meter: Meter,
    /// Removed at the end.
    pub(super) folder: tempfile::TempDir,
}

/// How blocks run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// On threads of this process.
    Threads,
    /// In a process each, with TensorMQ in between.
    Processes,
    /// In a process each, with whole tensors through ZeroMQ in between.
    Zmq,
    /// The whole model as one block in a process of its own.
    Served,
}

impl Setup {
    pub(super) fn new(arguments: &BenchGpu) -> Result<Self> {
        let meter = Meter::open(arguments.engine.options().device)?;
        let folder = tempfile::Builder::new()
            .prefix(&interrupt::mark())
            .tempdir()
            .map_err(|error| Error::io("a temporary folder", &error))?;
        let path = match PathBuf::from(&arguments.model) {
            path if path.is_file() => path,
            _ => {
                let architecture: Architecture =
                    arguments.model.parse().map_err(|error: Error| {
                        error.within(format!("\"{}\" is no file, and in the zoo", arguments.model))
                    })?;
                let recipe = Recipe { batch: Batch::Symbolic, ..Recipe::new(architecture) };
                let path = folder.path().join(format!("{}.onnx", arguments.model));
                model_file::write_whole(&path, &recipe.build()?.model.encode_to_vec())?;
                path
            }
        };
        let model = ModelFile::read(&path, &Default::default(), &[])?;
        let partition = model.split(&arguments.split)?;
        let repository = folder.path().join("repository");
        let stored = Repository::open_or_create(&repository)?;
        stored.put(NAME, &partition)?;
        let one = tessera_graph::Split::Blocks(1);
        let one = tessera_graph::split(&model.graph, &model.types, &one, &model.exits)?;
        stored.put(ONE_BLOCK, &one)?;
        let engine = commands::engine(&arguments.engine)?;
        let mut options = arguments.engine.options();
        options.cuda.recordings = !arguments.no_recordings;
        let batches = arguments.batches.clone();
        Ok(Self { model, partition, one, repository, engine, options, batches, meter, folder })
    }

    /// What the model's input is called.
    pub(super) fn input_name(&self) -> &str {
        self.partition.graph.inputs.first().map_or("", |port| &port.name)
    }

    /// A request of so many rows.
    pub(super) fn input(&self, rows: usize) -> Result<Tensor> {
        let mut ports = self.partition.graph.inputs.clone();
        let [port] = &mut ports[..] else {
            return Err(Error::usage("bench gpu needs a model with one input"));
        };
        if let Some(first) = port.tensor_type.dims.as_mut().and_then(|dims| dims.first_mut()) {
            *first = Dim::Fixed(rows);
        }
        let given = inputs::random(&ports, &HashMap::new(), rows as u64)?;
        let given =
            given.into_iter().next().ok_or_else(|| Error::usage("a model without inputs"))?;
        let Device::Cuda(number) = self.options.device else { return Ok(given) };
        // As in the server, where a GPU copies from: the whole model is to have it no worse.
        let memory = PinnedMemory::new(number)?;
        let mut copy = memory.tensor(given.dtype(), given.shape(), Wait::No)?;
        if let (Some(target), Some(bytes)) = (copy.bytes_mut(), given.bytes()) {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }

    /// The whole model in one session.
    pub(super) fn whole(&self) -> Result<Whole> {
        load_whole(&self.model, &self.partition, self.engine.as_ref(), &self.options)
    }

    /// The same, with runs that are recorded; `None` where there is nothing to record.
    pub(super) fn whole_recorded(&self) -> Result<Option<Whole>> {
        if self.options.device == Device::Cpu || !self.options.cuda.recordings {
            return Ok(None);
        }
        load_recorded(&self.one, self.engine.as_ref(), &self.options).map(Some)
    }

    /// The model in blocks, with requests put together to so many rows at most.
    pub(super) fn arm(
        &self,
        arguments: &BenchGpu,
        kind: Kind,
        batch: Option<usize>,
    ) -> Result<Arm> {
        let (name, isolation, transport) = match kind {
            Kind::Threads => (super::THREADS, Isolation::Thread, None),
            Kind::Processes => (super::PROCESSES, Isolation::Process, None),
            Kind::Zmq => (super::ZMQ, Isolation::Process, Some(Transport::ZmqIpc)),
            Kind::Served => (super::SERVED, Isolation::Process, None),
        };
        let (model, blocks) = match kind {
            Kind::Served => (ONE_BLOCK, 1),
            _ => (NAME, self.partition.graph.blocks.len()),
        };
        let LoadOptions { device, cuda, .. } = self.options;
        let apart = true;
        let options = PipelineOptions { device, cuda, isolation, transport, batch, apart };
        let engine = arguments.engine.engine;
        let input = self.input_name();
        let pipeline = Pipeline::start(&self.repository, model, input, engine, options)?;
        Ok(Arm { name, pipeline, hops: blocks.saturating_sub(1) })
    }
}
