//! The commonest errors in Triton's words, for scripts that compare them (`--triton-names`).
//!
//! They are found here, before the service finds them and says what is wrong in its own words.

use tessera_core::{Dim, Error, Result, Tensor};
use tessera_graph::TensorPort;

use super::datatype::datatype_name;
use super::outputs::RequestedOutput;
use crate::service::TaskInfo;

/// Why the batch has to be part of a shape.
const BATCH_NOTE: &str = " NOTE: Setting a non-zero max_batch_size in the model config requires a \
    batch dimension to be prepended to each input shape. If you want to specify the full shape \
    including the batch dim in your input dims config, try setting max_batch_size to zero. See \
    the model configuration docs for more info on max_batch_size.";

/// There is no such task, or it has no such version.
pub(crate) fn unknown_model(name: &str, version: &str) -> Error {
    let version = if version.is_empty() { String::new() } else { format!(" version {version}") };
    Error::not_found(format!("Request for unknown model: '{name}'{version} is not found"))
}

/// A model that is in no repository can't be loaded.
pub(crate) fn missing_model(name: &str) -> Error {
    Error::invalid(format!("failed to load '{name}', failed to poll from model repository"))
}

/// Refuses outputs that the task does not have.
pub(crate) fn check_outputs(task: &TaskInfo, requested: &[RequestedOutput]) -> Result<()> {
    let is_known = |name: &str| task.outputs.iter().any(|port| port.name == name);
    match requested.iter().find(|output| !is_known(&output.name)) {
        None => Ok(()),
        Some(RequestedOutput { name, .. }) => Err(Error::invalid(format!(
            "unexpected inference output '{name}' for model '{}'",
            task.name
        ))),
    }
}

/// Refuses inputs that are not those of the task.
pub(crate) fn check_inputs(task: &TaskInfo, id: &str, inputs: &[(String, Tensor)]) -> Result<()> {
    let model = &task.name;
    let id = if id.is_empty() { "<id_unknown>" } else { id };
    let refuse = |what: String| Err(Error::invalid(format!("[request id: {id}] {what}")));
    let port_of = |name: &str| task.inputs.iter().find(|port| port.name == name);
    if let Some((name, _)) = inputs.iter().find(|(name, _)| port_of(name).is_none()) {
        let message = format!("unexpected inference input '{name}' for model '{model}'");
        return Err(Error::invalid(message));
    }
    let is_given = |port: &&TensorPort| inputs.iter().any(|(name, _)| *name == port.name);
    let is_needed = |port: &&TensorPort| port.default.is_none();
    if task.inputs.iter().filter(is_needed).any(|port| !is_given(&port)) {
        let needed = task.inputs.iter().filter(is_needed).count();
        let expected = if needed == task.inputs.len() {
            format!("expected {needed} inputs")
        } else {
            format!("expected number of inputs between {needed} and {}", task.inputs.len())
        };
        let given = quoted_list(inputs.iter().map(|(name, _)| name.as_str()));
        let missing = task.inputs.iter().filter(is_needed).filter(|port| !is_given(port));
        let missing = quoted_list(missing.map(|port| port.name.as_str()));
        return refuse(format!(
            "{expected} but got {} inputs for model '{model}'. Got input(s) {given}, but missing \
             required input(s) {missing}. Please provide all required input(s).",
            inputs.len()
        ));
    }
    let rows = inputs.first().and_then(|(_, tensor)| tensor.shape().first().copied());
    if task.max_batch_size > 0 && rows.is_some_and(|rows| rows > task.max_batch_size) {
        return refuse(format!(
            "inference request batch-size must be <= {} for '{model}'",
            task.max_batch_size
        ));
    }
    for (name, tensor) in inputs {
        let Some(port) = port_of(name) else { continue };
        let (got, expected) =
            (datatype_name(tensor.dtype())?, datatype_name(port.tensor_type.dtype)?);
        if got != expected {
            return refuse(format!(
                "inference input '{name}' data-type is '{got}', but model '{model}' expects \
                 '{expected}'"
            ));
        }
        let Some(dims) = &port.tensor_type.dims else { continue };
        if !is_shape_of(tensor.shape(), dims) {
            let sizes = dims.iter().enumerate().map(|(index, dim)| match dim.fixed_size() {
                Some(size) if index > 0 || task.max_batch_size == 0 => size.to_string(),
                _ => "-1".to_owned(),
            });
            let expected = sizes.collect::<Vec<_>>().join(",");
            let got: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
            let note = if task.max_batch_size > 0 { BATCH_NOTE } else { "" };
            return refuse(format!(
                "unexpected shape for input '{name}' for model '{model}'. Expected [{expected}], \
                 got [{}].{note}",
                got.join(",")
            ));
        }
    }
    Ok(())
}

fn is_shape_of(shape: &[usize], dims: &[Dim]) -> bool {
    let fits = |(&size, dim): (&usize, &Dim)| dim.fixed_size().is_none_or(|fixed| fixed == size);
    shape.len() == dims.len() && shape.iter().zip(dims).all(fits)
}

fn quoted_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(","))
}
