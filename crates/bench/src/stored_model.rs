//! Small models that are made in code and stored for a benchmark.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;
use tessera_core::Result;
use tessera_graph::onnx::ModelProto;
use tessera_graph::{NoExternalData, Partition, Split, infer, read_model, split_into_chain};
use tessera_repository::{ModelFile, Repository};

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

/// Cuts the model of a file into so many blocks, and puts it into the repository of this folder.
pub(crate) fn store_split(file: &Path, name: &str, blocks: usize, folder: &Path) -> Result<()> {
    let model = ModelFile::read_file(file, &BTreeMap::new(), &[])?;
    let partition = model.split_into_blocks(Some(&Split::Blocks(blocks)))?;
    Repository::open_or_create(folder)?.put_model(name, &partition)?;
    Ok(())
}
