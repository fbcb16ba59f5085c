//! Ctrl-C: what this process was writing is removed before it goes.
//!
//! Every unfinished file or folder has `tessera-PID-` in its name (see [`mark`]); the folders in
//! which there may be some are noted here.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What the names of this process' unfinished files begin with.
pub(crate) fn mark() -> String {
    format!("tessera-{}-", std::process::id())
}

/// Notes a folder in which this process has unfinished files.
pub(crate) fn watch(folder: &Path) {
    let mut folders = FOLDERS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if !folders.iter().any(|known| known == folder) {
        folders.push(folder.to_path_buf());
    }
}

/// Removes what is unfinished when the user interrupts, and ends with the usual code.
pub(crate) fn clean_up_on_interrupt() {
    watch(&std::env::temp_dir());
    let handler = || {
        let folders = FOLDERS
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for entry in folders
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
        {
            let Ok(path) = entry.map(|entry| entry.path()) else {
                continue;
            };
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if name.starts_with(&mark()) {
                let removed = if path.is_dir() {
                    std::fs::remove_dir_all(&path)
                } else {
                    std::fs::remove_file(&path)
                };
                if let Err(error) = removed {
                    eprintln!("tessera: {} stays behind: {error}", path.display());
                }
            }
        }
        eprintln!("tessera: interrupted");
        std::process::exit(130);
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        eprintln!("tessera: Ctrl-C will not clean up: {error}");
    }
}
