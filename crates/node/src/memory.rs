//! Memory for tensors that blocks hand over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tessera_core::{DType, Location, Result, Tensor, TensorMut, byte_len};
use tessera_engine::{
    Pinned, bring_from_device, bring_from_device_later, copy_across, copy_on_device, to_host,
};
use tessera_tensormq::{Buffers, Courier, Pool, Wait};

use crate::buffers::BufferPool;
use crate::reach::on_host;

/// Where memory for tensors comes from.
pub trait Memory: Send + Sync {
    /// Memory for one tensor. What was in it before may still be there.
    fn tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut>;

    /// Memory on the GPU for one tensor that others read there; `None` where there is none.
    fn tensor_on_gpu(&self, _: DType, _: &[usize]) -> Option<TensorMut> {
        None
    }

    /// Has those who wait for tensors on a GPU know when they are written: once all that it was told so far is done.
    fn written(&self, _: &[Tensor]) -> Result<()> {
        Ok(())
    }

    /// The same tensor on another GPU, where those who run there read it; `None` where that can't be.
    fn on_another(&self, _: &Tensor, _: u32) -> Option<Tensor> {
        None
    }

    /// The same tensors where those who have them next read them with the CPU. All copies are on their way before the first is
    /// waited for.
    fn on_host(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
        on_host(tensors)
    }

    /// The same where copies need not be over: those who get them from us wait for that. `None` where they can't.
    ///
    /// Whoever asked keeps the tensors until they are settled, and has nobody wait where that fails.
    fn on_host_later(&self, _: &[Tensor]) -> Option<Vec<Tensor>> {
        None
    }

    /// Bytes of the buffers on a GPU that there are.
    fn gpu_bytes(&self) -> u64 {
        0
    }

    /// The same tensor where those who are to read it can, copied where it must be.
    fn adopt(&self, tensor: Tensor, wait: Wait) -> Result<Tensor>;
}

/// Memory of this process alone.
#[derive(Default)]
pub struct HostMemory(Arc<BufferPool>);

impl Memory for HostMemory {
    fn tensor(&self, dtype: DType, shape: &[usize], _: Wait) -> Result<TensorMut> {
        self.0.tensor(dtype, shape)
    }

    fn adopt(&self, tensor: Tensor, _: Wait) -> Result<Tensor> {
        Ok(tensor)
    }
}

/// Memory of this process that a GPU copies from while the host does other things.
pub struct PinnedMemory(Pinned);

impl PinnedMemory {
    /// Memory for this GPU.
    pub fn new(gpu: u32) -> Result<Self> {
        Pinned::new(gpu).map(Self)
    }
}

impl Memory for PinnedMemory {
    fn tensor(&self, dtype: DType, shape: &[usize], _: Wait) -> Result<TensorMut> {
        let len = byte_len(dtype, shape)?;
        TensorMut::over(dtype, shape, self.0.buffer(len)?)
    }

    fn adopt(&self, tensor: Tensor, _: Wait) -> Result<Tensor> {
        Ok(tensor)
    }
}

/// Buffers that are made at a time, and most of one size.
const AT_A_TIME: usize = 4;
const MOST_OF_A_SIZE: usize = 512;
/// Most of one size on a GPU: the rest goes through the host.
const MOST_ON_GPU: usize = 64;
/// Most of one size that a GPU copies to: they are in memory from the beginning on. The rest is copied twice.
const MOST_RESULTS: usize = 16;

/// Memory that other processes read without a copy.
pub struct SharedMemory {
    courier: Courier,
    /// Pools by the size of their buffers.
    pools: Mutex<BTreeMap<usize, Vec<Pool>>>,
    /// Most buffers of one size.
    most: usize,
    /// A GPU that copies to it.
    gpu: Option<u32>,
}

impl SharedMemory {
    /// Memory in pools of this courier.
    pub fn new(courier: Courier) -> Self {
        Self { courier, pools: Mutex::default(), most: MOST_OF_A_SIZE, gpu: None }
    }

