//! Memory for the outputs of blocks, used again from run to run.
//!
//! Memory that is fresh from the system costs a page fault for every 4 kB touched: for the 3.2 MB
//! between two blocks of a ResNet that is as long as the copy itself.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{
    DType, HostBuffer, MemoryLocation, Region, Result, TensorMut, element_count, lock,
};

/// Buffers of one size that are kept for the next run; more than these are given back.
const MOST_KEPT: usize = 8;

/// Buffers that are free, by size.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: Mutex<HashMap<usize, Vec<HostBuffer>>>,
}

impl BufferPool {
    /// A tensor over a buffer that comes back to the pool when the last reference is gone.
    ///
    /// What was in the buffer before is still there.
    pub(crate) fn allocate_tensor(
        self: &Arc<Self>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<TensorMut> {
        let len = element_count(shape).and_then(|count| dtype.byte_len(count)).unwrap_or(0);
        let free = self.lock_free_buffers().get_mut(&len).and_then(Vec::pop);
        let buffer = Some(free.unwrap_or_else(|| HostBuffer::new(len)));
        let pooled = PooledBuffer { buffer, pool: Arc::downgrade(self) };
        TensorMut::from_buffer(dtype, shape, Box::new(pooled))
    }

    fn lock_free_buffers(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<HostBuffer>>> {
        lock(&self.free)
    }
}

/// A buffer that goes back to its pool when dropped.
struct PooledBuffer {
    buffer: Option<HostBuffer>,
    pool: Weak<BufferPool>,
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let (Some(buffer), Some(pool)) = (self.buffer.take(), self.pool.upgrade()) {
            let mut free = pool.lock_free_buffers();
            let same = free.entry(buffer.byte_len()).or_default();
            if same.len() < MOST_KEPT {
                same.push(buffer);
            }
        }
    }
}

impl Region for PooledBuffer {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        self.buffer.as_ref().map_or(NonNull::dangling(), Region::address)
    }
    fn byte_len(&self) -> usize {
        self.buffer.as_ref().map_or(0, Region::byte_len)
    }
    fn bytes(&self) -> Option<&[u8]> {
        self.buffer.as_ref()?.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.buffer.as_mut()?.bytes_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_nobody_reads_it() {
        let pool = Arc::new(BufferPool::default());
        let first = pool.allocate_tensor(DType::F32, &[16]).unwrap().freeze();
        let address = first.address();
        let second = pool.allocate_tensor(DType::F32, &[16]).unwrap().freeze();
        assert_ne!(second.address(), address);
        drop(first);
        assert_eq!(pool.allocate_tensor(DType::F32, &[16]).unwrap().freeze().address(), address);
    }

    #[test]
    fn a_pool_keeps_no_more_than_it_should() {
        let pool = Arc::new(BufferPool::default());
        let many: Vec<_> =
            (0..10).map(|_| pool.allocate_tensor(DType::U8, &[100]).unwrap()).collect();
        drop(many);
        assert_eq!(pool.lock_free_buffers()[&100].len(), MOST_KEPT);
    }
}
