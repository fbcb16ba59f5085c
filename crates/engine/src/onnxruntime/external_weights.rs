//! The files of an optimised model, and its weights in them.

use bytes::Bytes;
use tessera_core::{Error, Result};
use tessera_graph::onnx::{TensorProto, tensor_proto};

/// Name of the file of the optimised model.
pub(super) const MODEL_FILE: &str = "block.onnx";
/// Name of the file that the optimised model keeps its weights in.
pub(super) const WEIGHTS_FILE: &str = "weights";

/// Whether a weight is in the file of weights.
pub(super) fn is_external(tensor: &TensorProto) -> bool {
    tensor.data_location() == tensor_proto::DataLocation::External
}

/// The elements of a weight that ONNX Runtime wrote to `file`.
pub(super) fn weight_content(tensor: &TensorProto, file: &Bytes) -> Result<Bytes> {
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key() == key);
    let number = |key: &str| entry(key).and_then(|entry| entry.value().parse::<usize>().ok());
    let offset = number("offset").unwrap_or(0);
    let end = number("length").and_then(|length| offset.checked_add(length));
    match end.filter(|&end| end <= file.len()) {
        Some(end) => Ok(file.slice(offset..end)),
        None => Err(Error::engine(format!(
            "optimised weight \"{}\" lies past the end of its file",
            tensor.name()
        ))),
    }
}
