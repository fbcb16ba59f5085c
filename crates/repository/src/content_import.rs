//! Content that is being written: checked range by range as it comes, and not believed before.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use tessera_core::{ContentTree, Error, RANGE_BYTES, RangeCheck, Result};

use crate::content_transfer::{ContentName, IMPORT_PREFIX};
use crate::files::{content_path, io_error};
use crate::store::Repository;

/// Bytes that are read at once of what is there already.
const READ_BYTES: usize = 256 << 10;

impl Repository {
    /// Begins to write some content, or goes on where somebody stopped.
    pub fn begin_import(&self, name: ContentName) -> Result<ContentImport> {
        let folder = self.root().join("tmp");
        // Without the number of a process: whoever comes next goes on with it.
        let path =
            folder.join(format!("{IMPORT_PREFIX}{}-{}", name.kind.display_name(), name.hash));
        let fail = |error: &std::io::Error| io_error(&path, error);
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|error| fail(&error))?;
        let is_free = file.try_lock().is_ok();
        if !is_free {
            return Err(Error::full(format!("{}: it is being written already", path.display())));
        }
        let len = file.seek(SeekFrom::End(0)).map_err(|error| fail(&error))?;
        Ok(ContentImport { name, path, file, len, checking: None })
    }
}

/// Content that is being written.
pub struct ContentImport {
    name: ContentName,
    path: PathBuf,
    file: File,
    len: u64,
    checking: Option<ImportCheck>,
}

/// What an import is checked with.
struct ImportCheck {
    tree: ContentTree,
    /// The range that the end of the file is in; all before it are right.
    index: u64,
    range: RangeCheck,
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

    /// What it is checked with.
    pub fn tree(&self) -> Option<&ContentTree> {
        self.checking.as_ref().map(|checking| &checking.tree)
    }

    /// Whether all of it is there, and right.
    pub fn is_complete(&self) -> bool {
        self.checking.as_ref().is_some_and(|checking| {
            self.len == checking.tree.total() && checking.index >= checking.tree.range_count()
        })
    }

    /// Checks what is there with this tree, and what comes from now on. Returns how much of what is
    /// there may stay: less than all of it where something is wrong with it, or with the tree.
    pub fn check_with(&mut self, tree: ContentTree) -> Result<u64> {
        self.checking = None;
        let mut file = File::open(&self.path).map_err(|error| io_error(&self.path, &error))?;
        let mut checking = ImportCheck { index: 0, range: tree.begin_range(0), tree };
        let (mut right, mut place) = (0, 0);
        let mut buffer = vec![0; READ_BYTES];
        while place < self.len && checking.index < checking.tree.range_count() {
            let most = buffer.len().min(usize::try_from(self.len - place).unwrap_or(usize::MAX));
            let read = file.read(&mut buffer[..most]);
            let read = read.map_err(|error| io_error(&self.path, &error))?;
            if read == 0 {
                break;
            }
            let mut bytes = &buffer[..read];
            while !bytes.is_empty() && checking.index < checking.tree.range_count() {
                let taken = checking.range.update(bytes);
                bytes = &bytes[taken..];
                place += taken as u64;
                if checking.range.missing() == 0 {
                    if !checking.range.is_right() {
                        return Ok(right);
                    }
                    right = place;
                    checking.next_range();
                }
            }
        }
        // Content without bytes is right as soon as it is asked for.
        checking.pass_empty_range();
        self.checking = Some(checking);
        Ok(place)
    }

    /// Forgets what it is checked with, as that is not to be believed.
    pub fn forget_tree(&mut self) {
        self.checking = None;
    }

