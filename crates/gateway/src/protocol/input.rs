//! An input as a request announces it, and the tensor that is made of its bytes.

use std::collections::HashSet;

use tessera_core::{DType, Error, Result, Tensor, TensorMut, element_count};

use super::datatype::parse_datatype;
use super::strings::decode_strings;
use crate::service::{InferenceService, TaskInfo};

/// Name, dtype and shape of an input, checked.
#[derive(Clone, Debug)]
pub(crate) struct InputHeader {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
}

impl InputHeader {
    /// Checks what a request says of an input.
    pub(crate) fn new(name: String, datatype: &str, shape: &[i64]) -> Result<Self> {
        let blame = |error: Error| error.with_context(format_args!("input \"{name}\""));
        let dtype = parse_datatype(datatype).map_err(blame)?;
        let sizes: Option<Vec<usize>> =
            shape.iter().map(|&size| usize::try_from(size).ok()).collect();
        let Some(sizes) = sizes else {
            return Err(blame(Error::invalid(format!(
                "shape {shape:?} has a negative size, expected 0 or more"
            ))));
        };
        let count = element_count(&sizes).filter(|&count| {
            // The bytes of strings are not known yet.
            dtype == DType::String || dtype.byte_len(count).is_some()
        });
        if count.is_none() {
            return Err(blame(Error::invalid(format!("shape {shape:?} is too large"))));
        }
        Ok(Self { name, dtype, shape: sizes })
    }

    /// Number of elements.
    pub(crate) fn element_count(&self) -> usize {
        element_count(&self.shape).unwrap_or(usize::MAX)
    }

    /// Bytes of the tensor; `None` for strings.
    pub(crate) fn byte_len(&self) -> Option<usize> {
        self.dtype.byte_len(self.element_count())
    }

    /// The error, told as one of this input.
    pub(crate) fn within_input(&self, error: Error) -> Error {
        error.with_context(format_args!("input \"{}\"", self.name))
    }

    /// Refuses a number of bytes that is not that of the shape.
    pub(crate) fn check_bytes(&self, got: usize) -> Result<()> {
        match self.byte_len() {
            Some(needed) if needed != got => Err(Error::invalid(format!(
                "{} needs {needed} bytes, got {got}",
                tessera_core::display_shape(self.dtype, &self.shape)
            ))),
            _ => Ok(()),
        }
    }

    /// Memory for the tensor, to be filled.
    pub(crate) fn allocate_tensor(&self, service: &dyn InferenceService) -> Result<TensorMut> {
        service.allocate_input(self.dtype, &self.shape)
    }

    /// A tensor in the service's memory that `fill` has written.
    pub(crate) fn fill_tensor(
        &self,
        service: &dyn InferenceService,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        let mut tensor = self.allocate_tensor(service)?;
        fill(writable_bytes(&mut tensor)?)?;
        Ok(tensor.freeze())
    }

    /// The tensor with a copy of these bytes, as the protocol sends them.
    pub(crate) fn tensor_from_bytes(
        &self,
        service: &dyn InferenceService,
        bytes: &[u8],
    ) -> Result<Tensor> {
        if self.dtype == DType::String {
            return Tensor::from_strings(&self.shape, decode_strings(bytes, self.element_count())?);
        }
        self.check_bytes(bytes.len())?;
        self.fill_tensor(service, |target| {
            target.copy_from_slice(bytes);
            Ok(())
        })
    }
}

/// The bytes of a tensor that the service gave us to write.
pub(crate) fn writable_bytes(tensor: &mut TensorMut) -> Result<&mut [u8]> {
    tensor.bytes_mut().ok_or_else(|| Error::engine("memory for inputs is not writable"))
}

/// The inputs as the task has them. Its configuration gives a dimension of one to what has none, so
/// that a client may send it.
pub(crate) fn reshape_inputs(
    task: &TaskInfo,
    mut inputs: Vec<(String, Tensor)>,
) -> Result<Vec<(String, Tensor)>> {
    for (name, tensor) in &mut inputs {
        let port = task.inputs.iter().find(|port| port.name == *name);
        let rank = port.and_then(|port| Some(port.tensor_type.dims.as_ref()?.len()));
        let is_single = rank == Some(usize::from(task.max_batch_size > 0));
        if let (true, Some((1, shape))) = (is_single, tensor.shape().split_last())
            && Some(shape.len()) == rank
        {
            *tensor = tensor.reshaped(shape)?;
        }
    }
    Ok(inputs)
}

/// Refuses a name that two inputs have.
pub(crate) fn check_unique_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(format!("input \"{name}\" is there twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(datatype: &str, shape: &[i64]) -> String {
        InputHeader::new("x".into(), datatype, shape).unwrap_err().to_string()
    }

    #[test]
    fn shapes_and_datatypes_are_checked_and_the_input_named() {
        assert!(refusal("FP32", &[1, -1]).starts_with("input \"x\": shape [1, -1] has a negative"));
        assert!(refusal("FP32", &[i64::MAX, 2]).ends_with("is too large"));
        assert!(refusal("FP64", &[1 << 60, 2]).ends_with("is too large"));
        assert!(refusal("FLOAT", &[1]).starts_with("input \"x\": unknown datatype \"FLOAT\""));
        assert_eq!(InputHeader::new("x".into(), "FP32", &[]).unwrap().byte_len(), Some(4));
        assert_eq!(InputHeader::new("x".into(), "BYTES", &[3]).unwrap().byte_len(), None);
    }

    #[test]
    fn wrong_byte_counts_are_refused_with_both() {
        let header = InputHeader::new("x".into(), "INT32", &[2, 3]).unwrap();
        let error = header.check_bytes(20).unwrap_err().to_string();
        assert_eq!(error, "i32[2,3] needs 24 bytes, got 20");
        header.check_bytes(24).unwrap();
    }

    #[test]
    fn a_name_may_be_there_once() {
        check_unique_names(["a", "b"]).unwrap();
        assert!(check_unique_names(["a", "b", "a"]).unwrap_err().to_string().contains("\"a\""));
    }
}
