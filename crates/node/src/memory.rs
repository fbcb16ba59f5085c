//! Memory for tensors that units hand over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Buffer, DType, Error, Result, Tensor, TensorMut, byte_len, lock};
use tessera_engine::to_host;
use tessera_tensormq::{Buffers, Endpoint, Pool, Wait};

use crate::buffer_pool::BufferPool;

/// Where memory for tensors comes from.
pub trait TensorMemory: Send + Sync {
    /// Memory for one tensor. What was in it before may still be there.
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut>;

    /// The same tensor where those who are to read it can, copied where it must be.
    fn adopt_tensor(&self, tensor: Tensor, wait: Wait) -> Result<Tensor>;

    /// Gives back what nobody has used for some seconds. To be called from time to time.
    fn release_idle_memory(&self) {}
}

/// How long memory is kept that nobody uses.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// Memory of this process alone.
#[derive(Default)]
pub struct HostMemory(Arc<BufferPool>);

impl TensorMemory for HostMemory {
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], _: Wait) -> Result<TensorMut> {
        self.0.allocate_tensor(dtype, shape)
    }

    fn adopt_tensor(&self, tensor: Tensor, _: Wait) -> Result<Tensor> {
        Ok(tensor)
    }

    fn release_idle_memory(&self) {
        self.0.release_idle_memory(IDLE_TIME);
    }
}

/// Buffers that are made at first; later as many at a time as there are.
pub(crate) const BUFFERS_PER_POOL: usize = 4;
const MOST_BUFFERS_PER_POOL: usize = 64;
/// Buffers from this size on are made one at a time.
const LARGE_BUFFER: usize = 16 << 20;
/// What all buffers of a memory may have, used or not; pages that nobody has written to take none.
const MOST_BYTES: usize = 8 << 30;

/// Makes a pool of these buffers.
type MakePool = Box<dyn Fn(&[Buffers]) -> Result<Pool> + Send + Sync>;

/// Memory that other processes read without a copy.
pub struct SharedHostMemory {
    make_pool: MakePool,
    pools: Mutex<PoolTable>,
    /// Most buffers of one size.
    most_buffers: usize,
}

/// Pools by the size of their buffers.
#[derive(Default)]
struct PoolTable {
    by_size: BTreeMap<usize, Vec<AgedPool>>,
    bytes: usize,
}

/// A pool, and since when nobody has borrowed from it.
struct AgedPool {
    pool: Pool,
    borrow_count: u64,
    since: Instant,
}

impl AgedPool {
    fn new(pool: Pool) -> Self {
        Self { borrow_count: pool.borrow_count(), since: Instant::now(), pool }
    }

    /// Whether nobody has borrowed from it for at least this long, and nobody has any of it.
    fn is_idle(&mut self, idle: Duration) -> bool {
        let borrow_count = self.pool.borrow_count();
        if borrow_count != self.borrow_count {
            (self.borrow_count, self.since) = (borrow_count, Instant::now());
        }
        if self.since.elapsed() < idle {
            return false;
        }
        if self.pool.buffers_in_use() == 0 {
            return true;
        }
        // Others may hold them for messages that were taken long ago.
        self.pool.request_buffers_back();
        false
    }
}

impl PoolTable {
    /// Takes pools out that are idle.
    fn take_idle(&mut self, idle: Duration) -> Vec<AgedPool> {
        let mut taken = Vec::new();
        for (&size, same) in &mut self.by_size {
            let found: Vec<AgedPool> = same.extract_if(.., |pool| pool.is_idle(idle)).collect();
            let count = found.iter().map(|pool| pool.pool.buffer_count()).sum::<usize>();
            self.bytes = self.bytes.saturating_sub(count * size);
            taken.extend(found);
        }
        self.by_size.retain(|_, same| !same.is_empty());
        taken
    }
}

