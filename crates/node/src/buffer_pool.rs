//! Memory for the outputs of blocks, used again from run to run.
//!
//! Memory that is fresh from the system costs a page fault for every 4 kB touched: for the 3.2 MB
//! between two blocks of a ResNet that is as long as the copy itself.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tessera_core::{
    DType, HostBuffer, MemoryLocation, Region, Result, TensorMut, element_count, lock,
};

/// Buffers of one size that are kept for the next run; more than these are given back.
const MOST_KEPT: usize = 8;

/// Bytes of buffers of all sizes that are kept; what is more is given back at once.
const MOST_KEPT_BYTES: usize = 256 << 20;

/// Buffers that are free.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: Mutex<FreeBuffers>,
}

/// Buffers that are free, by size; each with the time since when it is.
#[derive(Default)]
struct FreeBuffers {
    by_size: HashMap<usize, Vec<(Instant, HostBuffer)>>,
    bytes: usize,
}

impl FreeBuffers {
    /// The one that was in use last: its memory is in the caches still.
    fn take(&mut self, len: usize) -> Option<HostBuffer> {
        let (_, buffer) = self.by_size.get_mut(&len)?.pop()?;
        self.bytes -= len;
        Some(buffer)
    }

    /// Keeps a buffer, or returns it where there are enough.
    fn keep(&mut self, buffer: HostBuffer) -> Option<HostBuffer> {
        let len = buffer.byte_len();
        let same = self.by_size.entry(len).or_default();
        if same.len() >= MOST_KEPT || self.bytes.saturating_add(len) > MOST_KEPT_BYTES {
            return Some(buffer);
        }
        same.push((Instant::now(), buffer));
        self.bytes += len;
        None
    }

    /// Takes those out that have been free for at least this long.
    fn take_idle(&mut self, idle: Duration) -> Vec<HostBuffer> {
        let mut taken = Vec::new();
        for same in self.by_size.values_mut() {
            // The first has been free for longest.
            let count = same.iter().take_while(|(since, _)| since.elapsed() >= idle).count();
            taken.extend(same.drain(..count).map(|(_, buffer)| buffer));
        }
        self.by_size.retain(|_, same| !same.is_empty());
        self.bytes -= taken.iter().map(Region::byte_len).sum::<usize>();
        taken
    }
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
        let free = lock(&self.free).take(len);
        let buffer = Some(free.unwrap_or_else(|| HostBuffer::new(len)));
        let pooled = PooledBuffer { buffer, pool: Arc::downgrade(self) };
        TensorMut::from_buffer(dtype, shape, Box::new(pooled))
    }

    /// Gives back what has been free for at least this long.
    pub(crate) fn release_idle_memory(&self, idle: Duration) {
        let idle = lock(&self.free).take_idle(idle);
        // Not under the lock: it takes a while.
        drop(idle);
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
            let surplus = lock(&pool.free).keep(buffer);
            drop(surplus);
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
        assert_eq!(lock(&pool.free).by_size[&100].len(), MOST_KEPT);
        let large: Vec<_> = (1..4)
            .map(|number| pool.allocate_tensor(DType::U8, &[(100 << 20) + number]).unwrap())
            .collect();
        drop(large);
        assert_eq!(lock(&pool.free).bytes, MOST_KEPT * 100 + (200 << 20) + 3, "of all sizes");
    }

    #[test]
    fn what_is_idle_is_given_back() {
        let pool = Arc::new(BufferPool::default());
        let sizes = [100, 200, 300];
        let all = sizes.map(|size| pool.allocate_tensor(DType::U8, &[size]).unwrap());
        drop(all);
        pool.release_idle_memory(Duration::from_secs(60));
        assert_eq!(lock(&pool.free).bytes, 600);
        pool.release_idle_memory(Duration::ZERO);
        assert_eq!(lock(&pool.free).bytes, 0);
        assert!(lock(&pool.free).by_size.is_empty());
    }
}
