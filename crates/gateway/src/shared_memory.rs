//! Regions of system shared memory that clients have registered, for inputs and outputs that
//! never pass through a socket.
//!
//! A region is a file below `/dev/shm`, which is what `shm_open` makes. It is read and written
//! with system calls and not mapped: a client that truncates its file then gets an error, where a
//! mapping would kill the server.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use tessera_core::{Error, Result};

/// Where `shm_open` keeps its files.
const FOLDER: &str = "/dev/shm";

/// A region, as its client registered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RegionStatus {
    /// The client's name for it.
    pub(crate) name: String,
    /// The name that was given to `shm_open`.
    pub(crate) key: String,
    /// Where in the file it starts.
    pub(crate) offset: u64,
    /// How long it is.
    pub(crate) byte_size: u64,
}

/// Where a tensor is in a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// The regions that clients have registered, by name.
#[derive(Debug, Default)]
pub struct SharedMemory {
    regions: Mutex<BTreeMap<String, Arc<Region>>>,
}

#[derive(Debug)]
struct Region {
    status: RegionStatus,
    file: File,
}

impl SharedMemory {
    /// Registers a region; a name that is taken is refused.
    pub(crate) fn register(&self, status: RegionStatus) -> Result<()> {
        if self.lock().contains_key(&status.name) {
            return Err(taken(&status.name));
        }
        let region = Region::open(status)?;
        let mut regions = self.lock();
        // Two clients may have got here with the same name: the first one has it.
        if regions.contains_key(&region.status.name) {
            return Err(taken(&region.status.name));
        }
        regions.insert(region.status.name.clone(), Arc::new(region));
        Ok(())
    }

    /// Forgets a region; a name that nobody registered is fine.
    pub(crate) fn unregister(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Forgets every region.
    pub(crate) fn unregister_all(&self) {
        self.lock().clear();
    }

    /// One region, or every region for the empty name.
    pub(crate) fn status(&self, name: &str) -> Result<Vec<RegionStatus>> {
        let regions = self.lock();
        if name.is_empty() {
            return Ok(regions.values().map(|region| region.status.clone()).collect());
        }
        match regions.get(name) {
            Some(region) => Ok(vec![region.status.clone()]),
            None => Err(unknown(name)),
        }
    }

    /// Fills `target` from the start of a place, which must be as long.
    pub(crate) fn read(&self, place: &Place, target: &mut [u8]) -> Result<()> {
        let (region, start) = self.find(place)?;
        region.file.read_exact_at(target, start).map_err(|error| region.blame("read", &error))
    }

    /// All the bytes of a place.
    pub(crate) fn read_all(&self, place: &Place) -> Result<Vec<u8>> {
        // Found before anything is allocated: the length is the client's word.
        let (region, start) = self.find(place)?;
        let mut bytes = vec![0; usize::try_from(place.byte_size).unwrap_or(usize::MAX)];
        region
            .file
            .read_exact_at(&mut bytes, start)
            .map_err(|error| region.blame("read", &error))?;
        Ok(bytes)
    }

    /// Writes the bytes of a tensor to a place, which must be at least as long.
    pub(crate) fn write(&self, place: &Place, bytes: &[u8]) -> Result<()> {
        if place.byte_size < bytes.len() as u64 {
            return Err(Error::invalid(format!(
                "shared memory region '{}': {} bytes were set aside, the tensor has {}",
                place.region,
                place.byte_size,
                bytes.len()
            )));
        }
        let (region, start) = self.find(place)?;
        region.file.write_all_at(bytes, start).map_err(|error| region.blame("write", &error))
    }

    /// The region of a place, and where in its file the place starts.
    fn find(&self, place: &Place) -> Result<(Arc<Region>, u64)> {
        let region =
            self.lock().get(&place.region).cloned().ok_or_else(|| unknown(&place.region))?;
        let status = &region.status;
        let fits =
            place.offset.checked_add(place.byte_size).is_some_and(|end| end <= status.byte_size);
        if !fits {
            return Err(Error::invalid(format!(
                "shared memory region '{}' has {} bytes, asked for {} at offset {}",
                status.name, status.byte_size, place.byte_size, place.offset
            )));
        }
        // Its client may have made the file shorter since.
        region.check_file()?;
        // Both ends were checked: this is below the end of the file.
        let start = status.offset.saturating_add(place.offset);
        Ok((region, start))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.regions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Region {
    fn open(status: RegionStatus) -> Result<Self> {
        if status.name.is_empty() {
            return Err(Error::invalid("a shared memory region needs a name"));
        }
        if status.byte_size == 0 {
            return Err(Error::invalid(format!(
                "shared memory region '{}': byte_size is 0, expected 1 or more",
                status.name
            )));
        }
        let path = path_of(&status.key)?;
        // As shm_open does: a link could lead to any file of the host.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(|error| {
                Error::invalid(format!(
                    "shared memory region '{}': can't open {}: {error}",
                    status.name,
                    path.display()
                ))
            })?;
        let region = Self { status, file };
        region.check_file()?;
        Ok(region)
    }

    /// Whether the region is inside its file, as the file is now.
    fn check_file(&self) -> Result<()> {
        let RegionStatus { name, key, offset, byte_size } = &self.status;
        let metadata = self.file.metadata().map_err(|error| self.blame("look at", &error))?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!(
                "shared memory region '{name}': {key} is no shared memory"
            )));
        }
        if offset.checked_add(*byte_size).is_none_or(|end| end > metadata.len()) {
            return Err(Error::invalid(format!(
                "shared memory region '{name}': {key} has {} bytes, asked for {byte_size} at \
                 offset {offset}",
                metadata.len()
            )));
        }
        Ok(())
    }

    fn blame(&self, what: &str, error: &std::io::Error) -> Error {
        let message = format!("shared memory region '{}': {what} it: {error}", self.status.name);
        match error.kind() {
            // The file was cut while we read: the client's doing.
            ErrorKind::UnexpectedEof => Error::invalid(message),
            _ => Error::new(tessera_core::ErrorKind::Io, message),
        }
    }
}

