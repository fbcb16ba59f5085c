//! Blocks on a GPU, through ONNX Runtime's CUDA provider.
//!
//! As on the CPU, a block is optimised first, by the provider that will run it, and its weights are then ours: they
//! are copied to the GPU once, and every session of the block reads them there. All sessions put their work into the
//! one stream that the process has on the GPU, and a run returns before the GPU is done; so blocks in a row wait for
//! nothing, and memory passes from one to the next by pointer.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use ort::AsPointer;
use ort::session::Session as OrtSession;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use tessera_core::{DType, Error, Location, Result, Tensor, TensorMut};
use tessera_cuda::{Gpu, SideStream, to_device};

use super::Builders;
use super::allocator::{self, Source};
use super::bound::{BoundSession, Ports};
use super::prepare::Prepared;
use super::recorded::{Recorded, Run};
use super::recorder;
use super::value::{OrtValue, check};
use crate::program::{check_bound, check_run};
use crate::{ConvolutionSearch, CudaOptions, LoadOptions, Session};

/// Where a session has the memory from that it needs for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arena {
    /// An arena of its own.
    Own,
    /// The allocator of all sessions.
    Shared,
}

/// Adds the CUDA provider to a session, on a stream of the GPU, which must stay for as long as the session does.
pub(super) fn provide(
    builder: &mut SessionBuilder,
    gpu: &Gpu,
    stream: *mut c_void,
    options: &CudaOptions,
) -> ort::Result<()> {
    let settings = [
        (c"device_id", gpu.number().to_string()),
        (c"cudnn_conv_algo_search", search(options.convolution).to_owned()),
        (c"use_tf32", u8::from(options.tf32).to_string()),
        (c"do_copy_in_default_stream", "1".to_owned()),
        (c"arena_extend_strategy", "kSameAsRequested".to_owned()),
    ];
    let values = settings.iter().map(|(_, value)| CString::new(value.as_str()));
    let values =
        values.collect::<Result<Vec<_>, _>>().map_err(|_| ort::Error::new("a zero byte"))?;
    let keys: Vec<*const c_char> = settings.iter().map(|(key, _)| key.as_ptr()).collect();
    let values: Vec<*const c_char> = values.iter().map(|value| value.as_ptr()).collect();
    let mut made = ptr::null_mut();
    // SAFETY: the options are written to the pointer, and released below.
    check(unsafe { (ort::api().CreateCUDAProviderOptions)(&raw mut made) })?;
    let mut fill = || {
        // SAFETY: there is a value for each key; both are copied.
        check(unsafe {
            (ort::api().UpdateCUDAProviderOptions)(made, keys.as_ptr(), values.as_ptr(), keys.len())
        })?;
        // SAFETY: the stream stays for as long as the session, as the caller says.
        check(unsafe {
            let key = c"user_compute_stream".as_ptr();
            (ort::api().UpdateCUDAProviderOptionsWithValue)(made, key, stream)
        })?;
        // SAFETY: both are valid; the options are copied.
        check(unsafe {
            (ort::api().SessionOptionsAppendExecutionProvider_CUDA_V2)(builder.ptr_mut(), made)
        })
    };
    let filled = fill();
    // SAFETY: made above, and released once.
    unsafe { (ort::api().ReleaseCUDAProviderOptions)(made) };
    filled
}

fn search(search: ConvolutionSearch) -> &'static str {
    match search {
        ConvolutionSearch::Exhaustive => "EXHAUSTIVE",
        ConvolutionSearch::Heuristic => "HEURISTIC",
        ConvolutionSearch::Default => "DEFAULT",
    }
}

/// A block's optimised form with its weights on a GPU.
pub(super) struct OnGpu {
    prepared: Prepared,
    weights: Vec<(CString, Tensor)>,
}

impl OnGpu {
    /// Copies the weights there.
    pub(super) fn new(gpu: &Arc<Gpu>, prepared: Prepared) -> Result<Self> {
        let weights = prepared.weights().iter().map(|(name, tensor)| {
            let there = to_device(gpu, tensor)?;
            Ok((name.clone(), there))
        });
        let weights = weights.collect::<Result<Vec<_>>>()?;
        // The host's memory is let go of below: all must have been read.
        gpu.synchronise()?;
        prepared.release_pages();
        Ok(Self { prepared, weights })
    }

    /// A session that reads the weights where they are; or, where some of the block's operators run on the CPU, one
    /// that has its own: they might be read by either.
    pub(super) fn session(
        self: &Arc<Self>,
        builder: impl Fn() -> Result<SessionBuilder>,
        label: &str,
    ) -> Result<(OrtSession, Option<Vec<OrtValue>>)> {
        let fail = |error: ort::Error| super::engine_error(label, &error);
        let alone = builder()?
            .with_config_entry("session.disable_cpu_ep_fallback", "1")
            .map_err(|error| fail(error.into()))?;
        match self.prepared.session_over(alone, &self.weights) {
            Ok((session, values)) => Ok((session, Some(values))),
            Err(_) => {
                let copied =
                    self.prepared.session_of_copies(builder()?).map_err(|e| e.told(label))?;
                Ok((copied, None))
            }
        }
    }
}

