//! Files that are not finished yet: they appear whole or not at all, and an interrupted process can
//! remove them.
//!
//! Every unfinished file or folder has `tessera-PID-` in its name (see [`unfinished_prefix`]); the
//! folders in which there may be some are noted here.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tessera_core::{Error, Result, lock};

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub use tessera_engine::unfinished_prefix;

/// Notes a folder in which this process has unfinished files.
pub fn watch_folder(folder: &Path) {
    let mut folders = lock(&FOLDERS);
    if !folders.iter().any(|known| known == folder) {
        folders.push(folder.to_path_buf());
    }
}

/// A folder for what nobody needs afterwards; removed when it is dropped, or by an interrupt.
pub fn temporary_folder() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(&unfinished_prefix())
        .tempdir()
        .map_err(|error| Error::from_io("a temporary folder", &error))
}

/// Writes a file that appears whole or not at all.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    write_with_mode(path, content, 0o644)
}

/// The same, for a secret that only its owner may read.
pub fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    write_with_mode(path, content, 0o600)
}

#[cfg_attr(not(unix), allow(unused_variables, reason = "there are no modes"))]
fn write_with_mode(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let fail = |error: &std::io::Error| Error::from_io(path.display(), error);
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    watch_folder(folder);
    let mut file = tempfile::Builder::new()
        .prefix(&unfinished_prefix())
        .tempfile_in(folder)
        .map_err(|error| fail(&error))?;
    file.write_all(content).map_err(|error| fail(&error))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let readable = std::fs::Permissions::from_mode(mode);
        file.as_file().set_permissions(readable).map_err(|error| fail(&error))?;
    }
    file.persist(path).map_err(|error| fail(&error.error))?;
    Ok(())
}

/// Removes this process' unfinished files; tells whether there was none to remove.
pub fn remove_unfinished() -> bool {
    let folders = lock(&FOLDERS);
    let mut clean = true;
    for entry in folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten() {
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&unfinished_prefix()) {
            clean = false;
            // What can't be removed now is tried again.
            drop(if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            });
        }
    }
    clean
}
