//! What a running server uses stays: it holds models and blocks, which nobody can remove meanwhile.
//!
//! A holder has a folder with a file for each thing that it holds, and a lock on it for as long as
//! it lives: the folder of one that was killed holds nothing, and goes with the next collection.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Error, Result};

use crate::files::{self, io_error};
use crate::store::{HOLDS_FOLDER, Repository};

/// The file that a holder has locked.
const LOCK_FILE: &str = "lock";

/// Whoever uses what a repository has, for as long as it runs.
pub struct ContentHolder {
    repository: PathBuf,
    folder: PathBuf,
    /// Locked until this is dropped, or the process ends.
    _lock: File,
    next: AtomicU64,
}

/// Something that is held until this is dropped.
pub struct HeldContent {
    file: PathBuf,
    /// The folder stays as long as anything is in it.
    _holder: Arc<ContentHolder>,
}

/// What somebody uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentUse {
    /// The task that uses it.
    pub task: String,
    /// The models that it names.
    pub models: Vec<String>,
    /// The blocks that it runs.
    pub blocks: Vec<ContentHash>,
}

/// What a holder that runs uses.
#[derive(Clone, Debug)]
pub(crate) struct HolderUse {
    pub(crate) process: String,
    pub(crate) content: ContentUse,
}

impl Repository {
    /// Makes this process a holder, which holds nothing yet.
    pub fn begin_holding(&self) -> Result<Arc<ContentHolder>> {
        let _writing = self.lock_to_write()?;
        let all = self.root().join(HOLDS_FOLDER);
        fs::create_dir_all(&all).map_err(|error| io_error(&all, &error))?;
        let folder = tempfile::Builder::new()
            .prefix(&format!("{}-", std::process::id()))
            .tempdir_in(&all)
            .map_err(|error| io_error(&all, &error))?
            .keep();
        let path = folder.join(LOCK_FILE);
        let lock = File::create(&path).and_then(|file| file.lock().map(|()| file));
        let lock = lock.map_err(|error| io_error(&path, &error))?;
        let (repository, next) = (self.root().to_path_buf(), AtomicU64::new(0));
        Ok(Arc::new(ContentHolder { repository, folder, _lock: lock, next }))
    }

    /// What holders that run use; the folders of others are removed where `removes` says so.
    pub(crate) fn held_content(&self, removes: bool) -> Result<Vec<HolderUse>> {
        let mut held = Vec::new();
        for folder in files::read_folder(&self.root().join(HOLDS_FOLDER))? {
            if is_locked(&folder.join(LOCK_FILE))? {
                held.extend(read_holder(&folder)?);
            } else if removes {
                fs::remove_dir_all(&folder).map_err(|error| io_error(&folder, &error))?;
            }
        }
        Ok(held)
    }

    /// Refuses to remove a model that somebody uses.
    pub(crate) fn check_unused(&self, model: &str) -> Result<()> {
        let held = self.held_content(false)?;
        let user = held.iter().find(|user| user.content.models.iter().any(|name| name == model));
        match user {
            None => Ok(()),
            Some(HolderUse { process, content }) => Err(Error::usage(format!(
                "model \"{model}\" is used by task \"{}\" of the server that runs as process \
                 {process}; stop serving the task first",
                content.task
            ))),
        }
    }
}

impl ContentHolder {
    /// Holds what a task uses until what is returned is dropped.
    pub fn hold_content(self: &Arc<Self>, content: &ContentUse) -> Result<HeldContent> {
        let lock = files::lock_file(&self.repository)?;
        lock.lock_shared().map_err(|error| io_error(&self.repository.join("lock"), &error))?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let file = self.folder.join(format!("{number}.json"));
        let text =
            serde_json::to_vec(content).map_err(|error| Error::invalid(error.to_string()))?;
        fs::write(&file, text).map_err(|error| io_error(&file, &error))?;
        Ok(HeldContent { file, _holder: Arc::clone(self) })
    }
}

impl Drop for HeldContent {
    fn drop(&mut self) {
        // One that stays holds something until the server ends, and is no other harm.
        fs::remove_file(&self.file).ok();
    }
}

impl Drop for ContentHolder {
    fn drop(&mut self) {
        // What stays holds nothing, and goes with the next collection.
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Whether somebody has a lock on this file.
fn is_locked(path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error(path, &error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(io_error(path, &error)),
    }
}

fn read_holder(folder: &Path) -> Result<Vec<HolderUse>> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let process = name.split('-').next().unwrap_or_default();
    let mut held = Vec::new();
    for path in files::read_folder(folder)? {
        if path.file_name().is_some_and(|name| name == LOCK_FILE) {
            continue;
        }
        let text = match fs::read(&path) {
            Ok(text) => text,
            // It is not held any more.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error(&path, &error)),
        };
        let content = serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt(format!("{}: {error}", path.display())))?;
        held.push(HolderUse { process: process.to_owned(), content });
    }
    Ok(held)
}
