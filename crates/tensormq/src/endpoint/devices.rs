//! What an endpoint does for GPUs: pools that they write, and fences for what they have not written
//! yet.

use std::sync::Arc;

use tessera_core::{PoolSlot, Result, Tensor};
use tessera_cuda::Gpu;

use super::Endpoint;
use crate::pool::{Buffers, OpenPool, Pool, ReleaseFenceWaiters};

impl Endpoint {
    /// A pool of buffers on the host, as [`Self::create_pool`] makes, which a GPU of ours copies to
    /// without another; also after they were sent [early](crate::Message::with_early_send).
    pub fn create_pinned_pool(&self, gpu: u32, buffers: &[Buffers]) -> Result<Pool> {
        let gpu = Gpu::open(gpu)?;
        let pool =
            self.0.context.pools.create_with(|id, reclaimer| {
                OpenPool::create_pinned(&gpu, id, buffers, reclaimer)
            })?;
        Ok(self.own_pool(pool))
    }

    /// A pool of buffers on a GPU that any process of this host can read there.
    ///
    /// Fails where the GPU's memory can't be shared between processes (CUDA IPC).
    pub fn create_gpu_pool(&self, gpu: u32, buffers: &[Buffers]) -> Result<Pool> {
        let gpu = Gpu::open(gpu)?;
        let pool =
            self.0.context.pools.create_with(|id, reclaimer| {
                OpenPool::create_on_gpu(&gpu, id, buffers, reclaimer)
            })?;
        Ok(self.own_pool(pool))
    }

    /// A pool on the host whose buffers are written by hand after they were sent.
    #[cfg(test)]
    pub(crate) fn create_pool_written_later(&self, buffers: &[Buffers]) -> Result<Pool> {
        let pool =
            self.0.context.pools.create_with(|id, reclaimer| {
                OpenPool::create_written_later(id, buffers, reclaimer)
            })?;
        Ok(self.own_pool(pool))
    }

    /// Has the GPU say that a tensor in a pool of ours is written, once all that was launched on it
    /// so far is done: for messages that were sent [early](crate::Message::with_early_send).
    pub fn signal_write_fence(&self, tensor: &Tensor) -> Result<()> {
        let own = self.own_pool_slot(tensor);
        own.map_or(Ok(()), |(pool, slot)| {
            pool.enqueue_flag_write(slot.slot as usize, slot.generation)
        })
    }

    /// Has nobody wait any longer for a tensor in a pool of ours that a GPU was to write, and
    /// won't.
    pub fn release_fence_waiters(&self, tensor: &Tensor) {
        if let Some((pool, slot)) = self.own_pool_slot(tensor) {
            pool.set_flag(slot.slot as usize, slot.generation);
        }
    }

    /// What to do when a process is gone that others wait for on a GPU: its number, and what has
    /// nobody wait any longer. By default that is called at once. Set once.
    pub fn on_pool_owner_lost(
        &self,
        handler: impl Fn(u64, ReleaseFenceWaiters) + Send + Sync + 'static,
    ) {
        self.0.context.devices.set_owner_lost_handler(handler);
    }

    /// Where a tensor is, where that is a pool of ours.
    fn own_pool_slot(&self, tensor: &Tensor) -> Option<(Arc<OpenPool>, PoolSlot)> {
        let slot = tensor.region().and_then(|(region, _)| region.pool_slot())?;
        Some((self.0.context.pools.find_pool(slot.pool)?, slot))
    }
}
