//! `tessera bench gpu`: chapter 4 of the BlockFlow thesis on the GPU that there is.

mod latency;
mod pipeline;

use std::collections::HashMap;
use std::path::PathBuf;

use prost::Message;
use serde::Serialize;
use tessera_core::{Device, Error, Result, Tensor};
use tessera_engine::{Engine, LoadOptions};
use tessera_graph::Partition;
use tessera_node::{Memory, PinnedMemory};
use tessera_plan::Isolation;
use tessera_repository::Repository;
use tessera_tensormq::{Transport, Wait};
use tessera_zoo::{Architecture, Batch, Recipe};

use super::super::verify::{Whole, load_whole};
use crate::arguments::bench::BenchGpu;
use crate::model_file::ModelFile;
use crate::{commands, inputs, interrupt, model_file, output};
use latency::Arm;
use pipeline::{Pipeline, PipelineOptions};

/// What all experiments work with.
pub(super) struct Setup {
    model: ModelFile,
    partition: Partition,
    repository: PathBuf,
    engine: std::sync::Arc<dyn Engine>,
    options: LoadOptions,
    batches: Vec<usize>,
    // Removed at the end.
    _folder: tempfile::TempDir,
}

const NAME: &str = "pipeline";

#[derive(Serialize)]
struct Report {
    model: String,
    latency: latency::Latency,
}

impl Setup {
    fn new(arguments: &BenchGpu) -> Result<Self> {
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
        Repository::open_or_create(&repository)?.put(NAME, &partition)?;
        let engine = commands::engine(&arguments.engine)?;
        let options = arguments.engine.options();
        let batches = arguments.batches.clone();
        Ok(Self { model, partition, repository, engine, options, batches, _folder: folder })
    }

    /// A request of so many rows.
    fn input(&self, rows: usize) -> Result<Tensor> {
        let mut ports = self.partition.graph.inputs.clone();
        let [port] = &mut ports[..] else {
            return Err(Error::usage("bench gpu needs a model with one input"));
        };
        if let Some(first) = port.tensor_type.dims.as_mut().and_then(|dims| dims.first_mut()) {
            *first = tessera_core::Dim::Fixed(rows);
        }
        let given = inputs::random(&ports, &HashMap::new(), rows as u64)?;
        let given = given.into_iter().next().ok_or_else(|| Error::usage("a model without inputs"))?;
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
    fn whole(&self) -> Result<Whole> {
        load_whole(&self.model, &self.partition, self.engine.as_ref(), &self.options)
    }

    /// The model in blocks.
    fn pipeline(
        &self,
        arguments: &BenchGpu,
        isolation: Isolation,
        transport: Option<Transport>,
    ) -> Result<Pipeline> {
        let options = PipelineOptions {
            device: self.options.device,
            isolation,
            transport,
            batch: None,
            apart: true,
        };
        let input = &self.partition.graph.inputs.first().map(|port| port.name.clone());
        let input = input.as_deref().unwrap_or_default();
        Pipeline::start(&self.repository, NAME, input, arguments.engine.engine, options)
    }
}

pub(super) fn run(arguments: &BenchGpu) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let setup = Setup::new(arguments)?;
    let hops = setup.partition.graph.blocks.len().saturating_sub(1);
    let arms = [
        ("threads", Isolation::Thread, None),
        ("processes", Isolation::Process, None),
        ("processes, zmq-ipc", Isolation::Process, Some(Transport::ZmqIpc)),
    ];
    let arms = arms
        .into_iter()
        .map(|(name, isolation, transport)| {
            let pipeline = setup.pipeline(arguments, isolation, transport)?;
            Ok(Arm { name, pipeline, hops })
        })
        .collect::<Result<Vec<_>>>()?;
    working.finish_and_clear();
    let latency = latency::measure(&setup, &arms, arguments.runs)?;
    let report = Report { model: arguments.model.clone(), latency };
    if arguments.json {
        return output::print_json(&report);
    }
    latency::print(&report.latency)
}
