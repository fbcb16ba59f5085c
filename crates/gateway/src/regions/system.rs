//! A region of system shared memory that a client has registered.
//!
//! It is a file below `/dev/shm`, which is what `shm_open` makes. It is read and written with
//! system calls and not mapped: a client that truncates its file then gets an error, where a
//! mapping would kill the server.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};

use crate::byte_budget::ByteLease;
use crate::protocol::{InputHeader, RegionRange, decode_strings, raw_bytes, tensor_on_host};
use crate::service::InferenceService;

/// Where `shm_open` keeps its files.
const SHARED_MEMORY_FOLDER: &str = "/dev/shm";

/// A region, as its client registered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SystemRegionStatus {
    /// The client's name for it.
    pub(crate) name: String,
    /// The name that was given to `shm_open`.
    pub(crate) key: String,
    /// Where in the file it starts.
    pub(crate) offset: u64,
    /// How long it is.
    pub(crate) byte_size: u64,
}

/// A region of system shared memory.
#[derive(Debug)]
pub(crate) struct SystemRegion {
    status: SystemRegionStatus,
    file: File,
}

impl SystemRegion {
    pub(crate) fn status(&self) -> &SystemRegionStatus {
        &self.status
    }

    /// The tensor at a range, copied to the service's memory; the lease is for the copy.
    pub(crate) fn read_tensor(
        &self,
        service: &dyn InferenceService,
        header: &InputHeader,
        range: &RegionRange,
        lease: &mut ByteLease,
    ) -> Result<Tensor> {
        // Before any memory is taken: shape and length are the client's word.
        self.file_offset(range)?;
        lease.grow(usize::try_from(range.byte_size).unwrap_or(usize::MAX))?;
        if header.byte_len().is_none() {
            let strings = decode_strings(&self.read_all(range)?, header.element_count())?;
            return Tensor::from_strings(&header.shape, strings);
        }
        header.check_bytes(usize::try_from(range.byte_size).unwrap_or(usize::MAX))?;
        header.fill_tensor(service, |target| self.read_into(range, target))
    }

    /// Copies a tensor to a range, and returns how many bytes it has.
    pub(crate) fn write_tensor(&self, range: &RegionRange, tensor: &Tensor) -> Result<usize> {
        let bytes = raw_bytes(&tensor_on_host(tensor)?)?;
        self.write_bytes(range, &bytes)?;
        Ok(bytes.len())
    }

    /// Fills `target` from the start of a range, which must be as long.
    fn read_into(&self, range: &RegionRange, target: &mut [u8]) -> Result<()> {
        let start = self.file_offset(range)?;
        self.file.read_exact_at(target, start).map_err(|error| self.region_error("read", &error))
    }

    /// All the bytes of a range.
    fn read_all(&self, range: &RegionRange) -> Result<Vec<u8>> {
        let start = self.file_offset(range)?;
        let mut bytes = vec![0; usize::try_from(range.byte_size).unwrap_or(usize::MAX)];
        self.file
            .read_exact_at(&mut bytes, start)
            .map_err(|error| self.region_error("read", &error))?;
        Ok(bytes)
    }

    /// Writes the bytes of a tensor to a range, which must be at least as long.
    fn write_bytes(&self, range: &RegionRange, bytes: &[u8]) -> Result<()> {
        range.check_room(bytes.len())?;
        let start = self.file_offset(range)?;
        self.file.write_all_at(bytes, start).map_err(|error| self.region_error("write", &error))
    }

    /// Where in the file a range starts.
    fn file_offset(&self, range: &RegionRange) -> Result<u64> {
        range.check_inside(self.status.byte_size)?;
        // Its client may have made the file shorter since.
        self.check_file()?;
        // Both ends were checked: this is below the end of the file.
        Ok(self.status.offset.saturating_add(range.offset))
    }

    pub(crate) fn open(status: SystemRegionStatus) -> Result<Self> {
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
        let SystemRegionStatus { name, key, offset, byte_size } = &self.status;
        let metadata =
            self.file.metadata().map_err(|error| self.region_error("look at", &error))?;
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

    fn region_error(&self, what: &str, error: &std::io::Error) -> Error {
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
    Ok(PathBuf::from(SHARED_MEMORY_FOLDER).join(file))
}

/// A file in `/dev/shm` that goes away with the test.
#[cfg(test)]
pub(crate) struct Scratch(String);

#[cfg(test)]
impl Scratch {
    pub(crate) fn new(name: &str, len: usize) -> Self {
        let key = format!("/tessera-test-{}-{name}", std::process::id());
        std::fs::write(path_of(&key).unwrap(), vec![7; len]).unwrap();
        Self(key)
    }

    pub(crate) fn region(&self, offset: u64, byte_size: u64) -> SystemRegionStatus {
        SystemRegionStatus { name: "r".into(), key: self.0.clone(), offset, byte_size }
    }
}

#[cfg(test)]
impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(path_of(&self.0).unwrap()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, byte_size: u64) -> RegionRange {
        RegionRange { region: "r".into(), offset, byte_size }
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
    fn a_region_must_be_inside_its_file() {
        let scratch = Scratch::new("inside", 16);
        for (offset, byte_size) in [(0, 17), (16, 1), (u64::MAX, 2), (0, 0)] {
            assert!(SystemRegion::open(scratch.region(offset, byte_size)).is_err(), "{offset}");
        }
        let error = SystemRegion::open(scratch.region(8, 9)).unwrap_err().to_string();
        assert!(error.contains("has 16 bytes, asked for 9 at offset 8"), "{error}");
    }

    #[test]
    fn a_range_must_be_inside_its_region() {
        let scratch = Scratch::new("range", 16);
        let region = SystemRegion::open(scratch.region(4, 8)).unwrap();
        region.write_bytes(&range(2, 3), &[1, 2, 3]).unwrap();
        let mut read = [0; 5];
        region.read_into(&range(1, 5), &mut read).unwrap();
        assert_eq!(read, [7, 1, 2, 3, 7]);
        assert_eq!(region.read_all(&range(6, 2)).unwrap(), [7, 7]);
        for (offset, byte_size) in [(0, 9), (8, 1), (u64::MAX, 1)] {
            assert!(region.read_all(&range(offset, byte_size)).is_err(), "{offset}");
        }
        let error = region.write_bytes(&range(0, 2), &[1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains("2 bytes were set aside, the tensor has 3"), "{error}");
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let scratch = Scratch::new("shorter", 16);
        let region = SystemRegion::open(scratch.region(0, 16)).unwrap();
        std::fs::write(path_of(&scratch.0).unwrap(), [7; 4]).unwrap();
        assert!(region.read_all(&range(0, 16)).is_err());
        assert!(region.write_bytes(&range(0, 16), &[0; 16]).is_err());
    }

    #[test]
    fn a_link_is_not_followed() {
        let scratch = Scratch::new("target", 16);
        let link = format!("{}-link", scratch.0);
        std::os::unix::fs::symlink(path_of(&scratch.0).unwrap(), path_of(&link).unwrap()).unwrap();
        let status =
            SystemRegionStatus { name: "r".into(), key: link.clone(), offset: 0, byte_size: 1 };
        let refused = SystemRegion::open(status).is_err();
        std::fs::remove_file(path_of(&link).unwrap()).unwrap();
        assert!(refused);
    }
}