    /// Memory that a GPU copies to as well.
    fn copied_to_by(courier: Courier, gpu: u32) -> Self {
        Self { gpu: Some(gpu), most: MOST_RESULTS, ..Self::new(courier) }
    }

    /// A buffer that is free, or `None` where there are as many as there may be.
    fn free(&self, size: usize) -> Result<Result<tessera_core::Buffer, Pool>> {
        let mut pools = self.pools.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let same = pools.entry(size).or_default();
        for pool in same.iter() {
            if let Ok(buffer) = pool.borrow(size, Wait::No) {
                return Ok(Ok(buffer));
            }
        }
        match same.last() {
            Some(last) if same.len() * AT_A_TIME >= self.most => Ok(Err(last.clone())),
            _ => {
                // Pages that nobody has written to take no memory.
                let buffers = [Buffers { bytes: size, count: AT_A_TIME }];
                let pool = match self.gpu {
                    Some(gpu) => self.courier.pool_for(gpu, &buffers)?,
                    None => self.courier.pool(&buffers)?,
                };
                let buffer = pool.borrow(size, Wait::No);
                same.push(pool);
                buffer.map(Ok)
            }
        }
    }
}

impl Memory for SharedMemory {
    fn tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut> {
        let len = byte_len(dtype, shape)?;
        let size = size_class(len);
        let buffer = match self.free(size)? {
            Ok(buffer) => buffer,
            Err(pool) => pool.borrow(size, wait)?,
        };
        TensorMut::over(dtype, shape, buffer)
    }

    fn adopt(&self, tensor: Tensor, wait: Wait) -> Result<Tensor> {
        let is_ours = tensor.region().is_some_and(|(region, _)| region.pooled().is_some());
        if is_ours {
            return Ok(tensor);
        }
        let tensor = to_host(&tensor)?.settled()?;
        let Some(bytes) = tensor.bytes() else {
            return Ok(tensor);
        };
        let mut copy = self.tensor(tensor.dtype(), tensor.shape(), wait)?;
        if let Some(target) = copy.bytes_mut() {
            target.copy_from_slice(bytes);
        }
        Ok(copy.freeze())
    }
}

/// Memory on a GPU that other processes read there; where that can't be, on the host.
pub struct DeviceMemory {
    gpu: u32,
    host: SharedMemory,
    /// What the GPU copies results to.
    results: SharedMemory,
    /// Pools by GPU and the size of their buffers; `None` once it turned out that others can't open them.
    pools: Mutex<Option<Pools>>,
}

/// Pools by GPU and the size of their buffers.
type Pools = BTreeMap<(u32, usize), Vec<Pool>>;

impl DeviceMemory {
    /// Memory in pools of this courier.
    pub fn new(courier: Courier, gpu: u32) -> Self {
        let results = SharedMemory::copied_to_by(courier.clone(), gpu);
        let host = SharedMemory::new(courier);
        Self { gpu, host, results, pools: Mutex::new(Some(BTreeMap::new())) }
    }

    /// A buffer on the GPU; `None` where there can be none that others open, or where all are in use.
    fn free(&self, gpu: u32, size: usize) -> Option<tessera_core::Buffer> {
        let mut pools = self.pools.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let same = pools.as_mut()?.entry((gpu, size)).or_default();
        for pool in same.iter() {
            if let Ok(buffer) = pool.borrow(size, Wait::No) {
                return Some(buffer);
            }
        }
        if same.len() * AT_A_TIME >= MOST_ON_GPU {
            return None;
        }
        match self.host.courier.pool_on(gpu, &[Buffers { bytes: size, count: AT_A_TIME }]) {
            Ok(pool) => {
                let buffer = pool.borrow(size, Wait::No).ok();
                same.push(pool);
                buffer
            }
            Err(error) => {
                tracing::warn!(%error, "tensors go to other processes through the host's memory");
                *pools = None;
                None
            }
        }
    }
}