    /// Cuts off what is past this length, and forgets what it is checked with.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        self.checking = None;
        self.file.set_len(len).map_err(|error| io_error(&self.path, &error))?;
        self.len = self.len.min(len);
        Ok(())
    }

    /// Writes what comes next; what is past the end is left out. An error of corrupt content where
    /// a range is complete and wrong: it is cut off again.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        let Some(checking) = &mut self.checking else {
            return Err(Error::invalid("content is written that can't be checked"));
        };
        while !bytes.is_empty() && checking.index < checking.tree.range_count() {
            let taken = checking.range.update(bytes);
            let (now, later) = bytes.split_at(taken);
            self.file.write_all(now).map_err(|error| io_error(&self.path, &error))?;
            self.len += taken as u64;
            bytes = later;
            if checking.range.missing() > 0 {
                continue;
            }
            if !checking.range.is_right() {
                let start = checking.tree.range(checking.index).start;
                self.file.set_len(start).map_err(|error| io_error(&self.path, &error))?;
                self.len = start;
                checking.range = checking.tree.begin_range(checking.index);
                return Err(Error::corrupt(format!(
                    "{}: its bytes from {start} on were cut short or altered",
                    self.name
                )));
            }
            checking.next_range();
        }
        Ok(())
    }

    /// Makes what was written, and checked, content of the repository.
    pub fn finish(self, repository: &Repository) -> Result<()> {
        let is_complete = self.is_complete();
        let Self { name, path, file, len, .. } = self;
        if !is_complete {
            return Err(Error::corrupt(format!("{name}: not all of its {len} bytes are right")));
        }
        let fail = |error: &std::io::Error| io_error(&path, error);
        let _writing = repository.lock_to_write()?;
        let target = content_path(repository.root(), name.kind, name.hash);
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

impl ImportCheck {
    fn next_range(&mut self) {
        self.index += 1;
        self.range = self.tree.begin_range(self.index);
    }

    fn pass_empty_range(&mut self) {
        if self.tree.total() == 0 && self.index == 0 && self.range.is_right() {
            self.next_range();
        }
    }
}

/// The start of the range that a place is in.
pub(crate) fn range_start(place: u64) -> u64 {
    place / RANGE_BYTES * RANGE_BYTES
}

#[cfg(test)]
mod tests {
    use tessera_core::ContentHash;

    use super::*;
    use crate::ContentKind;

    fn example(length: u64) -> (tempfile::TempDir, Repository, Vec<u8>, ContentName) {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&folder.path().join("repo")).unwrap();
        let bytes: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
        let hash = ContentHash::of_content(&bytes);
        (folder, repository, bytes, ContentName { kind: ContentKind::Weight, hash })
    }

    #[test]
    fn content_that_was_cut_off_goes_on_where_it_stopped() {
        let (_folder, repository, bytes, name) = example(3_000_000);
        let tree = ContentTree::of_content(&bytes);
        assert!(!repository.has_content(name));
        let mut import = repository.begin_import(name).unwrap();
        assert_eq!(import.check_with(tree.clone()).unwrap(), 0);
        import.append(&bytes[..1_700_000]).unwrap();
        // Two can't write the same at once.
        assert!(repository.begin_import(name).is_err());
        drop(import);
        let mut import = repository.begin_import(name).unwrap();
        assert_eq!(import.len(), 1_700_000);
        assert!(import.append(&bytes[..1]).is_err(), "nothing to check it with");
        assert_eq!(import.check_with(tree).unwrap(), 1_700_000);
        assert!(!import.is_complete());
        import.append(&bytes[1_700_000..]).unwrap();
        assert!(import.is_complete());
        import.finish(&repository).unwrap();
        assert!(repository.has_content(name));
        let read = repository.read_content_range(name, 2_999_000, 4096).unwrap();
        assert_eq!((read.total, &read.bytes[..]), (3_000_000, &bytes[2_999_000..]));
        assert!(repository.read_content_range(name, 3_000_000, 10).unwrap().bytes.is_empty());
        let other = ContentName { kind: ContentKind::Block, ..name };
        assert!(repository.read_content_range(other, 0, 10).is_err());
    }

    #[test]
    fn a_range_with_a_flipped_bit_is_cut_off_and_those_before_it_stay() {
        let (_folder, repository, mut bytes, name) = example(3_000_000);
        let tree = ContentTree::of_content(&bytes);
        bytes[2_000_000] ^= 1;
        let mut import = repository.begin_import(name).unwrap();
        import.check_with(tree.clone()).unwrap();
        let error = import.append(&bytes).unwrap_err();
        assert!(error.to_string().contains("from 1048576 on were cut short or altered"), "{error}");
        assert_eq!(import.len(), RANGE_BYTES);
        bytes[2_000_000] ^= 1;
        import.append(&bytes[RANGE_BYTES as usize..]).unwrap();
        import.finish(&repository).unwrap();
        // What was flipped on the disk meanwhile is noticed, too.
        fs::remove_file(content_path(repository.root(), name.kind, name.hash)).unwrap();
        let mut import = repository.begin_import(name).unwrap();
        import.check_with(tree.clone()).unwrap();
        import.append(&bytes[..2_500_000]).unwrap();
        let path = import.path.clone();
        drop(import);
        bytes[1_100_000] ^= 1;
        fs::write(&path, &bytes[..2_500_000]).unwrap();
        let mut import = repository.begin_import(name).unwrap();
        assert_eq!(import.check_with(tree).unwrap(), RANGE_BYTES);
        assert!(import.finish(&repository).is_err());
    }

    #[test]
    fn content_without_bytes_is_content_as_well() {
        let (_folder, repository, bytes, name) = example(0);
        let mut import = repository.begin_import(name).unwrap();
        import.check_with(ContentTree::of_content(&bytes)).unwrap();
        assert!(import.is_complete());
        import.finish(&repository).unwrap();
        assert_eq!(repository.read_content_range(name, 0, 10).unwrap().total, 0);
    }
}
