//! Files mapped into memory, read-only.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};
use tessera_core::{Error, Result};

/// A file in memory; pages are read when they are touched and shared between processes.
pub struct FileMapping {
    map: Option<Mmap>,
}

impl FileMapping {
    /// Maps the file at `path`.
    pub fn map_file(path: &Path) -> Result<Self> {
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
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read-only. Were another process to change the file meanwhile, we would
        // read other bytes, as with any file; repository files are written once, under the hash of
        // their content, and never changed.
        let map = unsafe { Mmap::map(&file) };
        let map = map.map_err(|error| Error::from_io(format!("map {shown}"), &error))?;
        Ok(Self { map: Some(map) })
    }

    /// Tells the system that the pages are not needed for now; touched again, they are read again.
    pub fn release_pages(&self) {
        if let Some(map) = &self.map {
            // SAFETY: the pages are clean and backed by the file, so dropping them loses nothing.
            let released = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
            // Advice that is not taken costs memory and nothing else.
            drop(released);
        }
    }
}

impl AsRef<[u8]> for FileMapping {
    fn as_ref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
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
