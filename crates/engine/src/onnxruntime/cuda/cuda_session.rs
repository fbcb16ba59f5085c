//! A loaded block or file on a GPU, whose runs may be replayed from a CUDA graph.

use std::sync::Arc;

use ort::session::Session as OrtSession;
use tessera_core::{DType, Error, MemoryLocation, Result, Tensor, TensorMut};
use tessera_cuda::{CaptureStream, Gpu, to_device};

use super::bound_session::{BoundSession, SessionPorts};
use super::graph_cache::{CudaGraphCache, ReplayOutcome};
use super::part_measurement::measure_part_times;
use super::run_waits::StreamPointer;
use super::session_factory::GpuSessionFactory;
use crate::device_weights::WeightStay;
use crate::onnxruntime::ort_value::OrtValue;
use crate::onnxruntime::session_builder::engine_error;
use crate::program::{check_bound_outputs, check_run_arguments};
use crate::{CudaEngineSession, EngineSession, PartTimes};

/// A loaded block or file on a GPU.
pub(super) struct OrtCudaSession {
    session: BoundSession,
    gpu: Arc<Gpu>,
    ports: Arc<SessionPorts>,
    /// Makes sessions to capture; `None` for a file.
    session_factory: Option<Arc<GpuSessionFactory>>,
    cuda_graphs: Option<CudaGraphCache>,
    /// Has the weights be there for as long as the session is, unless somebody else sees to that.
    stay: Option<WeightStay>,
}

impl OrtCudaSession {
    pub(super) fn of_block(session_factory: GpuSessionFactory, stay: WeightStay) -> Result<Self> {
        let (gpu, ports) = (Arc::clone(&session_factory.gpu), Arc::clone(&session_factory.ports));
        let session = session_factory.make_session(StreamPointer(gpu.stream_pointer()))?;
        let session_factory = Some(Arc::new(session_factory));
        Ok(Self { session, gpu, ports, session_factory, cuda_graphs: None, stay: Some(stay) })
    }

    pub(super) fn of_file(session: OrtSession, gpu: Arc<Gpu>, ports: SessionPorts) -> Result<Self> {
        let ports = Arc::new(ports);
        let session = BoundSession::new(session, None, Arc::clone(&ports), gpu.number())?;
        Ok(Self { session, gpu, ports, session_factory: None, cuda_graphs: None, stay: None })
    }
}

impl CudaEngineSession for OrtCudaSession {
    fn capture_cuda_graphs(&mut self) {
        let may = |factory: &Arc<GpuSessionFactory>| {
            let is_wanted = factory.options.cuda.cuda_graphs && self.cuda_graphs.is_none();
            is_wanted && self.session.is_on_gpu()
        };
        let Some(factory) = self.session_factory.clone().filter(may) else { return };
        let (gpu, ports) = (Arc::clone(&self.gpu), Arc::clone(&self.ports));
        let weights = Arc::clone(factory.prepared_on_gpu.weights());
        let make = Box::new(move |stream: &CaptureStream| factory.make_capture_session(stream));
        self.cuda_graphs = Some(CudaGraphCache::new(gpu, ports, make, weights));
    }

    fn take_weight_stay(&mut self) -> Option<WeightStay> {
        // Where some of it runs on the CPU the session has copies, which stay.
        let is_ours = self.session.is_on_gpu();
        self.stay.take_if(|_| is_ours)
    }

    fn replayed_runs(&self) -> u64 {
        self.cuda_graphs.as_ref().map_or(0, CudaGraphCache::replayed_runs)
    }

    fn measure_part_times(&mut self, inputs: &[Tensor], runs: usize) -> Result<Vec<PartTimes>> {
        let Some(factory) = self.session_factory.clone() else { return Ok(Vec::new()) };
        if self.stay.is_none() || !self.session.is_on_gpu() {
            return Err(Error::usage("weights of a session that is not the only one to use them"));
        }
        let weights = Arc::clone(factory.prepared_on_gpu.weights());
        measure_part_times(&weights, runs, &mut || {
            let outputs = self.ports.outputs.iter().map(|_| None).collect();
            drop(self.run_inference(inputs, outputs)?);
            self.gpu.synchronise_stream()
        })
    }
}

impl EngineSession for OrtCudaSession {
    fn computes_in_place(&self) -> bool {
        false
    }

    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        let label = &self.ports.label;
        let counts = (outputs.len(), self.ports.outputs.len());
        check_run_arguments(label, &self.ports.inputs, inputs, counts)?;
        check_bound_outputs(label, &self.ports.outputs, &outputs)?;
        let fail = |error: ort::Error| engine_error(label, &error);
        let given = inputs.iter().map(|input| match input.dtype() {
            DType::String => Ok(input.clone()),
            _ => to_device(&self.gpu, input),
        });
        let given = given.collect::<Result<Vec<_>>>().map_err(|error| error.with_context(label))?;
        let mut outputs = match &self.cuda_graphs {
            Some(cuda_graphs) => match cuda_graphs.replay_or_capture(&given, outputs)? {
                ReplayOutcome::Replayed(outputs) => return Ok(outputs),
                ReplayOutcome::NotReplayed(outputs) => outputs,
            },
            None => outputs,
        };
        let values = given.iter().map(OrtValue::over_tensor).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(fail)?;
        let bound = outputs
            .iter_mut()
            .map(|output| output.as_mut().map(OrtValue::over_tensor_mut).transpose())
            .collect::<ort::Result<Vec<_>>>();
        let bound = bound.map_err(fail)?;
        let made = self.session.run_bound(&values, &bound).map_err(fail)?;
        let on_host =
            outputs.iter().flatten().any(|output| output.location() == MemoryLocation::Host);
        if on_host {
            self.gpu.synchronise_stream()?;
        }
        let pairs = made.into_iter().zip(outputs);
        pairs
            .map(|(value, output)| match output {
                // The run wrote to the caller's memory.
                Some(output) => Ok(output.freeze()),
                None => value.into_tensor_at(self.session.location()).map_err(fail),
            })
            .collect()
    }
}
