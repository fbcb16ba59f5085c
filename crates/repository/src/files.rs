//! The files of a repository: where they are, and writing them whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tessera_core::{ContentHash, Error, Result};

use crate::unfinished_files::unfinished_prefix;

/// What kind of content a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContentKind {
    /// A block, without its weights.
    Block,
    /// The elements of a weight.
    Weight,
    /// How blocks hang together in a model.
    Model,
}

impl ContentKind {
    pub(crate) const ALL: [Self; 3] = [Self::Block, Self::Weight, Self::Model];

    pub(crate) fn folder_name(self) -> &'static str {
        match self {
            Self::Block => "blocks",
            Self::Weight => "weights",
            Self::Model => "models",
        }
    }

    /// How messages name it.
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Weight => "weight",
            Self::Model => "model",
        }
    }
}

pub(crate) fn io_error(path: &Path, error: &std::io::Error) -> Error {
    Error::from_io(path.display(), error)
}

/// Where content of this hash is.
pub(crate) fn content_path(root: &Path, kind: ContentKind, hash: ContentHash) -> PathBuf {
    let name = hash.to_string();
    root.join(kind.folder_name()).join(&name[..2]).join(name)
}

/// Writes `content` to `target`, which appears whole or not at all.
pub(crate) fn write_atomically(root: &Path, target: &Path, content: &[u8]) -> Result<()> {
    let folder = target.parent().unwrap_or(root);
    // Only the last folder: a repository that was removed meanwhile must not come back in part.
    match fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(io_error(folder, &error));
        }
        _ => {}
    }
    let temporary = root.join("tmp");
    // The name tells whose it is, so that an interrupted process can clean up after itself.
    let mut file = tempfile::Builder::new()
        .prefix(&unfinished_prefix())
        .tempfile_in(&temporary)
        .map_err(|error| io_error(&temporary, &error))?;
    let write = |file: &mut tempfile::NamedTempFile| -> std::io::Result<()> {
        file.write_all(content)?;
        file.as_file().sync_data()?;
        let mut permissions = file.as_file().metadata()?.permissions();
        permissions.set_readonly(true);
        file.as_file().set_permissions(permissions)
    };
    write(&mut file).map_err(|error| io_error(target, &error))?;
    file.persist(target).map_err(|error| io_error(target, &error.error))?;
    Ok(())
}

/// Writes content under its hash unless it is there, whole and sound; tells whether it wrote.
pub(crate) fn put_content(
    root: &Path,
    kind: ContentKind,
    hash: ContentHash,
    content: &[u8],
) -> Result<bool> {
    let target = content_path(root, kind, hash);
    // Content that was damaged is written anew: whoever has the right bytes may heal it.
    let is_sound = fs::metadata(&target).is_ok_and(|found| found.len() == content.len() as u64)
        && tessera_engine::FileMapping::map_file(&target)
            .is_ok_and(|found| ContentHash::of_content(found.as_ref()) == hash);
    if is_sound {
        return Ok(false);
    }
    write_atomically(root, &target, content)?;
    Ok(true)
}

/// All content of a kind: its hash, path and length. Files that are no content are skipped.
pub(crate) fn list_content(
    root: &Path,
    kind: ContentKind,
) -> Result<Vec<(ContentHash, PathBuf, u64)>> {
    let folder = root.join(kind.folder_name());
    let mut found = Vec::new();
    for first in read_folder(&folder)? {
        if !first.is_dir() {
            continue;
        }
        for path in read_folder(&first)? {
            let hash = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(hash) = hash {
                let metadata = fs::metadata(&path).map_err(|error| io_error(&path, &error))?;
                found.push((hash, path, metadata.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The paths in a folder; none where there is no folder.
pub(crate) fn read_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(folder, &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|error| io_error(folder, &error))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The repository's lock file, to be locked shared by writers and alone by gc.
pub(crate) fn lock_file(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(&path).map_err(|error| io_error(&path, &error))
}
