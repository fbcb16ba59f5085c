//! Who a node is, kept in a file that nobody else may read.

use std::fs;
use std::path::{Path, PathBuf};

use tessera_cluster::JoinedNode;
use tessera_core::{Error, Result};
use tessera_repository::unfinished_files::write_secret;

const FILE_NAME: &str = "identity.json";

/// The file of a node's certificate and key.
pub(super) struct IdentityFile(PathBuf);

impl IdentityFile {
    /// In the folder of a node's state.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self(folder.join(FILE_NAME))
    }

    /// Who the node is; `None` where it has not joined a cluster.
    pub(super) fn load(&self) -> Result<Option<JoinedNode>> {
        match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                let path = self.0.display();
                Error::corrupt(format!(
                    "{path}: it is damaged: {error}; move it away, and join again with a new token"
                ))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from_io(self.0.display(), &error)),
        }
    }

    /// Keeps who it is; whole or not at all.
    pub(super) fn save(&self, node: &JoinedNode) -> Result<()> {
        let text = serde_json::to_vec_pretty(node).map_err(|e| Error::invalid(e.to_string()))?;
        write_secret(&self.0, &text)
    }

    /// Forgets who it was.
    pub(super) fn remove(&self) -> Result<()> {
        fs::remove_file(&self.0).map_err(|error| Error::from_io(self.0.display(), &error))
    }
}
