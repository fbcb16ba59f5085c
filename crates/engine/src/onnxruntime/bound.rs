//! A session on a GPU, run on memory that is there.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use ort::AsPointer;
use ort::session::Session as OrtSession;
use tessera_core::{DType, Location, Result};

use super::cuda::OnGpu;
use super::run_options::RunOptions;
use super::value::{MemoryInfo, OrtValue, check};

/// What a block takes and gives.
pub(super) struct Ports {
    pub(super) label: String,
    pub(super) inputs: Vec<(String, DType)>,
    pub(super) outputs: Vec<(String, DType)>,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
}

impl Ports {
    pub(super) fn new(
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
    ) -> Result<Self> {
        let names = |ports: &[(String, DType)]| super::session::names(&label, ports);
        let (input_names, output_names) = (names(&inputs)?, names(&outputs)?);
        Ok(Self { label, inputs, outputs, input_names, output_names })
    }
}

/// A session whose runs return when the GPU was told what to do.
pub(super) struct BoundSession {
    // Dropped first: the session refers to the weights below.
    session: OrtSession,
    /// Where all of it runs on the GPU, they are ours.
    weights: Option<(Arc<OnGpu>, Vec<OrtValue>)>,
    ports: Arc<Ports>,
    gpu: u32,
    options: RunOptions,
}

impl BoundSession {
    pub(super) fn new(
        session: OrtSession,
        weights: Option<(Arc<OnGpu>, Vec<OrtValue>)>,
        ports: Arc<Ports>,
        gpu: u32,
    ) -> Result<Self> {
        let options = RunOptions::without_waiting();
        let options = options.map_err(|error| super::engine_error(&ports.label, &error))?;
        Ok(Self { session, weights, ports, gpu, options })
    }

    /// Whether all of it runs on the GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.weights.is_some()
    }

    /// Where it computes.
    pub(super) fn location(&self) -> Location {
        Location::Cuda(self.gpu)
    }

    /// Runs it; an output that is bound to nothing is allocated.
    pub(super) fn run(
        &mut self,
        inputs: &[OrtValue],
        bound: &[Option<OrtValue>],
    ) -> ort::Result<Vec<OrtValue>> {
        let binding = Binding::new(&self.session)?;
        for (name, value) in self.ports.input_names.iter().zip(inputs) {
            // SAFETY: name and value live until the run is over.
            check(unsafe { (ort::api().BindInput)(binding.0, name.as_ptr(), value.as_ptr()) })?;
        }
        let (here, host) = (MemoryInfo::cuda(self.gpu)?, MemoryInfo::host()?);
        let outputs = self.ports.output_names.iter().zip(&self.ports.outputs);
        for ((name, (_, dtype)), value) in outputs.zip(bound) {
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
