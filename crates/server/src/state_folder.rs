//! Where a server keeps what is its own, in the repository that it serves from.

use std::path::{Path, PathBuf};

use tessera_core::{Error, Result};

/// The folder, whether or not it is there.
pub(crate) fn state_folder(repository: &Path) -> PathBuf {
    repository.join("serve")
}

/// The folder; made where it is not there.
pub(crate) fn create_state_folder(repository: &Path) -> Result<PathBuf> {
    let folder = state_folder(repository);
    std::fs::create_dir_all(&folder).map_err(|error| Error::from_io(folder.display(), &error))?;
    Ok(folder)
}