impl SharedHostMemory {
    /// Memory in pools of this endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        let make_pool = move |buffers: &[Buffers]| endpoint.create_pool(buffers);
        Self::from_pools(usize::MAX, Box::new(make_pool))
    }

    /// Memory in pools that are made so, with at most so many buffers of one size.
    pub(crate) fn from_pools(most_buffers: usize, make_pool: MakePool) -> Self {
        Self { make_pool, pools: Mutex::default(), most_buffers }
    }

    /// A buffer that is free; else a pool to wait at, where there are as many as there may be.
    fn borrow_buffer(&self, size: usize) -> Result<Result<Buffer, Pool>> {
        let mut pools = lock(&self.pools);
        let same = pools.by_size.entry(size).or_default();
        for aged in same.iter() {
            if let Ok(buffer) = aged.pool.borrow_buffer(size, Wait::No) {
                return Ok(Ok(buffer));
            }
        }
        let there: usize = same.iter().map(|aged| aged.pool.buffer_count()).sum();
        let last = same.last().map(|aged| aged.pool.clone());
        let count = match size {
            LARGE_BUFFER.. => 1,
            _ => there.clamp(BUFFERS_PER_POOL, MOST_BUFFERS_PER_POOL),
        };
        let count = count.min(self.most_buffers.saturating_sub(there));
        let bytes = count.saturating_mul(size);
        if pools.bytes.saturating_add(bytes) > MOST_BYTES {
            // Of all sizes: what nobody uses now makes room.
            drop(pools.take_idle(Duration::ZERO));
        }
        let is_full = count == 0 || pools.bytes.saturating_add(bytes) > MOST_BYTES;
        match last {
            Some(last) if is_full => return Ok(Err(last)),
            None if is_full => {
                let limit = MOST_BYTES >> 30;
                return Err(Error::full(format!("tensors under way take {limit} GiB already")));
            }
            _ => {}
        }
        // Pages that nobody has written to take no memory.
        let pool = (self.make_pool)(&[Buffers { bytes: size, count }])?;
        let buffer = pool.borrow_buffer(size, Wait::No);
        pools.bytes += bytes;
        pools.by_size.entry(size).or_default().push(AgedPool::new(pool));
        buffer.map(Ok)
    }
}

impl TensorMemory for SharedHostMemory {
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut> {
        let len = byte_len(dtype, shape)?;
        let size = size_class(len);
        let buffer = match self.borrow_buffer(size)? {
            Ok(buffer) => buffer,
            Err(pool) => pool.borrow_buffer(size, wait)?,
        };
        TensorMut::from_buffer(dtype, shape, buffer)
    }

    fn adopt_tensor(&self, tensor: Tensor, wait: Wait) -> Result<Tensor> {
        let is_ours = tensor.region().is_some_and(|(region, _)| region.pool_slot().is_some());
        if is_ours {
            return Ok(tensor);
        }
        let tensor = to_host(&tensor)?.wait_fence_on_host()?;
        let Some(bytes) = tensor.bytes() else {
            return Ok(tensor);
        };
        let mut copy = self.allocate_tensor(tensor.dtype(), tensor.shape(), wait)?;
        if let Some(target) = copy.bytes_mut() {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }

    fn release_idle_memory(&self) {
        let idle = lock(&self.pools).take_idle(IDLE_TIME);
        // Not under the lock: it takes a while.
        drop(idle);
    }
}

/// Sizes go up in quarters of a power of two, so that tensors of many shapes share few pools.
pub(crate) fn size_class(len: usize) -> usize {
    const SMALLEST: usize = 4096;
    if len <= SMALLEST {
        return SMALLEST;
    }
    let step = (1usize << (len - 1).ilog2()) / 4;
    len.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use tessera_tensormq::EndpointOptions;

    use super::*;

    #[test]
    fn pools_grow_with_what_is_used_and_go_when_they_are_idle() {
        let memory = SharedHostMemory::new(Endpoint::start(EndpointOptions::default()).unwrap());
        let borrow =
            |len: usize| memory.allocate_tensor(DType::U8, &[len], Wait::No).unwrap().freeze();
        let small: Vec<Tensor> = (0..600).map(|_| borrow(100)).collect();
        let large: Vec<Tensor> = (0..3).map(|_| borrow(LARGE_BUFFER)).collect();
        let counts = |size: usize| -> Vec<usize> {
            let table = lock(&memory.pools);
            let same = table.by_size.get(&size).map_or(&[][..], Vec::as_slice);
            same.iter().map(|aged| aged.pool.buffer_count()).collect()
        };
        assert_eq!(counts(4096)[..6], [4, 4, 8, 16, 32, 64]);
        assert_eq!(counts(LARGE_BUFFER), [1, 1, 1]);
        drop(lock(&memory.pools).take_idle(Duration::ZERO));
        assert_eq!(counts(LARGE_BUFFER).len(), 3, "in use");
        drop((small, large));
        drop(lock(&memory.pools).take_idle(Duration::ZERO));
        assert_eq!((counts(4096), counts(LARGE_BUFFER)), (vec![], vec![]));
        assert_eq!(lock(&memory.pools).bytes, 0);
    }

    #[test]
    fn a_size_has_room_and_wastes_at_most_a_quarter() {
        for len in [1, 4096, 4097, 5000, 8192, 602_112, 3_211_264, 1 << 30] {
            let size = size_class(len);
            assert!(size >= len, "{len} in {size}");
            assert!(len <= 4096 || size <= len + len / 4 + 1, "{len} in {size}");
        }
    }
}
