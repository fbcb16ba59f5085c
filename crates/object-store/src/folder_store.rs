//! A folder as an object store, such as one that hosts share.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::NamedTempFile;
use tessera_core::{Error, Result};
use tessera_repository::unfinished_files::{unfinished_prefix, watch_folder};
use tessera_repository::{ContentPieces, OpenedContent};

use crate::blob_store::BlobStore;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A folder.
pub(crate) struct FolderStore {
    root: PathBuf,
}

struct FilePieces {
    path: PathBuf,
    file: File,
}

impl FolderStore {
    /// The folder, which is made when something is put there.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Writes something beside where it is to be.
    fn write_unfinished(&self, path: &Path, bytes: &[u8]) -> Result<NamedTempFile> {
        let unfinished = self.root.join("tmp");
        let folder = path.parent().unwrap_or(&self.root);
        for folder in [folder, &unfinished] {
            fs::create_dir_all(folder).map_err(|error| Error::from_io(folder.display(), &error))?;
        }
        watch_folder(&unfinished);
        let fail = |error: std::io::Error| Error::from_io(path.display(), &error);
        let mut builder = tempfile::Builder::new();
        let prefix = unfinished_prefix();
        let mut file = builder.prefix(&prefix).tempfile_in(&unfinished).map_err(fail)?;
        file.write_all(bytes).and_then(|()| file.as_file().sync_data()).map_err(fail)?;
        Ok(file)
    }
}

impl BlobStore for FolderStore {
    fn put_new(&self, path: &str, bytes: Bytes) -> Result<bool> {
        let path = self.root.join(path);
        let written = self.write_unfinished(&path, &bytes)?;
        match written.persist_noclobber(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(Error::from_io(path.display(), &error.error)),
        }
    }

    fn replace(&self, path: &str, bytes: Bytes) -> Result<()> {
        let path = self.root.join(path);
        let written = self.write_unfinished(&path, &bytes)?;
        let kept = written.persist(&path);
        kept.map(drop).map_err(|error| Error::from_io(path.display(), &error.error))
    }

    fn length_of(&self, path: &str) -> Result<Option<u64>> {
        let path = self.root.join(path);
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from_io(path.display(), &error)),
        }
    }

    fn open(&self, path: &str, offset: u64) -> Result<OpenedContent> {
        let path = self.root.join(path);
        let fail = |error: std::io::Error| Error::from_io(path.display(), &error);
        let mut file = File::open(&path).map_err(fail)?;
        let total = file.metadata().map_err(fail)?.len();
        file.seek(SeekFrom::Start(offset)).map_err(fail)?;
        Ok(OpenedContent { total, pieces: Box::new(FilePieces { path, file }) })
    }

    fn list_names(&self, folder: &str) -> Result<Vec<String>> {
        let folder = self.root.join(folder);
        let fail = |error: &std::io::Error| Error::from_io(folder.display(), error);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(fail(&error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| fail(&error))?.file_name();
            // What is no text was not put there by us.
            names.extend(name.into_string());
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl ContentPieces for FilePieces {
    fn next_piece(&mut self) -> Result<Option<Bytes>> {
        let mut piece = vec![0; PIECE_BYTES];
        let read = self.file.read(&mut piece);
        let read = read.map_err(|error| Error::from_io(self.path.display(), &error))?;
        piece.truncate(read);
        Ok((read > 0).then(|| piece.into()))
    }
}
