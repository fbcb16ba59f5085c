//! Content that goes from one repository to another: read in ranges, written as it comes, and
//! checked before it is believed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use tessera_core::{ContentHash, Error, Result};
use tessera_engine::FileMapping;

use crate::files::{ContentKind, content_path, io_error};
use crate::load::check_hash;
use crate::store::Repository;

/// How the names of files begin that are parts of some content.
pub(crate) const IMPORT_PREFIX: &str = "import-";

/// A part of some content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The length of all of it.
    pub total: u64,
    /// What is there from the offset on, as much as was asked for or less.
    pub bytes: Vec<u8>,
}

/// Content that a repository lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentName {
    /// What it is.
    pub kind: ContentKind,
    /// Its hash.
    pub hash: ContentHash,
}

impl ContentKind {
    /// The kind of this name: `block`, `weight` or `model`.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.display_name() == name);
        found.ok_or_else(|| {
            Error::invalid(format!("\"{name}\" is no kind of content, expected block or weight"))
        })
    }
}

impl Repository {
    /// At most so many bytes of some content, from an offset on.
    pub fn read_content_range(
        &self,
        name: ContentName,
        offset: u64,
        most: usize,
    ) -> Result<ContentRange> {
        let path = content_path(self.root(), name.kind, name.hash);
        let read = || -> std::io::Result<ContentRange> {
            let mut file = File::open(&path)?;
            let total = file.metadata()?.len();
            file.seek(SeekFrom::Start(offset))?;
            let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
            let mut bytes = Vec::with_capacity(left.min(most));
            file.take(most as u64).read_to_end(&mut bytes)?;
            Ok(ContentRange { total, bytes })
        };
        read().map_err(|error| {
            let what = format!("{} {}", name.kind.display_name(), name.hash.short_hex());
            io_error(&path, &error).with_context(what)
        })
    }

    /// Whether some content is there. Whoever loads it checks it.
    pub fn has_content(&self, name: ContentName) -> bool {
        content_path(self.root(), name.kind, name.hash).exists()
    }

    /// The weights of a block that are not here, each once; the block itself is.
    pub fn missing_weights(&self, block: ContentHash) -> Result<Vec<ContentName>> {
        let block = self.read_block(block)?;
        let mut missing: Vec<ContentName> = block
            .weights()
            .iter()
            .map(|weight| ContentName { kind: ContentKind::Weight, hash: weight.hash })
            .filter(|weight| !self.has_content(*weight))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        Ok(missing)
    }

    /// Begins to write some content, or goes on where somebody stopped.
    pub fn begin_import(&self, name: ContentName) -> Result<ContentImport> {
        let folder = self.root().join("tmp");
        // Without the number of a process: whoever comes next goes on with it.
        let kind = name.kind.display_name();
        let path = folder.join(format!("{IMPORT_PREFIX}{kind}-{}", name.hash));
        let fail = |error: &std::io::Error| io_error(&path, error);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| fail(&error))?;
        let is_free = file.try_lock().is_ok();
        if !is_free {
            return Err(Error::full(format!("{}: it is being written already", path.display())));
        }
        let len = file.seek(SeekFrom::End(0)).map_err(|error| fail(&error))?;
        Ok(ContentImport { name, path, file, len })
    }
}

/// Content that is being written.
pub struct ContentImport {
    name: ContentName,
    path: PathBuf,
    file: File,
    len: u64,
}

impl ContentImport {
    /// How much of it is there.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing of it is there.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes what comes next.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| io_error(&self.path, &error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Checks what was written, and makes it content of the repository; what is not what its name
    /// says is removed.
    pub fn finish(self, repository: &Repository) -> Result<()> {
        let Self { name: ContentName { kind, hash }, path, file, len } = self;
        let fail = |error: &std::io::Error| io_error(&path, error);
        let checked = if len == 0 {
            check_hash(kind, hash, &[])
        } else {
            FileMapping::map_file(&path).and_then(|found| check_hash(kind, hash, found.as_ref()))
        };
        if let Err(error) = checked {
            fs::remove_file(&path).map_err(|error| fail(&error))?;
            return Err(error);
        }
        let _writing = repository.lock_to_write()?;
        let target = content_path(repository.root(), kind, hash);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
        }
        let keep = || -> std::io::Result<()> {
            file.sync_data()?;
            let mut permissions = file.metadata()?.permissions();
            permissions.set_readonly(true);
            file.set_permissions(permissions)?;
            fs::rename(&path, &target)
        };
        keep().map_err(|error| fail(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (tempfile::TempDir, Repository, Vec<u8>, ContentName) {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&folder.path().join("repo")).unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|number| (number % 251) as u8).collect();
        let hash = ContentHash::of_content(&bytes);
        (folder, repository, bytes, ContentName { kind: ContentKind::Weight, hash })
    }

    #[test]
    fn content_that_was_cut_off_goes_on_where_it_stopped() {
        let (_folder, repository, bytes, name) = example();
        assert!(!repository.has_content(name));
        let mut import = repository.begin_import(name).unwrap();
        import.append(&bytes[..70_000]).unwrap();
        // Two can't write the same at once.
        assert!(repository.begin_import(name).is_err());
        drop(import);
        let mut import = repository.begin_import(name).unwrap();
        assert_eq!(import.len(), 70_000);
        import.append(&bytes[70_000..]).unwrap();
        import.finish(&repository).unwrap();
        assert!(repository.has_content(name));
        let read = repository.read_content_range(name, 199_000, 4096).unwrap();
        assert_eq!((read.total, &read.bytes[..]), (200_000, &bytes[199_000..]));
        assert!(repository.read_content_range(name, 200_000, 10).unwrap().bytes.is_empty());
    }

    #[test]
    fn content_with_a_flipped_bit_is_refused_and_fetched_anew() {
        let (_folder, repository, mut bytes, name) = example();
        bytes[123_456] ^= 1;
        let mut import = repository.begin_import(name).unwrap();
        import.append(&bytes).unwrap();
        let error = import.finish(&repository).unwrap_err();
        assert!(error.to_string().contains("cut short or altered"), "{error}");
        assert!(!repository.has_content(name));
        assert!(repository.begin_import(name).unwrap().is_empty());
        let other = ContentName { kind: ContentKind::Block, ..name };
        assert!(repository.read_content_range(other, 0, 10).is_err());
    }
}
