//! A model that is not cut, to compare with.

use std::collections::HashMap;

use tessera_core::{Device, Error, Result, Tensor};
use tessera_engine::{CudaEngineSession, Engine, EngineSession, LoadOptions, to_host};
use tessera_graph::{Partition, TensorSource};
use tessera_repository::ModelFile;

use crate::program_source::ProgramSource;

/// A session, whose runs may be captured as CUDA graphs.
enum WholeSession {
    Plain(Box<dyn EngineSession>),
    Captured(Box<dyn CudaEngineSession>),
}

/// The whole model in one session.
pub struct WholeModel {
    session: WholeSession,
    outputs: Vec<String>,
}

impl WholeModel {
    /// The file as it is.
    pub fn load_file(
        model: &ModelFile,
        partition: &Partition,
        engine: &dyn Engine,
        options: &LoadOptions,
    ) -> Result<Self> {
        let inputs: Vec<String> =
            partition.graph.inputs.iter().map(|port| port.name.clone()).collect();
        let graph = &model.graph;
        let outputs: Vec<_> = graph
            .outputs()
            .iter()
            .filter_map(|&id| Some((graph.value_name(id).to_owned(), model.types.get(id)?.dtype)))
            .collect();
        // A map at an output is no tensor: the file is loaded without, as the model is read.
        let plain = model.file_without_maps()?;
        let path = plain.as_ref().map_or(model.path.as_path(), |file| file.path());
        let session = engine.load_file(path, &inputs, &outputs, options)?;
        let session = WholeSession::Plain(session);
        Ok(Self { session, outputs: outputs.into_iter().map(|(name, _)| name).collect() })
    }

    /// The model as one block whose runs are captured as CUDA graphs, where the device has that.
    pub fn load_with_cuda_graph(
        one: &Partition,
        engine: &dyn Engine,
        options: &LoadOptions,
    ) -> Result<Self> {
        let graph = &one.graph;
        let [node] = &graph.blocks[..] else {
            return Err(Error::usage("a model in several blocks is not captured as one"));
        };
        let types = graph.inputs.iter().map(|port| port.tensor_type.clone()).collect::<Vec<_>>();
        let program = one.fetch_program(node.block)?.with_input_types(&types)?;
        let names = program.block().outputs().iter().enumerate().map(|(index, port)| {
            let is_it =
                |source: &TensorSource| *source == TensorSource::Block { block: 0, output: index };
            let found = graph.outputs.iter().find(|(_, source)| is_it(source));
            found.map_or_else(|| port.name.clone(), |(port, _)| port.name.clone())
        });
        let outputs = names.collect();
        let session = if options.device == Device::Cpu {
            WholeSession::Plain(engine.load_program(&program, options)?)
        } else {
            let mut session = engine.load_cuda_program(&program, options)?;
            session.capture_cuda_graphs();
            WholeSession::Captured(session)
        };
        Ok(Self { session, outputs })
    }

    /// How many runs were replayed from a CUDA graph.
    pub fn replayed_runs(&self) -> u64 {
        match &self.session {
            WholeSession::Plain(_) => 0,
            WholeSession::Captured(session) => session.replayed_runs(),
        }
    }

    /// Runs it.
    pub fn infer_outputs(&mut self, inputs: &[Tensor]) -> Result<HashMap<String, Tensor>> {
        let bound = self.outputs.iter().map(|_| None).collect();
        let results = match &mut self.session {
            WholeSession::Plain(session) => session.run_inference(inputs, bound)?,
            WholeSession::Captured(session) => session.run_inference(inputs, bound)?,
        };
        let results = results.iter().map(to_host).collect::<Result<Vec<_>>>()?;
        let results =
            results.into_iter().map(Tensor::wait_fence_on_host).collect::<Result<Vec<_>>>()?;
        Ok(self.outputs.iter().cloned().zip(results).collect())
    }
}
