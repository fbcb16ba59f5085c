//! Which outputs a client wants, and in which form.

use bytes::Bytes;
use tessera_core::{Error, MemoryLocation, Result, Tensor};

use super::classification::classify_rows;
use super::device_outputs::copy_to_host;
use super::parameters::ProtocolParameters;
use super::region_range::RegionRange;
use super::strings::encode_strings;
use crate::regions::OutputPlace;
use crate::service::TaskInfo;

/// An output that a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct RequestedOutput {
    pub(crate) name: String,
    /// Whether it comes as bytes after the JSON; `None` where the output does not say.
    pub(crate) binary: Option<bool>,
    /// How many classes are wanted in its place; 0 for the output itself.
    classes: usize,
    /// Where in shared memory it goes.
    pub(crate) region_range: Option<RegionRange>,
    /// The same once the region was found.
    pub(crate) place: Option<OutputPlace>,
}

/// An output on its way to the client.
#[derive(Debug)]
pub(crate) struct SelectedOutput {
    pub(crate) requested: RequestedOutput,
    pub(crate) tensor: Tensor,
}

impl RequestedOutput {
    /// Reads what a request says of an output.
    pub(crate) fn new(name: String, parameters: &ProtocolParameters) -> Result<Self> {
        let read = || {
            let binary = parameters.get_flag("binary_data")?;
            let classes = parameters.get_size("classification")?.unwrap_or(0);
            let region_range = parameters.region_range()?;
            if classes > 0 && region_range.is_some() {
                return Err(Error::invalid(
                    "classification can't be written to shared memory, ask for one of the two",
                ));
            }
            Ok((binary, usize::try_from(classes).unwrap_or(usize::MAX), region_range))
        };
        let (binary, classes, region_range) =
            read().map_err(|error| error.with_context(format_args!("output \"{name}\"")))?;
        Ok(Self { name, binary, classes, region_range, place: None })
    }

    fn by_name(name: String) -> Self {
        Self { name, binary: None, classes: 0, region_range: None, place: None }
    }
}

/// Bytes of the outputs of which classes are wanted: all their values are looked at.
pub(crate) fn bytes_to_classify(
    outputs: &[(String, Tensor)],
    requested: &[RequestedOutput],
) -> usize {
    let is_classified =
        |name: &String| requested.iter().any(|one| one.classes > 0 && one.name == *name);
    let classified = outputs.iter().filter(|(name, _)| is_classified(name));
    classified.map(|(_, tensor)| tensor.byte_len()).sum()
}

/// Refuses outputs that the task does not have and those that are asked for twice.
pub(crate) fn check_requested(requested: &[RequestedOutput], task: &TaskInfo) -> Result<()> {
    for (index, output) in requested.iter().enumerate() {
        let name = &output.name;
        if !task.outputs.iter().any(|port| &port.name == name) {
            let names: Vec<String> =
                task.outputs.iter().map(|port| format!("\"{}\"", port.name)).collect();
            return Err(Error::invalid(format!(
                "task \"{}\" has no output \"{name}\", it has {}",
                task.name,
                names.join(", ")
            )));
        }
        if requested[..index].iter().any(|earlier| &earlier.name == name) {
            return Err(Error::invalid(format!("output \"{name}\" is asked for twice")));
        }
    }
    Ok(())
}

/// The outputs that were asked for, in that order; all of them where none was named.
pub(crate) fn select_outputs(
    outputs: Vec<(String, Tensor)>,
    requested: Vec<RequestedOutput>,
    task: &TaskInfo,
) -> Result<Vec<SelectedOutput>> {
    if requested.is_empty() {
        return outputs
            .into_iter()
            .map(|(name, tensor)| {
                Ok(SelectedOutput {
                    requested: RequestedOutput::by_name(name),
                    tensor: tensor_on_host(&tensor)?,
                })
            })
            .collect();
    }
    requested
        .into_iter()
        .map(|requested| {
            let found = outputs.iter().find(|(name, _)| *name == requested.name);
            let (_, tensor) = found.ok_or_else(|| {
                Error::engine(format!("the answer has no output \"{}\"", requested.name))
            })?;
            let mut tensor = match requested.region_range {
                // Written from where it is.
                Some(_) => tensor.clone().wait_fence_on_host()?,
                None => tensor_on_host(tensor)?,
            };
            if requested.classes > 0 {
                let labels = task.description.labels.get(&requested.name);
                let labels = labels.map(|known| known.labels.as_slice()).unwrap_or_default();
                tensor = classify_rows(&tensor, requested.classes, task.max_batch_size > 0, labels)
                    .map_err(|error| {
                        error.with_context(format_args!("output \"{}\"", requested.name))
                    })?;
            }
            Ok(SelectedOutput { requested, tensor })
        })
        .collect()
}

/// The tensor where the CPU reads it, and written.
pub(crate) fn tensor_on_host(tensor: &Tensor) -> Result<Tensor> {
    match tensor.location() {
        MemoryLocation::Host => tensor.clone().wait_fence_on_host(),
        _ => copy_to_host(tensor),
    }
}

/// The bytes of a tensor, shared with it where they are as the protocol wants them.
pub(crate) fn raw_bytes(tensor: &Tensor) -> Result<Bytes> {
    if let Some(strings) = tensor.strings() {
        return encode_strings(strings);
    }
    if tensor.bytes().is_none() {
        return Err(Error::engine(format!("{tensor:?} is not in memory that the CPU reads")));
    }
    Ok(Bytes::from_owner(TensorBytes(tensor.clone())))
}

/// A tensor that lends its bytes for as long as they are on their way to the client.
struct TensorBytes(Tensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_bytes_share_the_memory_of_the_tensor() {
        let tensor = Tensor::from_i64(&[2], &[1, -1]).unwrap();
        let bytes = raw_bytes(&tensor).unwrap();
        assert_eq!(bytes.as_ptr().addr(), tensor.address().unwrap());
        assert_eq!(bytes[..8], 1i64.to_le_bytes());
    }
}
