//! What controllers have told a node last, kept so that it goes on without one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_cluster::NodeAssignment;
use tessera_core::{Error, Result};
use tessera_repository::unfinished_files::write_whole;

const FILE_NAME: &str = "assignment.json";

/// What a node keeps of what it was told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptAssignment {
    /// The highest epoch of a controller that it has heard of.
    pub(super) epoch: u64,
    pub(super) assignment: NodeAssignment,
    /// Names in certificates of those that do not belong to the cluster any more.
    #[serde(default)]
    pub(super) removed_nodes: Vec<String>,
}

/// The file of what a node was told last.
pub(super) struct AssignmentFile(PathBuf);

impl AssignmentFile {
    /// In the folder of a node's state.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self(folder.join(FILE_NAME))
    }

    /// What was kept; nothing where there is nothing, or it can't be read: a controller says it
    /// again.
    pub(super) fn load(&self) -> KeptAssignment {
        let text = match fs::read(&self.0) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!(file = %self.0.display(), %error, "it can't be read");
                }
                return KeptAssignment::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(file = %self.0.display(), %error, "it is damaged, and not used");
            KeptAssignment::default()
        })
    }

    /// Keeps it, whole or not at all.
    pub(super) fn save(&self, kept: &KeptAssignment) -> Result<()> {
        let text = serde_json::to_vec(kept).map_err(|error| Error::invalid(error.to_string()))?;
        write_whole(&self.0, &text)
    }
}
