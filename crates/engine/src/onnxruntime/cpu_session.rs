//! Running a session on memory that the caller owns.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

use ort::AsPointer;
use ort::session::Session as OrtSession;
use tessera_core::{DType, Error, Result, Tensor, TensorMut};

use super::ort_value::{OrtValue, check_status};
use super::prepared_block::PreparedBlock;
use super::session_builder::engine_error;
use super::session_run_options::SessionRunOptions;
use crate::program::{check_bound_outputs, check_run_arguments};
use crate::{EngineSession, RunTerminator};

/// A session that several may run at the same time.
pub(super) struct SharedSession {
    // Dropped first: the session refers to the weights below.
    session: OrtSession,
    weights: Option<(Arc<PreparedBlock>, Vec<OrtValue>)>,
}

impl SharedSession {
    /// A session over weights that are ours.
    pub(super) fn of_block(
        session: OrtSession,
        prepared: Arc<PreparedBlock>,
        weights: Vec<OrtValue>,
    ) -> Self {
        Self { session, weights: Some((prepared, weights)) }
    }

    /// Fails where its weights are not what they were.
    pub(super) fn check_intact(&self) -> Result<()> {
        self.weights.as_ref().map_or(Ok(()), |(prepared, _)| prepared.check_intact())
    }

    /// A session that has its weights from a file.
    pub(super) fn of_file(session: OrtSession) -> Self {
        Self { session, weights: None }
    }
}

/// A loaded block or file.
pub(super) struct OrtCpuSession {
    session: Arc<SharedSession>,
    label: String,
    inputs: Vec<(String, DType)>,
    outputs: Vec<(String, DType)>,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    options: Arc<SessionRunOptions>,
}

impl OrtCpuSession {
    pub(super) fn new(
        session: Arc<SharedSession>,
        label: String,
        inputs: Vec<(String, DType)>,
        outputs: Vec<(String, DType)>,
    ) -> Result<Self> {
        let (input_names, output_names) =
            (port_names(&label, &inputs)?, port_names(&label, &outputs)?);
        let options = SessionRunOptions::new();
        let options = options.map_err(|error| engine_error(&label, &error)).map(Arc::new)?;
        Ok(Self { session, label, inputs, outputs, input_names, output_names, options })
    }

    /// The same with other options for its runs.
    pub(super) fn with_options(mut self, options: SessionRunOptions) -> Self {
        self.options = Arc::new(options);
        self
    }

    fn run_values(
        &mut self,
        inputs: &[OrtValue],
        bound: &[Option<OrtValue>],
    ) -> ort::Result<Vec<*mut ort_sys::OrtValue>> {
        let input_names: Vec<_> = self.input_names.iter().map(|name| name.as_ptr()).collect();
        let output_names: Vec<_> = self.output_names.iter().map(|name| name.as_ptr()).collect();
        let inputs: Vec<_> = inputs.iter().map(|value| value.as_ptr().cast_const()).collect();
        let mut outputs: Vec<_> = bound
            .iter()
            .map(|value| value.as_ref().map_or(ptr::null_mut(), OrtValue::as_ptr))
            .collect();
        self.options.begin_run()?;
        // SAFETY: names, values and options live until the call returns and there is one value per
        // name. Runs of one session at the same time are something that ONNX Runtime promises to
        // take.
        check_status(unsafe {
            (ort::api().Run)(
                self.session.session.ptr().cast_mut(),
                self.options.as_ptr(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                outputs.len(),
                outputs.as_mut_ptr(),
            )
        })?;
        Ok(outputs)
    }
}

/// Names as the library takes them.
pub(super) fn port_names(label: &str, ports: &[(String, DType)]) -> Result<Vec<CString>> {
    let names = ports.iter().map(|(name, _)| CString::new(name.as_str()));
    names
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Error::invalid(format!("{label}: a name with a zero byte in it")))
}

impl EngineSession for OrtCpuSession {
    fn computes_in_place(&self) -> bool {
        true
    }

    fn run_terminator(&self) -> Option<Arc<dyn RunTerminator>> {
        Some(Arc::<SessionRunOptions>::clone(&self.options))
    }

    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        mut outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        check_run_arguments(
            &self.label,
            &self.inputs,
            inputs,
            (outputs.len(), self.outputs.len()),
        )?;
        check_bound_outputs(&self.label, &self.outputs, &outputs)?;
        let label = self.label.clone();
        let fail = |error: ort::Error| engine_error(&label, &error);
        let values = inputs.iter().map(OrtValue::over_tensor).collect::<ort::Result<Vec<_>>>();
        let values = values.map_err(&fail)?;
        let bound = outputs
            .iter_mut()
            .map(|output| output.as_mut().map(OrtValue::over_tensor_mut).transpose())
            .collect::<ort::Result<Vec<_>>>();
        let bound = bound.map_err(&fail)?;
        let pointers = self.run_values(&values, &bound);
        self.session.check_intact().map_err(|error| error.with_context(&label))?;
        let pointers = pointers.map_err(&fail)?;
        pointers
            .into_iter()
            .zip(bound)
            .zip(outputs)
            .map(|((pointer, bound), output)| match (bound, output) {
                // The run wrote to the caller's memory.
                (Some(_), Some(output)) => Ok(output.freeze()),
                _ => {
                    // SAFETY: the run allocated this value for us and keeps no hold on it.
                    let value = unsafe { OrtValue::from_raw(pointer) };
                    let value = value.ok_or_else(|| {
                        Error::engine(format!("{label}: ONNX Runtime returned no output"))
                    })?;
                    value.into_tensor().map_err(&fail)
                }
            })
            .collect()
    }
}
