//! Tensor data that lies in files beside the model.

use bytes::Bytes;
use tessera_core::{Error, Result};

use super::{GraphProto, NodeProto, TensorProto, tensor_proto};

/// Opens the files that a model keeps its tensors in.
pub trait ExternalData {
    /// The bytes of the file at `location`, a relative path without `..`.
    fn open_file(&mut self, location: &str) -> Result<Bytes>;
}

/// For models without files beside them.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn open_file(&mut self, location: &str) -> Result<Bytes> {
        Err(Error::not_found(format!("external data \"{location}\": no folder to look in")))
    }
}

/// Replaces every reference to an external file in `graph` by the bytes it refers to.
pub(crate) fn resolve_graph(graph: &mut GraphProto, files: &mut dyn ExternalData) -> Result<()> {
    for tensor in &mut graph.initializer {
        resolve_tensor(tensor, files)?;
    }
    for sparse in &mut graph.sparse_initializer {
        for tensor in sparse.values.iter_mut().chain(&mut sparse.indices) {
            resolve_tensor(tensor, files)?;
        }
    }
    resolve_nodes(&mut graph.node, files)
}

/// The same for the attributes of `nodes`.
pub(crate) fn resolve_nodes(nodes: &mut [NodeProto], files: &mut dyn ExternalData) -> Result<()> {
    for attribute in nodes.iter_mut().flat_map(|node| &mut node.attribute) {
        for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
            resolve_tensor(tensor, files)?;
        }
        for sparse in attribute.sparse_tensor.iter_mut().chain(&mut attribute.sparse_tensors) {
            for tensor in sparse.values.iter_mut().chain(&mut sparse.indices) {
                resolve_tensor(tensor, files)?;
            }
        }
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            resolve_graph(graph, files)?;
        }
    }
    Ok(())
}

fn resolve_tensor(tensor: &mut TensorProto, files: &mut dyn ExternalData) -> Result<()> {
    if tensor.data_location() != tensor_proto::DataLocation::External {
        return Ok(());
    }
    let bytes = read_slice(tensor, files)
        .map_err(|e| e.with_context(format!("tensor \"{}\"", tensor.name())))?;
    tensor.raw_data = Some(bytes);
    tensor.data_location = None;
    tensor.external_data.clear();
    Ok(())
}

fn read_slice(tensor: &TensorProto, files: &mut dyn ExternalData) -> Result<Bytes> {
    let entry = |key: &str| tensor.external_data.iter().find(|e| e.key() == key).map(|e| e.value());
    let number = |key: &str| {
        entry(key)
            .map(|text| {
                text.trim().parse::<usize>().map_err(|_| {
                    Error::invalid(format!("external data has {key} \"{text}\", expected a number"))
                })
            })
            .transpose()
    };
    let location = entry("location")
        .ok_or_else(|| Error::invalid("external data without a location, expected a file name"))?;
    check_location(location)?;
    let file = files.open_file(location)?;
    let offset = number("offset")?.unwrap_or(0);
    let length = match number("length")? {
        Some(length) => length,
        None => super::tensors::expected_bytes(tensor)?,
    };
    let end = offset.checked_add(length).filter(|&end| end <= file.len()).ok_or_else(|| {
        Error::invalid(format!(
            "external data file \"{location}\" has {} bytes, expected {length} from offset {offset}",
            file.len()
        ))
    })?;
    Ok(file.slice(offset..end))
}

/// A model may only name files in its own folder or below.
fn check_location(location: &str) -> Result<()> {
    use std::path::{Component, Path};
    let inside = !location.is_empty()
        && !location.contains('\0')
        && Path::new(location)
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if inside {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "external data \"{location}\" points outside the model's folder, expected a file inside"
    )))
}
