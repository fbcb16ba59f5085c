//! Memory for tensors that units hand over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tessera_core::{Buffer, DType, Result, Tensor, TensorMut, byte_len, lock};
use tessera_engine::to_host;
use tessera_tensormq::{Buffers, Endpoint, Pool, Wait};

use crate::buffer_pool::BufferPool;

/// Where memory for tensors comes from.
pub trait TensorMemory: Send + Sync {
    /// Memory for one tensor. What was in it before may still be there.
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut>;

    /// The same tensor where those who are to read it can, copied where it must be.
    fn adopt_tensor(&self, tensor: Tensor, wait: Wait) -> Result<Tensor>;
}

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
}

/// Buffers that are made at a time, and most of one size.
pub(crate) const BUFFERS_PER_POOL: usize = 4;
const MOST_BUFFERS_OF_A_SIZE: usize = 512;

/// Makes a pool of these buffers.
type MakePool = Box<dyn Fn(&[Buffers]) -> Result<Pool> + Send + Sync>;

/// Memory that other processes read without a copy.
pub struct SharedHostMemory {
    make_pool: MakePool,
    /// Pools by the size of their buffers.
    pools: Mutex<BTreeMap<usize, Vec<Pool>>>,
    /// Most buffers of one size.
    most_buffers: usize,
}

impl SharedHostMemory {
    /// Memory in pools of this endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        let make_pool = move |buffers: &[Buffers]| endpoint.create_pool(buffers);
        Self::from_pools(MOST_BUFFERS_OF_A_SIZE, Box::new(make_pool))
    }

    /// Memory in pools that are made so, with at most so many buffers of one size.
    pub(crate) fn from_pools(most_buffers: usize, make_pool: MakePool) -> Self {
        Self { make_pool, pools: Mutex::default(), most_buffers }
    }

    /// A buffer that is free, or `None` where there are as many as there may be.
    fn borrow_buffer(&self, size: usize) -> Result<Result<Buffer, Pool>> {
        let mut pools = lock(&self.pools);
        let same = pools.entry(size).or_default();
        for pool in same.iter() {
            if let Ok(buffer) = pool.borrow_buffer(size, Wait::No) {
                return Ok(Ok(buffer));
            }
        }
        match same.last() {
            Some(last) if same.len() * BUFFERS_PER_POOL >= self.most_buffers => {
                Ok(Err(last.clone()))
            }
            _ => {
                // Pages that nobody has written to take no memory.
                let buffers = [Buffers { bytes: size, count: BUFFERS_PER_POOL }];
                let pool = (self.make_pool)(&buffers)?;
                let buffer = pool.borrow_buffer(size, Wait::No);
                same.push(pool);
                buffer.map(Ok)
            }
        }
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
    use super::*;

    #[test]
    fn a_size_has_room_and_wastes_at_most_a_quarter() {
        for len in [1, 4096, 4097, 5000, 8192, 602_112, 3_211_264, 1 << 30] {
            let size = size_class(len);
            assert!(size >= len, "{len} in {size}");
            assert!(len <= 4096 || size <= len + len / 4 + 1, "{len} in {size}");
        }
    }
}
