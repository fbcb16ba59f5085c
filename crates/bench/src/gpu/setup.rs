//! What all experiments work with: the model, its blocks, and ways to run them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_core::{Device, Dim, Error, Result, Tensor};
use tessera_deploy::Isolation;
use tessera_engine::{Engine, LoadOptions};
use tessera_graph::Partition;
use tessera_node::{PinnedMemory, TensorMemory, WholeModel};
use tessera_repository::unfinished_files::temporary_folder;
use tessera_repository::{ModelFile, Repository};
use tessera_tensormq::{Transport, Wait};
use tessera_zoo::{BatchSize, random_inputs};

use super::arguments::BenchGpu;
use super::gpu_meter::GpuMeter;
use super::latency::Arm;
use super::pipeline::{BenchPipeline, BenchPipelineOptions};
use crate::zoo_file;

/// The model's name in the repository.
const PIPELINE_MODEL: &str = "pipeline";
/// And as one block.
const ONE_BLOCK_MODEL: &str = "whole";

pub(crate) struct GpuBenchSetup {
    pub(crate) model: ModelFile,
    pub(crate) partition: Partition,
    /// The same as one block.
    one: Partition,
    repository: PathBuf,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) options: LoadOptions,
    pub(crate) batches: Vec<usize>,
    pub(crate) meter: GpuMeter,
    /// Removed at the end.
    pub(crate) folder: tempfile::TempDir,
}

/// How units run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArmKind {
    /// On threads of this process.
    Threads,
    /// In a process each, with TensorMQ in between.
    Processes,
    /// In a process each, with whole tensors through ZeroMQ in between.
    Zmq,
    /// The whole model as one block in a process of its own.
    Served,
}

impl ArmKind {
    /// Whether this build has what it needs.
    pub(crate) fn is_built_in(self) -> bool {
        self != Self::Zmq || Transport::ZMQ_IPC.check_built_in().is_ok()
    }
}

impl GpuBenchSetup {
    pub(crate) fn new(arguments: &BenchGpu) -> Result<Self> {
        let meter = GpuMeter::open(arguments.engine.load_options().device)?;
        let folder = temporary_folder()?;
        let batch = BatchSize::Symbolic;
        let path = zoo_file::find_or_write(&arguments.model, batch, folder.path())?;
        let model = ModelFile::read_file(&path, &Default::default(), &[])?;
        let partition = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
        let repository = folder.path().join("repository");
        let stored = Repository::open_or_create(&repository)?;
        stored.put_model(PIPELINE_MODEL, &partition)?;
        let one = tessera_graph::Split::Blocks(1);
        let one = tessera_graph::split_into_chain(&model.graph, &model.types, &one, &model.exits)?;
        stored.put_model(ONE_BLOCK_MODEL, &one)?;
        let engine = arguments.engine.choose_engine()?;
        let mut options = arguments.engine.load_options();
        options.cuda.cuda_graphs = !arguments.no_cuda_graphs;
        let batches = arguments.batches.clone();
        Ok(Self { model, partition, one, repository, engine, options, batches, meter, folder })
    }

    /// What the model's input is called.
    pub(crate) fn input_name(&self) -> &str {
        self.partition.graph.inputs.first().map_or("", |port| &port.name)
    }

    /// A request of so many rows.
    pub(crate) fn random_input(&self, rows: usize) -> Result<Tensor> {
        let mut ports = self.partition.graph.inputs.clone();
        let [port] = &mut ports[..] else {
            return Err(Error::usage("bench gpu needs a model with one input"));
        };
        if let Some(first) = port.tensor_type.dims.as_mut().and_then(|dims| dims.first_mut()) {
            *first = Dim::Fixed(rows);
        }
        let given = random_inputs(&ports, &HashMap::new(), rows as u64)?;
        let given =
            given.into_iter().next().ok_or_else(|| Error::usage("a model without inputs"))?;
        let Device::Cuda(number) = self.options.device else { return Ok(given) };
        // As in the server, where a GPU copies from: the whole model is to have it no worse.
        let memory = PinnedMemory::new(number)?;
        let mut copy = memory.allocate_tensor(given.dtype(), given.shape(), Wait::No)?;
        if let (Some(target), Some(bytes)) = (copy.bytes_mut(), given.bytes()) {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }

    /// The whole model in one session.
    pub(crate) fn load_whole_model(&self) -> Result<WholeModel> {
        WholeModel::load_file(&self.model, &self.partition, self.engine.as_ref(), &self.options)
    }

    /// The same, with runs that are captured as CUDA graphs; `None` where there is nothing to
    /// capture.
    pub(crate) fn load_whole_cuda_graph(&self) -> Result<Option<WholeModel>> {
        if self.options.device == Device::Cpu || !self.options.cuda.cuda_graphs {
            return Ok(None);
        }
        WholeModel::load_with_cuda_graph(&self.one, self.engine.as_ref(), &self.options).map(Some)
    }

    /// The model in blocks, with requests put together to so many rows at most.
    pub(crate) fn start_arm(
        &self,
        arguments: &BenchGpu,
        kind: ArmKind,
        batch: Option<usize>,
    ) -> Result<Arm> {
        let (name, isolation, transport) = match kind {
            ArmKind::Threads => (super::THREADS, Isolation::Thread, None),
            ArmKind::Processes => (super::PROCESSES, Isolation::Process, None),
            ArmKind::Zmq => (super::ZMQ, Isolation::Process, Some(Transport::ZMQ_IPC)),
            ArmKind::Served => (super::SERVED, Isolation::Process, None),
        };
        let (model, blocks) = match kind {
            ArmKind::Served => (ONE_BLOCK_MODEL, 1),
            _ => (PIPELINE_MODEL, self.partition.graph.blocks.len()),
        };
        let LoadOptions { device, cuda, .. } = self.options;
        let apart = true;
        let options = BenchPipelineOptions { device, cuda, isolation, transport, batch, apart };
        let engine = arguments.engine.engine;
        let input = self.input_name();
        let pipeline =
            BenchPipeline::start_serving(&self.repository, model, input, engine, options)?;
        Ok(Arm { name, pipeline, hops: blocks.saturating_sub(1) })
    }
}