impl DeviceMemory {
    /// Where the GPU copies these to.
    fn places(&self, tensors: &[Tensor]) -> Result<Vec<TensorMut>> {
        let place = |tensor: &Tensor| self.results.tensor(tensor.dtype(), tensor.shape(), Wait::No);
        tensors.iter().map(place).collect()
    }
}

impl Memory for DeviceMemory {
    fn tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut> {
        self.host.tensor(dtype, shape, wait)
    }

    fn written(&self, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.host.courier.written(tensor))
    }

    fn on_another(&self, tensor: &Tensor, gpu: u32) -> Option<Tensor> {
        let buffer = self.free(gpu, size_class(tensor.byte_len()))?;
        let mut copy = TensorMut::over(tensor.dtype(), tensor.shape(), buffer).ok()?;
        copy_across(tensor, &mut copy).ok()?;
        Some(copy.freeze())
    }

    fn on_host(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if tensors.iter().any(|tensor| tensor.location() == Location::Host) {
            return on_host(tensors);
        }
        // Straight to where the next process reads them.
        match self.places(&tensors) {
            Ok(places) => bring_from_device(tensors.into_iter().zip(places).collect()),
            Err(_) => on_host(tensors),
        }
    }

    fn on_host_later(&self, tensors: &[Tensor]) -> Option<Vec<Tensor>> {
        // Flags are written in the stream of this GPU.
        if tensors.iter().any(|tensor| tensor.location() != Location::Cuda(self.gpu)) {
            return None;
        }
        let places = self.places(tensors).ok()?;
        let tensors = tensors.iter().cloned().zip(places).collect();
        let brought = bring_from_device_later(tensors, |brought| self.written(brought));
        brought.inspect_err(|error| tracing::debug!(%error, "no answer goes ahead")).ok()
    }

    fn gpu_bytes(&self) -> u64 {
        let pools = self.pools.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let sizes = pools.iter().flatten().map(|((_, size), same)| size * AT_A_TIME * same.len());
        sizes.sum::<usize>() as u64
    }

    fn tensor_on_gpu(&self, dtype: DType, shape: &[usize]) -> Option<TensorMut> {
        let len = byte_len(dtype, shape).ok()?;
        TensorMut::over(dtype, shape, self.free(self.gpu, size_class(len))?).ok()
    }

    fn adopt(&self, tensor: Tensor, wait: Wait) -> Result<Tensor> {
        let is_ours = tensor.region().is_some_and(|(region, _)| region.pooled().is_some());
        if tensor.location() == Location::Host || is_ours {
            return self.host.adopt(tensor, wait);
        }
        match self.free(self.gpu, size_class(tensor.byte_len())) {
            Some(buffer) => {
                let mut copy = TensorMut::over(tensor.dtype(), tensor.shape(), buffer)?;
                copy_on_device(&tensor, &mut copy)?;
                Ok(copy.freeze())
            }
            None => self.host.adopt(tensor, wait),
        }
    }
}

/// Sizes go up in quarters of a power of two, so that tensors of many shapes share few pools.
fn size_class(len: usize) -> usize {
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
    fn where_there_is_no_memory_to_share_on_a_gpu_tensors_go_through_the_host() {
        // A GPU that no machine has; as where CUDA IPC is missing, no pool can be made.
        let courier = Courier::start(tessera_tensormq::CourierOptions::default()).unwrap();
        let memory = DeviceMemory::new(courier, 4000);
        for _ in 0..2 {
            assert!(memory.tensor_on_gpu(DType::F32, &[8]).is_none());
        }
        assert_eq!(memory.gpu_bytes(), 0);
        let tensor = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
        assert!(memory.on_another(&tensor, 4001).is_none());
        let adopted = memory.adopt(tensor, Wait::No).unwrap();
        assert_eq!(adopted.location(), Location::Host);
        assert!(adopted.region().is_some_and(|(region, _)| region.pooled().is_some()));
        assert_eq!(adopted.to_f64().unwrap(), [1.0, 2.0]);
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
