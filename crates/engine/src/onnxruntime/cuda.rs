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
use ort::session::builder::SessionBuilder;
use tessera_core::{DType, Location, Result, Tensor, TensorMut};
use tessera_cuda::{Gpu, to_device};

use super::prepare::Prepared;
use super::run_options::RunOptions;
use super::value::{MemoryInfo, OrtValue, check};
use crate::program::{check_bound, check_run};
use crate::{ConvolutionSearch, CudaOptions, Session};

/// Adds the CUDA provider to a session, on the process' stream.
pub(super) fn provide(
    builder: &mut SessionBuilder,
    gpu: &Gpu,
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
        // SAFETY: the stream stays until the process ends.
        check(unsafe {
            let key = c"user_compute_stream".as_ptr();
            (ort::api().UpdateCUDAProviderOptionsWithValue)(made, key, gpu.stream())
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

/// A loaded block or file on a GPU.
pub(super) struct CudaBlock {
    // Dropped first: the session refers to the weights below.
    session: OrtSession,
    _weights: Option<(Arc<OnGpu>, Vec<OrtValue>)>,
    gpu: Arc<Gpu>,
    label: String,
    inputs: Vec<(String, DType)>,
    outputs: Vec<(String, DType)>,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    options: RunOptions,
}

impl CudaBlock {
    pub(super) fn new(
        session: OrtSession,
        weights: Option<(Arc<OnGpu>, Vec<OrtValue>)>,
        gpu: Arc<Gpu>,
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
    ) -> Result<Self> {
        let names = |ports: &[(String, DType)]| super::session::names(&label, ports);
        let (input_names, output_names) = (names(&inputs)?, names(&outputs)?);
        let options =
            RunOptions::without_waiting().map_err(|error| super::engine_error(&label, &error))?;
        Ok(Self {
            session,
            _weights: weights,
            gpu,
            label,
            inputs,
            outputs,
            input_names,
            output_names,
            options,
        })
    }

    fn run_values(
        &mut self,
        inputs: &[OrtValue],
        bound: &[Option<OrtValue>],
    ) -> ort::Result<Vec<OrtValue>> {
        let binding = Binding::new(&self.session)?;
        for (name, value) in self.input_names.iter().zip(inputs) {
            // SAFETY: name and value live until the run is over.
            check(unsafe { (ort::api().BindInput)(binding.0, name.as_ptr(), value.as_ptr()) })?;
        }
        let (here, host) = (MemoryInfo::cuda(self.gpu.number())?, MemoryInfo::host()?);
        for ((name, (_, dtype)), value) in self.output_names.iter().zip(&self.outputs).zip(bound) {
            let name = name.as_ptr();
            // Strings are nowhere but on the host.
            let place = if *dtype == DType::String { &host } else { &here };
            // SAFETY: name, value and description live until the run is over.
            check(unsafe {
                match value {
                    Some(value) => (ort::api().BindOutput)(binding.0, name, value.as_ptr()),
                    None => (ort::api().BindOutputToDevice)(binding.0, name, place.as_ptr()),
                }
            })?;
        }
        // SAFETY: session, options and binding are valid, and nobody else runs this session.
        check(unsafe {
            let session = self.session.ptr().cast_mut();
            (ort::api().RunWithBinding)(session, self.options.as_ptr(), binding.0)
        })?;
        binding.outputs()
    }
}

impl Session for CudaBlock {
    fn computes_in_place(&self) -> bool {
        false
    }

    fn run(
        &mut self,
        inputs: &[Tensor],
        mut outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        check_run(&self.label, &self.inputs, inputs, (outputs.len(), self.outputs.len()))?;
        check_bound(&self.label, &self.outputs, &outputs)?;
        let label = self.label.clone();
        let fail = |error: ort::Error| super::engine_error(&label, &error);
        let given = inputs.iter().map(|input| match input.dtype() {
            DType::String => Ok(input.clone()),
            _ => to_device(&self.gpu, input),
        });
        let given = given.collect::<Result<Vec<_>>>().map_err(|error| error.within(&label))?;
        let values = given.iter().map(OrtValue::over).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(&fail)?;
        let bound = outputs
            .iter_mut()
            .map(|output| output.as_mut().map(OrtValue::over_mut).transpose())
            .collect::<ort::Result<Vec<_>>>();
        let bound = bound.map_err(&fail)?;
        let made = self.run_values(&values, &bound).map_err(&fail)?;
        let on_host = outputs.iter().flatten().any(|output| output.location() == Location::Host);
        if on_host {
            self.gpu.synchronise()?;
        }
        let pairs = made.into_iter().zip(outputs);
        pairs
            .map(|(value, output)| match output {
                // The run wrote to the caller's memory.
                Some(output) => Ok(output.freeze()),
                None => value.into_tensor_at(Location::Cuda(self.gpu.number())).map_err(&fail),
            })
            .collect()
    }
}

/// What a run takes and gives.
struct Binding(*mut ort_sys::OrtIoBinding);

impl Binding {
    fn new(session: &OrtSession) -> ort::Result<Self> {
        let mut made = ptr::null_mut();
        // SAFETY: the session is valid; what was made is released below.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &raw mut made) })?;
        Ok(Self(made))
    }

    /// The outputs, in the order in which they were bound.
    fn outputs(&self) -> ort::Result<Vec<OrtValue>> {
        let mut allocator = ptr::null_mut();
        // SAFETY: the default allocator is never released.
        check(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&raw mut allocator) })?;
        let (mut values, mut count) = (ptr::null_mut(), 0);
        // SAFETY: both are written; the list is freed below, its values are ours.
        check(unsafe {
            (ort::api().GetBoundOutputValues)(self.0, allocator, &raw mut values, &raw mut count)
        })?;
        let mut found = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: the list has so many values, each of which is released by its owner here.
            found.extend(unsafe { OrtValue::from_raw(*values.add(at)) });
        }
        if !values.is_null() {
            // SAFETY: the list was made by this allocator, and is freed once.
            check(unsafe { (ort::api().AllocatorFree)(allocator, values.cast::<c_void>()) })?;
        }
        Ok(found)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made by `CreateIoBinding`, and released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.0) };
    }
}
