//! Memory for tensors on a GPU, and on the host where a GPU copies from and to.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tessera_core::{Buffer, DType, MemoryLocation, Result, Tensor, TensorMut, byte_len, lock};
use tessera_engine::{
    PinnedAllocator, copy_all_to_host, copy_all_to_host_async, copy_between_gpus, copy_on_device,
};
use tessera_tensormq::{Buffers, Endpoint, Pool, Wait};

use crate::device_transfer::{bring_to_host, is_in_pool};
use crate::memory::{BUFFERS_PER_POOL, SharedHostMemory, TensorMemory, size_class};

/// Most buffers of one size on a GPU: the rest goes through the host.
const MOST_GPU_BUFFERS_OF_A_SIZE: usize = 64;
/// Most of one size that a GPU copies to: they are in memory from the beginning on. The rest is
/// copied twice.
const MOST_RESULT_BUFFERS: usize = 16;

/// Memory of this process that a GPU copies from while the host does other things.
pub struct PinnedMemory(PinnedAllocator);

impl PinnedMemory {
    /// Memory for this GPU.
    pub fn new(gpu: u32) -> Result<Self> {
        PinnedAllocator::new(gpu).map(Self)
    }
}

impl TensorMemory for PinnedMemory {
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], _: Wait) -> Result<TensorMut> {
        let len = byte_len(dtype, shape)?;
        TensorMut::from_buffer(dtype, shape, self.0.allocate_buffer(len)?)
    }

    fn adopt_tensor(&self, tensor: Tensor, _: Wait) -> Result<Tensor> {
        Ok(tensor)
    }
}

/// Memory on a GPU that other processes read there; where that can't be, on the host.
pub struct DeviceMemory {
    gpu: u32,
    endpoint: Endpoint,
    host: SharedHostMemory,
    /// What the GPU copies results to.
    results: SharedHostMemory,
    /// Pools by GPU and the size of their buffers; `None` once it turned out that others can't open
    /// them.
    pools: Mutex<Option<GpuPools>>,
}

/// Pools by GPU and the size of their buffers.
type GpuPools = BTreeMap<(u32, usize), Vec<Pool>>;

impl DeviceMemory {
    /// Memory in pools of this endpoint.
    pub fn new(endpoint: Endpoint, gpu: u32) -> Self {
        let pools = endpoint.clone();
        let pinned = move |buffers: &[Buffers]| pools.create_pinned_pool(gpu, buffers);
        let results = SharedHostMemory::from_pools(MOST_RESULT_BUFFERS, Box::new(pinned));
        let host = SharedHostMemory::new(endpoint.clone());
        Self { gpu, endpoint, host, results, pools: Mutex::new(Some(BTreeMap::new())) }
    }

