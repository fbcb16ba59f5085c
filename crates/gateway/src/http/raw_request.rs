//! A request without JSON: the body is the data of the task's one input.

use tessera_core::{DType, Error, Result, Tensor};

use crate::protocol::InputHeader;
use crate::service::{InferenceService, TaskInfo};

/// The one input of a task with the body as its data.
///
/// A batch has one row, and so has a first dimension that is open where others are too. One further
/// dimension may be open: it follows from the length. The body of a string input is one string,
/// without a length before it.
pub(super) fn raw_input(
    service: &dyn InferenceService,
    task: &TaskInfo,
    body: Vec<u8>,
) -> Result<(String, Tensor)> {
    let [port] = task.inputs.as_slice() else {
        return Err(Error::invalid(format!(
            "a request without JSON needs a task with one input, \"{}\" has {}",
            task.name,
            task.inputs.len()
        )));
    };
    let dtype = port.tensor_type.dtype;
    let mut sizes: Vec<Option<usize>> = match &port.tensor_type.dims {
        Some(dims) => dims.iter().map(|dim| dim.fixed_size()).collect(),
        None => vec![None],
    };
    let open = sizes.iter().filter(|size| size.is_none()).count();
    if let Some(first) = sizes.first_mut()
        && (task.max_batch_size > 0 || (open > 1 && first.is_none()))
    {
        *first = Some(1);
    }
    let wrong = || {
        Error::invalid(format!(
            "input \"{}\": {} can't be made of a body of {} bytes",
            port.name,
            port.tensor_type,
            body.len()
        ))
    };
    let fixed = sizes.iter().flatten().try_fold(1usize, |all, &size| all.checked_mul(size));
    let open = sizes.iter().filter(|size| size.is_none()).count();
    let elements = match dtype.bits_per_element() {
        Some(bits) => body.len() * 8 / bits,
        None => 1,
    };
    let last = match (open, fixed) {
        (0, _) => 1,
        (1, Some(fixed)) if fixed > 0 => elements / fixed,
        _ => return Err(wrong()),
    };
    let shape: Vec<usize> = sizes.into_iter().map(|size| size.unwrap_or(last)).collect();
    let header = InputHeader { name: port.name.clone(), dtype, shape };
    let tensor = if dtype == DType::String {
        Tensor::from_strings(&header.shape, vec![body])
    } else {
        header.tensor_from_bytes(service, &body)
    };
    Ok((header.name.clone(), tensor.map_err(|error| header.within_input(error))?))
}
