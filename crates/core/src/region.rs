//! Memory that tensors live in: where it is, who gives it back, and how others find it.

use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Where a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemoryLocation {
    /// Memory of this host that the CPU reads.
    Host,
    /// Memory of one GPU.
    Cuda(u32),
}

/// A piece of memory that somebody owns and gives back when dropped.
///
/// The address stays the same for as long as the region lives.
pub trait Region: Send + Sync {
    /// Where the memory is.
    fn location(&self) -> MemoryLocation;
    /// Address of the first byte, on the device that [`Region::location`] names.
    fn address(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn byte_len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }
    /// The bytes, where the CPU can read them.
    fn bytes(&self) -> Option<&[u8]>;
    /// The bytes to write; `None` where the CPU can't or where the region is read-only.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
    /// How other processes find this memory; `None` where they can't.
    fn pool_slot(&self) -> Option<PoolSlot> {
        None
    }
}

/// A buffer of a pool, as another process that opened the pool finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolSlot {
    /// The pool, unique over all processes and restarts.
    pub pool: PoolId,
    /// Number of the buffer in its pool.
    pub slot: u32,
    /// How often the buffer had been borrowed: tells this use of it from an earlier one.
    pub generation: u32,
}

/// Name of a pool, unique over all processes and restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    /// Who owns the pool: the number of its process' endpoint.
    pub owner: u64,
    /// Which of the owner's pools.
    pub number: u64,
}

/// Something that must have happened before a tensor's memory may be read.
///
/// On the CPU a tensor is there when it is handed over. A GPU may still be writing it: then the
/// hand-over carries the fence, and whoever reads waits for it, on its own stream or here.
pub trait Fence: Send + Sync {
    /// Whether it has happened.
    fn is_done(&self) -> bool;
    /// Waits until it has.
    fn wait_on_host(&self) -> Result<()>;
    /// Has the stream of work that this process gives to the device wait until it has; the host
    /// goes on. Waits here where there is no such stream.
    fn wait_in_stream(&self) -> Result<()> {
        self.wait_on_host()
    }
}

/// Memory of a device that others know already: they wait until it is written.
pub struct UnwrittenRegion(pub Arc<dyn Region>);

impl Region for UnwrittenRegion {
    fn location(&self) -> MemoryLocation {
        self.0.location()
    }
    fn address(&self) -> NonNull<u8> {
        self.0.address()
    }
    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// Memory with one owner, who may write it.
pub type Buffer = Box<dyn Region>;

/// Heap memory, aligned for vector instructions.
pub struct HostBuffer {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

/// Cache lines and AVX-512 registers are this long.
const ALIGNMENT: usize = 64;

impl HostBuffer {
    /// A buffer of `len` zeroed bytes.
    pub fn new(len: usize) -> Self {
        Self::from_storage(vec![0; len.saturating_add(ALIGNMENT)], len)
    }

    /// A buffer of `len` zeroed bytes; fails where there is not that much memory.
    pub fn try_new(len: usize) -> Result<Self> {
        let mut storage = Vec::new();
        let whole = len.saturating_add(ALIGNMENT);
        storage
            .try_reserve_exact(whole)
            .map_err(|_| Error::usage(format!("no memory for a tensor of {len} bytes")))?;
        storage.resize(whole, 0);
        Ok(Self::from_storage(storage, len))
    }

    fn from_storage(storage: Vec<u8>, len: usize) -> Self {
        let start = storage.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { storage, start, len }
    }
}

impl Region for HostBuffer {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::from(&self.storage[self.start..]).cast()
    }
    fn byte_len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.storage[self.start..self.start + self.len])
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.storage[self.start..self.start + self.len])
    }
}

/// Read-only host memory that is shared by reference count (a mapping, a decoded file, a frame).
impl Region for Bytes {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::from(&self[..]).cast()
    }
    fn byte_len(&self) -> usize {
        Bytes::len(self)
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_at_a_cache_line() {
        for len in [0, 1, 63, 64, 1000] {
            let buffer = HostBuffer::new(len);
            assert_eq!(buffer.address().as_ptr().addr() % ALIGNMENT, 0);
            assert_eq!(buffer.bytes().unwrap().len(), len);
        }
    }
}
