//! A session on a GPU, run on memory that is there.

use std::ffi::{CString, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use ort::AsPointer;
use ort::session::Session as OrtSession;
use tessera_core::{DType, MemoryLocation, Result};

use super::capture_lock::lock_device_for_setup;
use super::prepared_on_gpu::GpuPreparedBlock;
use super::run_waits::RunWaits;
use crate::onnxruntime::ort_value::{MemoryInfo, OrtValue, check_status};
use crate::onnxruntime::session_run_options::SessionRunOptions;

/// What a block takes and gives.
pub(super) struct SessionPorts {
    pub(super) label: String,
    pub(super) inputs: Vec<(String, DType)>,
    pub(super) outputs: Vec<(String, DType)>,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
}

impl SessionPorts {
    pub(super) fn new(
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
    ) -> Result<Self> {
        let names =
            |ports: &[(String, DType)]| crate::onnxruntime::cpu_session::port_names(&label, ports);
        let (input_names, output_names) = (names(&inputs)?, names(&outputs)?);
        Ok(Self { label, inputs, outputs, input_names, output_names })
    }
}

/// A session whose runs return when they are launched.
pub(super) struct BoundSession {
    /// Dropped first: it refers to the weights below.
    session: ManuallyDrop<OrtSession>,
    /// Where all of it runs on the GPU, they are ours.
    weights: Option<SessionWeights>,
    ports: Arc<SessionPorts>,
    gpu: u32,
    options: SessionRunOptions,
}

/// Weights that a session uses and that are ours.
pub(super) struct SessionWeights {
    /// What has them, and the session's values of them: both stay for as long as it does.
    pub(super) _kept: (Arc<GpuPreparedBlock>, Vec<OrtValue>),
    /// How runs wait for them.
    pub(super) waits: Option<RunWaits>,
}

impl BoundSession {
    pub(super) fn new(
        session: OrtSession,
        weights: Option<SessionWeights>,
        ports: Arc<SessionPorts>,
        gpu: u32,
    ) -> Result<Self> {
        let options = SessionRunOptions::without_waiting();
        let options = options.map_err(|error| {
            crate::onnxruntime::session_builder::engine_error(&ports.label, &error)
        })?;
        Ok(Self { session: ManuallyDrop::new(session), weights, ports, gpu, options })
    }

    /// Whether all of it runs on the GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.weights.is_some()
    }

    /// Where it computes.
    pub(super) fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(self.gpu)
    }

    /// Runs it; an output that is bound to nothing is allocated.
    pub(super) fn run_bound(
        &mut self,
        inputs: &[OrtValue],
        bound: &[Option<OrtValue>],
    ) -> ort::Result<Vec<OrtValue>> {
        let binding = IoBinding::new(&self.session)?;
        for (name, value) in self.ports.input_names.iter().zip(inputs) {
            // SAFETY: name and value live until the run is over.
            check_status(unsafe {
                (ort::api().BindInput)(binding.0, name.as_ptr(), value.as_ptr())
            })?;
        }
        let (here, host) = (MemoryInfo::on_gpu(self.gpu)?, MemoryInfo::on_host()?);
        let outputs = self.ports.output_names.iter().zip(&self.ports.outputs);
        for ((name, (_, dtype)), value) in outputs.zip(bound) {
            let name = name.as_ptr();
            // Strings are nowhere but on the host.
            let place = if *dtype == DType::String { &host } else { &here };
            // SAFETY: name, value and description live until the run is over.
            check_status(unsafe {
                match value {
                    Some(value) => (ort::api().BindOutput)(binding.0, name, value.as_ptr()),
                    None => (ort::api().BindOutputToDevice)(binding.0, name, place.as_ptr()),
                }
            })?;
        }
        let waits = self.weights.as_ref().and_then(|weights| weights.waits.as_ref());
        waits.map_or(Ok(()), RunWaits::begin_run).map_err(ort::Error::wrap)?;
        // SAFETY: session, options and binding are valid, and nobody else runs this session.
        check_status(unsafe {
            let session = self.session.ptr().cast_mut();
            (ort::api().RunWithBinding)(session, self.options.as_ptr(), binding.0)
        })?;
        if let Some(waits) = waits {
            waits.end_run();
        }
        binding.bound_outputs()
    }
}

impl Drop for BoundSession {
    fn drop(&mut self) {
        let _setup = lock_device_for_setup();
        // SAFETY: dropped once, and not used from here on.
        unsafe { ManuallyDrop::drop(&mut self.session) };
    }
}

/// What a run takes and gives.
struct IoBinding(*mut ort_sys::OrtIoBinding);

impl IoBinding {
    fn new(session: &OrtSession) -> ort::Result<Self> {
        let mut made = ptr::null_mut();
        // SAFETY: the session is valid; what was made is released below.
        check_status(unsafe {
            (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &raw mut made)
        })?;
        Ok(Self(made))
    }

    /// The outputs, in the order in which they were bound.
    fn bound_outputs(&self) -> ort::Result<Vec<OrtValue>> {
        let mut allocator = ptr::null_mut();
        // SAFETY: the default allocator is never released.
        check_status(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&raw mut allocator) })?;
        let (mut values, mut count) = (ptr::null_mut(), 0);
        // SAFETY: both are written; the list is freed below, its values are ours.
        check_status(unsafe {
            (ort::api().GetBoundOutputValues)(self.0, allocator, &raw mut values, &raw mut count)
        })?;
        let mut found = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: the list has so many values, each of which is released by its owner here.
            found.extend(unsafe { OrtValue::from_raw(*values.add(at)) });
        }
        if !values.is_null() {
            // SAFETY: the list was made by this allocator, and is freed once.
            check_status(unsafe {
                (ort::api().AllocatorFree)(allocator, values.cast::<c_void>())
            })?;
        }
        Ok(found)
    }
}

impl Drop for IoBinding {
    fn drop(&mut self) {
        // SAFETY: made by `CreateIoBinding`, and released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.0) };
    }
}
