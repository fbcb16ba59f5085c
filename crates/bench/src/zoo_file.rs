//! Models to measure: files, or architectures of the zoo that are written to one.

use std::path::{Path, PathBuf};

use prost::Message;
use tessera_core::{Error, Result};
use tessera_repository::unfinished_files::write_whole;
use tessera_zoo::{Architecture, BatchSize, Recipe};

/// The file of a model: the one of this name, or an architecture that is written to `folder`.
pub(crate) fn find_or_write(model: &str, batch: BatchSize, folder: &Path) -> Result<PathBuf> {
    let path = PathBuf::from(model);
    if path.is_file() {
        return Ok(path);
    }
    let architecture: Architecture = model.parse().map_err(|error: Error| {
        error.with_context(format!("\"{model}\" is no file, and in the zoo"))
    })?;
    let path = folder.join(format!("{model}.onnx"));
    write_recipe(&Recipe { batch, ..Recipe::new(architecture) }, &path)?;
    Ok(path)
}

/// Makes a model and writes it.
pub(crate) fn write_recipe(recipe: &Recipe, path: &Path) -> Result<()> {
    write_whole(path, &recipe.build_model()?.model.encode_to_vec())
}