/// Makes sessions of a block on a GPU.
pub(super) struct GpuSessions {
    pub(super) builders: Builders,
    pub(super) options: LoadOptions,
    pub(super) gpu: Arc<Gpu>,
    pub(super) on_gpu: Arc<OnGpu>,
    pub(super) ports: Arc<Ports>,
    pub(super) arena: Arena,
}

impl GpuSessions {
    /// One that puts its work into this stream.
    fn make(&self, stream: *mut c_void) -> Result<BoundSession> {
        let label = &self.ports.label;
        let fail = |error: ort::Error| super::engine_error(label, &error);
        let builder = || -> Result<SessionBuilder> {
            let mut builder = self.builders.builder(&self.options)?;
            provide(&mut builder, &self.gpu, stream, &self.options.cuda)
                .map_err(|error| super::no_cuda(&error))?;
            let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable);
            let builder = builder.map_err(|error| fail(error.into()))?;
            match self.arena {
                Arena::Shared => builder.with_env_allocators().map_err(|error| fail(error.into())),
                Arena::Own => Ok(builder),
            }
        };
        let kept = Source::Kept(Arc::clone(&self.gpu));
        let (session, values) = allocator::with(kept, || self.on_gpu.session(builder, label))?;
        let weights = values.map(|values| (Arc::clone(&self.on_gpu), values));
        BoundSession::new(session, weights, Arc::clone(&self.ports), self.gpu.number())
    }

    /// One that can be recorded.
    fn make_to_record(&self, stream: &SideStream) -> Result<BoundSession> {
        if let Some(error) = recorder::why_not(&self.on_gpu.prepared.operators()) {
            return Err(error);
        }
        if self.arena == Arena::Own {
            return Err(Error::unsupported("a recording in memory that the session keeps"));
        }
        let made = self.make(stream.pointer())?;
        match made.is_on_gpu() {
            true => Ok(made),
            false => Err(Error::unsupported("a recording of a block that runs on the CPU in part")),
        }
    }
}

/// A loaded block or file on a GPU.
pub(super) struct CudaBlock {
    session: BoundSession,
    gpu: Arc<Gpu>,
    ports: Arc<Ports>,
    /// Makes sessions to record; `None` for a file.
    sessions: Option<Arc<GpuSessions>>,
    recorded: Option<Recorded>,
}

impl CudaBlock {
    pub(super) fn of_block(sessions: GpuSessions) -> Result<Self> {
        let (gpu, ports) = (Arc::clone(&sessions.gpu), Arc::clone(&sessions.ports));
        let session = sessions.make(gpu.stream())?;
        let sessions = Some(Arc::new(sessions));
        Ok(Self { session, gpu, ports, sessions, recorded: None })
    }

    pub(super) fn of_file(session: OrtSession, gpu: Arc<Gpu>, ports: Ports) -> Result<Self> {
        let ports = Arc::new(ports);
        let session = BoundSession::new(session, None, Arc::clone(&ports), gpu.number())?;
        Ok(Self { session, gpu, ports, sessions: None, recorded: None })
    }
}

impl Session for CudaBlock {
    fn computes_in_place(&self) -> bool {
        false
    }

    fn record_runs(&mut self) {
        let may = |sessions: &Arc<GpuSessions>| {
            let is_wanted = sessions.options.cuda.recordings && self.recorded.is_none();
            is_wanted && self.session.is_on_gpu()
        };
        let Some(sessions) = self.sessions.clone().filter(may) else { return };
        let (gpu, ports) = (Arc::clone(&self.gpu), Arc::clone(&self.ports));
        let make = Box::new(move |stream: &SideStream| sessions.make_to_record(stream));
        self.recorded = Some(Recorded::new(gpu, ports, make));
    }

    fn played_runs(&self) -> u64 {
        self.recorded.as_ref().map_or(0, Recorded::played)
    }

    fn run(&mut self, inputs: &[Tensor], outputs: Vec<Option<TensorMut>>) -> Result<Vec<Tensor>> {
        let label = &self.ports.label;
        let counts = (outputs.len(), self.ports.outputs.len());
        check_run(label, &self.ports.inputs, inputs, counts)?;
        check_bound(label, &self.ports.outputs, &outputs)?;
        let fail = |error: ort::Error| super::engine_error(label, &error);
        let given = inputs.iter().map(|input| match input.dtype() {
            DType::String => Ok(input.clone()),
            _ => to_device(&self.gpu, input),
        });
        let given = given.collect::<Result<Vec<_>>>().map_err(|error| error.within(label))?;
        let mut outputs = match &self.recorded {
            Some(recorded) => match recorded.run(&given, outputs)? {
                Run::Played(outputs) => return Ok(outputs),
                Run::Plain(outputs) => outputs,
            },
            None => outputs,
        };
        let values = given.iter().map(OrtValue::over).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(fail)?;
        let bound = outputs
            .iter_mut()
            .map(|output| output.as_mut().map(OrtValue::over_mut).transpose())
            .collect::<ort::Result<Vec<_>>>();
        let bound = bound.map_err(fail)?;
        let made = self.session.run(&values, &bound).map_err(fail)?;
        let on_host = outputs.iter().flatten().any(|output| output.location() == Location::Host);
        if on_host {
            self.gpu.synchronise()?;
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
