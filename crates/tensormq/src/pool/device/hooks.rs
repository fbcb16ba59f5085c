//! What an endpoint has set for pools of others and its GPU.

use std::sync::{Arc, OnceLock};

use tessera_cuda::Gpu;

use crate::options::EndpointOptions;
use crate::pool::OpenPool;

/// Has nobody wait any longer for what a process that is gone was to write on a GPU. What they read
/// then is not what it should be: whoever it is for must know before.
pub type ReleaseFenceWaiters = Box<dyn FnOnce() + Send>;

/// What to do when a process is gone.
type PoolOwnerLostHandler = Box<dyn Fn(u64, ReleaseFenceWaiters) + Send + Sync>;

/// What an endpoint has set.
pub(crate) struct DeviceHooks {
    /// The GPU that tensors are copied to.
    copy_target: Option<u32>,
    owner_lost_handler: OnceLock<PoolOwnerLostHandler>,
}

impl DeviceHooks {
    /// As an endpoint's options say, and nothing set yet.
    pub(crate) fn for_endpoint(options: &EndpointOptions) -> Self {
        Self { copy_target: options.gpu, owner_lost_handler: OnceLock::new() }
    }

    /// The GPU that tensors are copied to.
    pub(super) fn copy_target(&self) -> Option<Arc<Gpu>> {
        self.copy_target.and_then(|number| Gpu::open(number).ok())
    }

    /// What to do when a process is gone that others wait for. Set once.
    pub(crate) fn set_owner_lost_handler(
        &self,
        handler: impl Fn(u64, ReleaseFenceWaiters) + Send + Sync + 'static,
    ) {
        self.owner_lost_handler.get_or_init(|| Box::new(handler));
    }

    /// The owner of a pool is gone.
    pub(crate) fn handle_owner_lost(&self, pool: Arc<OpenPool>) {
        pool.mark_orphaned();
        if pool.device.is_on_host() {
            return;
        }
        let owner = pool.id.owner;
        let release = Box::new(move || pool.release_all_waiters());
        match self.owner_lost_handler.get() {
            Some(handler) => handler(owner, release),
            None => release(),
        }
    }
}
