//! Where others reach a node's instances and its gateway, kept so that they find them there again
//! when the node is started anew while no controller tells them where they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result, lock};
use tessera_node::InstancePlace;
use tessera_repository::unfinished_files::write_whole;
use tokio::sync::Notify;

const FILE_NAME: &str = "places.json";

/// Where others reach a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptPlaces {
    /// Where replies to its gateway come to, where it has one.
    pub(super) replies: Option<ReplyPlace>,
    pub(super) instances: Vec<InstancePlace>,
}

/// The name of an inbox of replies, and its port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReplyPlace {
    pub(super) inbox: String,
    pub(super) port: u16,
}

/// The file of where others reach a node.
pub(super) struct PlacesFile {
    path: PathBuf,
    kept: Mutex<KeptPlaces>,
    /// Notified when an instance may be where none was.
    pub(super) changed: Notify,
}

impl PlacesFile {
    /// In the folder of a node's state. One that can't be read says nothing: others hear of new
    /// places from a controller.
    pub(super) fn in_folder(folder: &Path) -> Self {
        let path = folder.join(FILE_NAME);
        let kept = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { path, kept: Mutex::new(kept.unwrap_or_default()), changed: Notify::new() }
    }

    /// What was kept last.
    pub(super) fn kept(&self) -> KeptPlaces {
        lock(&self.kept).clone()
    }

    /// Keeps this from now on; whole or not at all.
    pub(super) fn save(&self, places: KeptPlaces) -> Result<()> {
        let mut kept = lock(&self.kept);
        if *kept == places {
            return Ok(());
        }
        let text =
            serde_json::to_vec(&places).map_err(|error| Error::invalid(error.to_string()))?;
        write_whole(&self.path, &text)?;
        *kept = places;
        Ok(())
    }
}
