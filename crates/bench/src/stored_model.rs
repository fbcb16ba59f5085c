//! Small models that are made in code and stored for a benchmark.

use std::collections::BTreeMap;

use prost::Message;
use tessera_core::Result;
use tessera_graph::onnx::ModelProto;
use tessera_graph::{NoExternalData, Partition, Split, infer, read_model, split_into_chain};
use tessera_repository::Repository;

/// Cuts a model and puts it into a repository under a name.
pub(crate) fn store_model(
    repository: &Repository,
    name: &str,
    model: &ModelProto,
    split: &Split,
) -> Result<Partition> {
    let graph = read_model(model.encode_to_vec().into(), &mut NoExternalData)?;
    let types = infer::infer_types(&graph, &BTreeMap::new())?;
    let partition = split_into_chain(&graph, &types, split, &[])?;
    repository.put_model(name, &partition)?;
    Ok(partition)
}
