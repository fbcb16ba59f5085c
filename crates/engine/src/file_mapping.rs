//! Files mapped into memory, read-only.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::{Mmap, UncheckedAdvice};
use tessera_core::{Error, Result};

use crate::mapped_ranges::MappedRange;

/// A file in memory; pages are read when they are touched and shared between processes.
///
/// Where the file is cut short meanwhile, or can't be read, zeros are read instead, and
/// [`FileMapping::check_intact`] fails from then on.
pub struct FileMapping {
    map: Option<WatchedMap>,
    /// The file and what it looked like, where it is watched.
    file: Option<(File, FileLook)>,
}

/// A mapping, and what notices that it is damaged.
struct WatchedMap {
    map: Mmap,
    range: &'static MappedRange,
}

/// What changes when a file is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileLook {
    length: u64,
    modified: Option<SystemTime>,
}

impl FileMapping {
    /// Maps the file at `path`.
    pub fn map_file(path: &Path) -> Result<Self> {
        let (map, _) = open_and_map(path)?;
        Ok(Self { map, file: None })
    }

    /// The same for a file that is read again and again: also what is written to it is noticed.
    pub fn map_watched_file(path: &Path) -> Result<Self> {
        let (map, (file, metadata)) = open_and_map(path)?;
        Ok(Self { map, file: Some((file, FileLook::of_file(&metadata))) })
    }

    /// Fails where the file is not any more what it was when it was mapped. Whoever read before may
    /// have read something else.
    pub fn check_intact(&self) -> Result<()> {
        let is_damaged = self.map.as_ref().is_some_and(|watched| watched.range.is_damaged());
        let has_changed = self.file.as_ref().is_some_and(|(file, look)| {
            file.metadata().map_or(true, |metadata| FileLook::of_file(&metadata) != *look)
        });
        if is_damaged || has_changed {
            return Err(Error::corrupt("a file was cut short or altered while it was in use"));
        }
        Ok(())
    }

    /// Says that the pages are not needed for now; touched again, they are read again.
    pub fn release_pages(&self) {
        if let Some(watched) = &self.map {
            // SAFETY: the pages are clean and backed by the file, so dropping them loses nothing.
            let released = unsafe { watched.map.unchecked_advise(UncheckedAdvice::DontNeed) };
            // Advice that is not taken costs memory and nothing else.
            drop(released);
        }
    }
}

fn open_and_map(path: &Path) -> Result<(Option<WatchedMap>, (File, Metadata))> {
    let shown = path.display();
    let failed = |error: std::io::Error| Error::from_io(shown.to_string(), &error);
    let not_a_file = || Error::usage(format!("{shown}: not a file"));
    // To open a device may do something, so it is looked at first; and a pipe that takes the
    // file's place in between would have us wait for a writer, but for the flag.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(not_a_file());
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    if metadata.len() == 0 {
        return Ok((None, (file, metadata)));
    }
    // SAFETY: the map is read-only. Were another process to change the file meanwhile, we would
    // read other bytes, as with any file; repository files are written once, under the hash of
    // their content, and never changed.
    let map = unsafe { Mmap::map(&file) };
    let map = map.map_err(|error| Error::from_io(format!("map {shown}"), &error))?;
    let range = MappedRange::watch_memory(&map);
    Ok((Some(WatchedMap { map, range }), (file, metadata)))
}

impl FileLook {
    fn of_file(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Drop for WatchedMap {
    fn drop(&mut self) {
        // Before it is unmapped.
        self.range.forget();
    }
}

impl AsRef<[u8]> for FileMapping {
    fn as_ref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |watched| &watched.map)
    }
}

/// A mapping that several have a hold on.
#[derive(Clone)]
pub struct SharedFileMapping(pub Arc<FileMapping>);

impl AsRef<[u8]> for SharedFileMapping {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_short_is_zeros_and_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        for (length, left) in [(1 << 20, 0), (1 << 20, 300_000), (100_000, 5)] {
            std::fs::write(&path, vec![7u8; length]).unwrap();
            let mapping = FileMapping::map_file(&path).unwrap();
            let other = FileMapping::map_file(&path).unwrap();
            assert_eq!(mapping.as_ref()[length - 1], 7);
            mapping.check_intact().unwrap();
            File::options().write(true).open(&path).unwrap().set_len(left).unwrap();
            let sum: usize = mapping.as_ref().iter().map(|&byte| usize::from(byte)).sum();
            assert!(sum <= 7 * length, "{sum}");
            assert_eq!(mapping.as_ref()[length - 1], 0);
            assert!(mapping.check_intact().is_err_and(|error| error.to_string().contains("short")));
            // Nobody read there.
            other.check_intact().unwrap();
        }
        // What comes next where a mapping was is not damaged.
        std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
        FileMapping::map_file(&path).unwrap().check_intact().unwrap();
    }

    #[test]
    fn a_watched_file_that_is_written_to_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, vec![7u8; 5000]).unwrap();
        let mapping = FileMapping::map_watched_file(&path).unwrap();
        mapping.check_intact().unwrap();
        // Within the last page, which is there still.
        File::options().write(true).open(&path).unwrap().set_len(4500).unwrap();
        assert!(mapping.check_intact().is_err());
    }
}