    /// A buffer on the GPU; `None` where there can be none that others open, or where all are in
    /// use.
    fn borrow_gpu_buffer(&self, gpu: u32, size: usize) -> Option<Buffer> {
        let mut pools = lock(&self.pools);
        let same = pools.as_mut()?.entry((gpu, size)).or_default();
        for pool in same.iter() {
            if let Ok(buffer) = pool.borrow_buffer(size, Wait::No) {
                return Some(buffer);
            }
        }
        if same.len() * BUFFERS_PER_POOL >= MOST_GPU_BUFFERS_OF_A_SIZE {
            return None;
        }
        match self
            .endpoint
            .create_gpu_pool(gpu, &[Buffers { bytes: size, count: BUFFERS_PER_POOL }])
        {
            Ok(pool) => {
                let buffer = pool.borrow_buffer(size, Wait::No).ok();
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

    /// Where the GPU copies these to.
    fn allocate_result_buffers(&self, tensors: &[Tensor]) -> Result<Vec<TensorMut>> {
        let place = |tensor: &Tensor| {
            self.results.allocate_tensor(tensor.dtype(), tensor.shape(), Wait::No)
        };
        tensors.iter().map(place).collect()
    }

    /// Has those who wait for tensors on a GPU know when they are written: once all that was
    /// launched so far is done.
    pub(super) fn signal_write_fences(&self, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.endpoint.signal_write_fence(tensor))
    }

    /// The same tensor on another GPU, where those who run there read it; `None` where that can't
    /// be.
    pub(super) fn copy_to_gpu(&self, tensor: &Tensor, gpu: u32) -> Option<Tensor> {
        let buffer = self.borrow_gpu_buffer(gpu, size_class(tensor.byte_len()))?;
        let mut copy = TensorMut::from_buffer(tensor.dtype(), tensor.shape(), buffer).ok()?;
        copy_between_gpus(tensor, &mut copy).ok()?;
        Some(copy.freeze())
    }

    /// The same tensors where those who have them next read them with the CPU. All copies are on
    /// their way before the first is waited for.
    pub(super) fn copy_to_host(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if tensors.iter().any(|tensor| tensor.location() == MemoryLocation::Host) {
            return bring_to_host(tensors);
        }
        // Straight to where the next process reads them.
        match self.allocate_result_buffers(&tensors) {
            Ok(places) => copy_all_to_host(tensors.into_iter().zip(places).collect()),
            Err(_) => bring_to_host(tensors),
        }
    }

    /// The same where copies need not be over: those who get them from us wait for that. `None`
    /// where they can't.
    ///
    /// Whoever asked keeps the tensors until their fences are over, and has nobody wait where that
    /// fails.
    pub(super) fn copy_to_host_async(&self, tensors: &[Tensor]) -> Option<Vec<Tensor>> {
        // Flags are written in the stream of this GPU.
        if tensors.iter().any(|tensor| tensor.location() != MemoryLocation::Cuda(self.gpu)) {
            return None;
        }
        let places = self.allocate_result_buffers(tensors).ok()?;
        let tensors = tensors.iter().cloned().zip(places).collect();
        let brought = copy_all_to_host_async(tensors, |brought| self.signal_write_fences(brought));
        brought.inspect_err(|error| tracing::debug!(%error, "no early reply")).ok()
    }

    /// Bytes of the buffers on a GPU that there are.
    pub(super) fn gpu_bytes(&self) -> u64 {
        let pools = lock(&self.pools);
        let sizes =
            pools.iter().flatten().map(|((_, size), same)| size * BUFFERS_PER_POOL * same.len());
        sizes.sum::<usize>() as u64
    }

    /// Memory on the GPU for one tensor that others read there; `None` where there is none.
    pub(super) fn allocate_on_gpu(&self, dtype: DType, shape: &[usize]) -> Option<TensorMut> {
        let len = byte_len(dtype, shape).ok()?;
        TensorMut::from_buffer(dtype, shape, self.borrow_gpu_buffer(self.gpu, size_class(len))?)
            .ok()
    }
}

impl TensorMemory for DeviceMemory {
    fn allocate_tensor(&self, dtype: DType, shape: &[usize], wait: Wait) -> Result<TensorMut> {
        self.host.allocate_tensor(dtype, shape, wait)
    }

    fn adopt_tensor(&self, tensor: Tensor, wait: Wait) -> Result<Tensor> {
        if tensor.location() == MemoryLocation::Host || is_in_pool(&tensor) {
            return self.host.adopt_tensor(tensor, wait);
        }
        match self.borrow_gpu_buffer(self.gpu, size_class(tensor.byte_len())) {
            Some(buffer) => {
                let mut copy = TensorMut::from_buffer(tensor.dtype(), tensor.shape(), buffer)?;
                copy_on_device(&tensor, &mut copy)?;
                Ok(copy.freeze())
            }
            None => self.host.adopt_tensor(tensor, wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_memory_to_share_on_a_gpu_tensors_go_through_the_host() {
        // A GPU that no machine has; as where CUDA IPC is missing, no pool can be made.
        let endpoint = Endpoint::start(tessera_tensormq::EndpointOptions::default()).unwrap();
        let memory = DeviceMemory::new(endpoint, 4000);
        for _ in 0..2 {
            assert!(memory.allocate_on_gpu(DType::F32, &[8]).is_none());
        }
        assert_eq!(memory.gpu_bytes(), 0);
        let tensor = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
        assert!(memory.copy_to_gpu(&tensor, 4001).is_none());
        let adopted = memory.adopt_tensor(tensor, Wait::No).unwrap();
        assert_eq!(adopted.location(), MemoryLocation::Host);
        assert!(adopted.region().is_some_and(|(region, _)| region.pool_slot().is_some()));
        assert_eq!(adopted.to_f64().unwrap(), [1.0, 2.0]);
    }
}
