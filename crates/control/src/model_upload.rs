//! A model on its way to a server: a file, or an archive of files that belong together.

use std::fs::File;
use std::io::Write;
use std::path::{Component, Path};

use tempfile::TempDir;
use tessera_core::{Error, Result};

use crate::names::shorten_name;

/// How a model comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadKind {
    /// As an ONNX file.
    Onnx,
    /// With what belongs to it: its weights, where they are in files of their own, its exits, what
    /// is known of it.
    Tar,
}

/// Most files of an archive.
const MOST_FILES: usize = 10_000;
/// What an ONNX file that comes alone is called.
const MODEL_FILE: &str = "model.onnx";
/// What an archive is called until it is unpacked.
const ARCHIVE_FILE: &str = ".archive.tar";

/// A model on its way.
pub(crate) struct ModelUpload {
    pub(crate) name: String,
    pub(crate) folder: TempDir,
    kind: UploadKind,
    file: File,
    len: u64,
}

impl ModelUpload {
    /// One of which nothing has come yet, to be written to this folder.
    pub(crate) fn begin(name: String, folder: TempDir, kind: UploadKind) -> Result<Self> {
        let path = folder.path().join(match kind {
            UploadKind::Onnx => MODEL_FILE,
            UploadKind::Tar => ARCHIVE_FILE,
        });
        let file = File::create_new(&path).map_err(|error| write_error(&error))?;
        Ok(Self { name, folder, kind, file, len: 0 })
    }

    /// Writes what has come.
    pub(crate) fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.len += piece.len() as u64;
        self.file.write_all(piece).map_err(|error| write_error(&error))
    }

    /// Has its files in its folder, once all has come.
    pub(crate) fn unpack(self) -> Result<TempDir> {
        let Self { folder, kind, file, len, .. } = self;
        if len == 0 {
            return Err(Error::invalid("the body is empty, expected an ONNX model"));
        }
        drop(file);
        if kind == UploadKind::Tar {
            let archive = folder.path().join(ARCHIVE_FILE);
            unpack_archive(&archive, folder.path())?;
            std::fs::remove_file(&archive).map_err(|error| write_error(&error))?;
        }
        Ok(folder)
    }
}

fn write_error(error: &std::io::Error) -> Error {
    Error::from_io("a model that comes", error)
}

/// Unpacks plain files, each inside of the folder.
fn unpack_archive(archive: &Path, folder: &Path) -> Result<()> {
    let broken = |error: &std::io::Error| Error::invalid(format!("no archive of tar: {error}"));
    let file = File::open(archive).map_err(|error| write_error(&error))?;
    let mut archive = tar::Archive::new(file);
    for (count, entry) in archive.entries().map_err(|error| broken(&error))?.enumerate() {
        let mut entry = entry.map_err(|error| broken(&error))?;
        if count >= MOST_FILES {
            return Err(Error::invalid(format!("more than {MOST_FILES} files in an archive")));
        }
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let name = entry.path().map_err(|error| broken(&error))?.into_owned();
        let shown = shorten_name(&name.display().to_string());
        let is_inside = name.components().all(|part| matches!(part, Component::Normal(_)));
        let is_file = entry.header().entry_type().is_file();
        if !is_inside || !is_file || name == Path::new(ARCHIVE_FILE) {
            return Err(Error::invalid(format!("\"{shown}\" is no plain file of an archive")));
        }
        let path = folder.join(&name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| write_error(&error))?;
        }
        let mut file = File::create_new(&path)
            .map_err(|_| Error::invalid(format!("\"{shown}\" is in the archive twice")))?;
        std::io::copy(&mut entry, &mut file).map_err(|error| broken(&error))?;
    }
    Ok(())
}
