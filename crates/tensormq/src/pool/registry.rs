//! The pools that an endpoint owns, by number; and those for tensors that are in none when they are
//! sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Buffer, Error, PoolId, Result, lock};

use super::{BufferReclaimer, Buffers, OpenPool, Pool};
use crate::wait::Wait;

/// Buffers of each size for tensors that are not in a pool when they are sent.
const SPILL_BUFFERS: usize = 64;

/// The pools that an endpoint owns.
pub(crate) struct PoolRegistry {
    /// The endpoint, whose number is part of its pools' names.
    owner: u64,
    pools: Mutex<HashMap<u64, Weak<OpenPool>>>,
    next_pool: AtomicU64,
    /// Pools for tensors that are in none when they are sent, by size.
    spill_pools: Mutex<HashMap<usize, Pool>>,
    copied_bytes: AtomicU64,
    reclaimer: Weak<dyn BufferReclaimer>,
}

impl PoolRegistry {
    /// None yet. `reclaimer` is asked when one is empty.
    pub(crate) fn new(owner: u64, reclaimer: Weak<dyn BufferReclaimer>) -> Self {
        Self {
            owner,
            pools: Mutex::default(),
            next_pool: AtomicU64::new(1),
            spill_pools: Mutex::default(),
            copied_bytes: AtomicU64::new(0),
            reclaimer,
        }
    }

    /// Makes a pool on the host.
    pub(crate) fn create_host_pool(&self, buffers: &[Buffers]) -> Result<Arc<OpenPool>> {
        self.create_with(|id, reclaimer| OpenPool::create_on_host(id, buffers, reclaimer))
    }

    /// Makes a pool as `create` does, under a new number.
    pub(crate) fn create_with(
        &self,
        create: impl FnOnce(PoolId, Weak<dyn BufferReclaimer>) -> Result<Arc<OpenPool>>,
    ) -> Result<Arc<OpenPool>> {
        let number = self.next_pool.fetch_add(1, Ordering::Relaxed);
        let pool = create(PoolId { owner: self.owner, number }, Weak::clone(&self.reclaimer))?;
        let mut pools = lock(&self.pools);
        pools.retain(|_, pool| pool.strong_count() > 0);
        pools.insert(number, Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Whether a pool is, or was, one of ours.
    pub(crate) fn owns_pool(&self, pool: PoolId) -> bool {
        pool.owner == self.owner
    }

    /// A pool, where it is one of ours.
    pub(crate) fn find_pool(&self, pool: PoolId) -> Option<Arc<OpenPool>> {
        let number = Some(pool.number).filter(|_| self.owns_pool(pool))?;
        lock(&self.pools).get(&number).and_then(Weak::upgrade)
    }

    /// Memory for a tensor that is in no pool; `Full` where all of that size is in use.
    pub(crate) fn borrow_spill_buffer(&self, len: usize) -> Result<Buffer> {
        let size = len.max(4096).checked_next_power_of_two();
        let size = size.ok_or_else(|| Error::usage("a tensor that is larger than memory"))?;
        let mut spill_pools = lock(&self.spill_pools);
        let pool = match spill_pools.get(&size) {
            Some(pool) => pool.clone(),
            None => {
                // Without a hold on the endpoint: it holds us, and we hold the pool.
                let buffers = [Buffers { bytes: size, count: SPILL_BUFFERS }];
                let pool = Pool::new(self.create_host_pool(&buffers)?, None);
                spill_pools.insert(size, pool.clone());
                pool
            }
        };
        drop(spill_pools);
        pool.borrow_buffer(len, Wait::No)
    }

    /// Counts what had to be copied into such memory.
    pub(crate) fn count_copied_bytes(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How much that was.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }
}
