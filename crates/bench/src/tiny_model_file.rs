//! Models of a few nodes as files, for servers under test.

use std::path::Path;

use prost::Message;
use tessera_core::Result;
use tessera_repository::unfinished_files::write_whole;
use tessera_zoo::TinyModel;

/// Writes a model to a folder; the path of its file.
pub(crate) fn write_tiny_model(model: TinyModel, folder: &Path) -> Result<String> {
    let path = folder.join(format!("{}.onnx", model.task_name()));
    write_whole(&path, &model.build_model().encode_to_vec())?;
    Ok(path.display().to_string())
}
