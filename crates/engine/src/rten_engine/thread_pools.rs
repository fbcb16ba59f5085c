//! Pools of threads that runs are computed on: each run has one for itself, so that two runs with
//! one thread each take two cores, and one that never ends keeps no other run waiting.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use rten::ThreadPool;
use tessera_core::lock;

/// Pools that no run has at the moment, by number of threads. There are as many as there were ever
/// runs at a time.
#[derive(Default)]
pub(super) struct ThreadPools {
    free: Mutex<HashMap<NonZeroUsize, Vec<Arc<ThreadPool>>>>,
}

/// A pool that a run has until this is dropped.
pub(super) struct TakenPool {
    pools: Arc<ThreadPools>,
    threads: NonZeroUsize,
    pool: Arc<ThreadPool>,
}

impl ThreadPools {
    /// A pool of so many threads: the one that was given back last, which is the warmest.
    pub(super) fn take_pool(self: &Arc<Self>, threads: NonZeroUsize) -> TakenPool {
        let free = lock(&self.free).get_mut(&threads).and_then(Vec::pop);
        let pool = free.unwrap_or_else(|| Arc::new(ThreadPool::with_num_threads(threads.get())));
        TakenPool { pools: Arc::clone(self), threads, pool }
    }
}

impl TakenPool {
    /// The pool itself.
    pub(super) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }
}

impl Drop for TakenPool {
    fn drop(&mut self) {
        let mut free = lock(&self.pools.free);
        free.entry(self.threads).or_default().push(Arc::clone(&self.pool));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_of_one_run_at_a_time_and_used_again() {
        let pools = Arc::new(ThreadPools::default());
        let first = pools.take_pool(NonZeroUsize::MIN);
        let second = pools.take_pool(NonZeroUsize::MIN);
        assert!(!Arc::ptr_eq(&first.pool(), &second.pool()));
        let kept = second.pool();
        drop(second);
        assert!(Arc::ptr_eq(&pools.take_pool(NonZeroUsize::MIN).pool(), &kept));
        assert!(!Arc::ptr_eq(&pools.take_pool(NonZeroUsize::new(2).unwrap()).pool(), &kept));
    }
}
