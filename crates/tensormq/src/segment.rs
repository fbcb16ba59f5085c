//! Memory that processes share: anonymous files, handed over as descriptors.
//!
//! Such a segment has no name: nobody can open it who was not given it, and the kernel frees it
//! when the last process that has it is gone, however that process ended. There is nothing to clean
//! up, and nothing to find under the shared-memory folder.
//!
//! Segments can't be shrunk (they are sealed), so that a peer can't make us fault by cutting one
//! short; a segment that came from a peer is refused unless it has that seal and the right length.

#![allow(unsafe_code, reason = "shared memory is read and written through a raw mapping")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tessera_core::{Error, Result};

/// Who may write a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentWriters {
    /// Everyone who has it.
    All,
    /// Its creator alone; the kernel refuses writable mappings to others.
    Creator,
}

/// A mapping of shared memory.
pub(crate) struct Segment {
    fd: OwnedFd,
    address: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping stays where it is until drop, and every access through a shared reference is
// atomic or goes by the rules of the unsafe functions below.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory of `len` zeroed bytes. Pages take no memory before they are written.
    pub(crate) fn create(len: usize, writers: SegmentWriters) -> Result<Self> {
        let fail = |error: rustix::io::Errno| {
            Error::from_io(format!("{len} bytes of shared memory"), &error.into())
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("tessera", flags).map_err(fail)?;
        // Anonymous files are open to all by default; through /proc others could reach them.
        fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        ftruncate(&fd, len as u64).map_err(fail)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(fail)?;
        let segment = Self::map_descriptor(fd, len, true).map_err(fail)?;
        if writers == SegmentWriters::Creator {
            fcntl_add_seals(&segment.fd, SealFlags::FUTURE_WRITE).map_err(fail)?;
        }
        fcntl_add_seals(&segment.fd, SealFlags::SEAL).map_err(fail)?;
        Ok(segment)
    }

    /// Memory that a peer created: refused unless it has `len` bytes and can't lose any.
    pub(crate) fn open(fd: OwnedFd, len: usize, writable: bool) -> Result<Self> {
        let fail =
            |error: rustix::io::Errno| Error::from_io("a peer's shared memory", &error.into());
        let seals = fcntl_get_seals(&fd).map_err(fail)?;
        let actual = fstat(&fd).map_err(fail)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(actual) != Ok(len) {
            return Err(Error::invalid(format!(
                "a peer's shared memory has {actual} bytes and seals {seals:?}, not {len} for good"
            )));
        }
        Self::map_descriptor(fd, len, writable).map_err(fail)
    }

    fn map_descriptor(fd: OwnedFd, len: usize, writable: bool) -> rustix::io::Result<Self> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a fresh mapping that overlaps nothing.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | write,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )?
        };
        let address = NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { fd, address, len, writable })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The number at `offset`, which both sides change atomically.
    ///
    /// # Panics
    /// Where `offset` is not aligned and within the segment: offsets are ours, never a peer's.
    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(self.writable && offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: in bounds, aligned (mappings start at a page), and only ever accessed atomically.
        unsafe { self.address.add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// The number at `offset`, which both sides change atomically.
    ///
    /// # Panics
    /// Where `offset` is not aligned and within the segment: offsets are ours, never a peer's.
    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable && offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: as above.
        unsafe { self.address.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Copies bytes in; `None` where they don't fit.
    ///
    /// A peer that reads them at the same time reads garbage; the callers' protocols rule that out.
    pub(crate) fn write_bytes(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        if !self.writable || offset.checked_add(bytes.len())? > self.len {
            return None;
        }
        // SAFETY: in bounds and writable; the source is not part of the mapping, because references
        // into it are only given out for the payload of pools, which is never written this way.
        unsafe {
            let target = self.address.add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len());
        }
        Some(())
    }

    /// Copies bytes out; `None` where there are not that many.
    ///
    /// The copy is what is checked and used: a peer may change the original meanwhile.
    pub(crate) fn read_bytes(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let mut bytes = Vec::with_capacity(len);
        // SAFETY: in bounds, and the target has that capacity.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address.add(offset).as_ptr(),
                bytes.as_mut_ptr(),
                len,
            );
            bytes.set_len(len);
        }
        Some(bytes)
    }

    /// The bytes of a buffer.
    ///
    /// # Safety
    /// Nobody may write them while the slice lives.
    pub(crate) unsafe fn payload_slice(&self, offset: usize, len: usize) -> Option<&[u8]> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: in bounds; that nobody writes is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(self.address.add(offset).as_ptr(), len) })
    }

    /// The bytes of a buffer, to write.
    ///
    /// # Safety
    /// Nobody else may read or write them while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the caller has the buffer for itself")]
    pub(crate) unsafe fn payload_slice_mut(&self, offset: usize, len: usize) -> Option<&mut [u8]> {
        if !self.writable || offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: in bounds and writable; that nobody else is there is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.add(offset).as_ptr(), len) })
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every reference into it borrows from self.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_creator_can_write_where_it_says_so() {
        let segment = Segment::create(4096, SegmentWriters::Creator).unwrap();
        let fd = segment.as_fd().try_clone_to_owned().unwrap();
        assert!(Segment::open(fd.try_clone().unwrap(), 4096, true).is_err());
        let peer = Segment::open(fd, 4096, false).unwrap();
        segment.write_bytes(10, b"there").unwrap();
        assert_eq!(peer.read_bytes(10, 5).unwrap(), b"there");
        assert_eq!(peer.write_bytes(0, b"x"), None);
    }

    #[test]
    fn a_segment_is_its_owners_alone_and_stays_as_long_as_it_is() {
        let segment = Segment::create(4096, SegmentWriters::All).unwrap();
        let status = fstat(&segment.fd).unwrap();
        assert_eq!(status.st_mode & 0o777, 0o600);
        assert!(ftruncate(&segment.fd, 0).is_err());
        let fd = segment.as_fd().try_clone_to_owned().unwrap();
        assert!(Segment::open(fd, 8192, true).is_err());
        let open_end = memfd_create("short", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open_end, 4096).unwrap();
        assert!(Segment::open(open_end, 4096, true).is_err());
    }
}