/// The file of a key: `/abc` and `abc` are `/dev/shm/abc`.
fn path_of(key: &str) -> Result<PathBuf> {
    let file = key.strip_prefix('/').unwrap_or(key);
    if file.is_empty() || file == "." || file.contains(['/', '\0']) || file.contains("..") {
        return Err(Error::invalid(format!(
            "shared memory key \"{key}\" is none, expected a name like \"/tensors\""
        )));
    }
    Ok(PathBuf::from(FOLDER).join(file))
}

fn taken(name: &str) -> Error {
    Error::invalid(format!("shared memory region '{name}' already in manager"))
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!("Unable to find system shared memory region: '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in `/dev/shm` that goes away with the test.
    struct Scratch(String);

    impl Scratch {
        fn new(name: &str, len: usize) -> Self {
            let key = format!("/tessera-test-{}-{name}", std::process::id());
            std::fs::write(path_of(&key).unwrap(), vec![7; len]).unwrap();
            Self(key)
        }

        fn region(&self, offset: u64, byte_size: u64) -> RegionStatus {
            RegionStatus { name: "r".into(), key: self.0.clone(), offset, byte_size }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            std::fs::remove_file(path_of(&self.0).unwrap()).unwrap();
        }
    }

    fn place(offset: u64, byte_size: u64) -> Place {
        Place { region: "r".into(), offset, byte_size }
    }

    #[test]
    fn keys_stay_below_the_folder_of_shared_memory() {
        assert_eq!(path_of("/abc").unwrap(), PathBuf::from("/dev/shm/abc"));
        assert_eq!(path_of("abc").unwrap(), PathBuf::from("/dev/shm/abc"));
        for key in ["", "/", "/a/b", "..", "/..", "//etc", "/.", "a\0b", "/a..b"] {
            assert!(path_of(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn a_name_is_registered_once_and_forgotten_as_often_as_one_likes() {
        let scratch = Scratch::new("once", 16);
        let regions = SharedMemory::default();
        regions.register(scratch.region(0, 16)).unwrap();
        let error = regions.register(scratch.region(0, 8)).unwrap_err();
        assert_eq!(error.to_string(), "shared memory region 'r' already in manager");
        assert_eq!(regions.status("r").unwrap(), [scratch.region(0, 16)]);
        assert_eq!(regions.status("").unwrap().len(), 1);
        regions.unregister("r");
        regions.unregister("r");
        assert!(regions.status("r").is_err());
        assert!(regions.status("").unwrap().is_empty());
    }

    #[test]
    fn a_region_must_be_inside_its_file() {
        let scratch = Scratch::new("inside", 16);
        let regions = SharedMemory::default();
        for (offset, byte_size) in [(0, 17), (16, 1), (u64::MAX, 2), (0, 0)] {
            assert!(regions.register(scratch.region(offset, byte_size)).is_err(), "{offset}");
        }
        let error = regions.register(scratch.region(8, 9)).unwrap_err().to_string();
        assert!(error.contains("has 16 bytes, asked for 9 at offset 8"), "{error}");
    }

    #[test]
    fn a_place_must_be_inside_its_region() {
        let scratch = Scratch::new("place", 16);
        let regions = SharedMemory::default();
        regions.register(scratch.region(4, 8)).unwrap();
        regions.write(&place(2, 3), &[1, 2, 3]).unwrap();
        let mut read = [0; 5];
        regions.read(&place(1, 5), &mut read).unwrap();
        assert_eq!(read, [7, 1, 2, 3, 7]);
        assert_eq!(regions.read_all(&place(6, 2)).unwrap(), [7, 7]);
        for (offset, byte_size) in [(0, 9), (8, 1), (u64::MAX, 1)] {
            assert!(regions.read_all(&place(offset, byte_size)).is_err(), "{offset}");
        }
        let error = regions.write(&place(0, 2), &[1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains("2 bytes were set aside, the tensor has 3"), "{error}");
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let scratch = Scratch::new("shorter", 16);
        let regions = SharedMemory::default();
        regions.register(scratch.region(0, 16)).unwrap();
        std::fs::write(path_of(&scratch.0).unwrap(), [7; 4]).unwrap();
        assert!(regions.read_all(&place(0, 16)).is_err());
        assert!(regions.write(&place(0, 16), &[0; 16]).is_err());
    }

    #[test]
    fn a_link_is_not_followed() {
        let scratch = Scratch::new("target", 16);
        let link = format!("{}-link", scratch.0);
        std::os::unix::fs::symlink(path_of(&scratch.0).unwrap(), path_of(&link).unwrap()).unwrap();
        let regions = SharedMemory::default();
        let status = RegionStatus { name: "r".into(), key: link.clone(), offset: 0, byte_size: 1 };
        let refused = regions.register(status).is_err();
        std::fs::remove_file(path_of(&link).unwrap()).unwrap();
        assert!(refused);
    }
}
