//! Replies that are sent before the GPU has computed them.
//!
//! Whoever waits for an answer can as well wait for the GPU to write it, in memory that both have:
//! then nothing is left to do here when it has. The thread that sent it sleeps until the GPU is
//! done, to know whether it could.

use std::sync::atomic::{AtomicBool, Ordering};

use tessera_core::{MemoryLocation, Result, Tensor};
use tessera_tensormq::RequestId;

use crate::worker::batch_item::BatchItem;
use crate::worker::context::WorkerContext;

/// Replies that were sent, and are not computed yet.
pub(super) struct EarlyReply {
    requests: Vec<(RequestId, u32)>,
    outputs: Vec<Tensor>,
}

/// Whether all of these are where whoever gets them reads them, and a GPU is about to write some.
pub(super) fn are_pending_on_host(tensors: &[Tensor]) -> bool {
    tensors.iter().all(|tensor| tensor.location() == MemoryLocation::Host)
        && tensors.iter().any(|tensor| tensor.fence().is_some())
}

impl EarlyReply {
    /// A batch whose requests all get their reply with these.
    pub(super) fn new(batch: &[BatchItem], outputs: &[Tensor]) -> Self {
        let requests = batch.iter().map(|item| (item.message.request(), item.route.part()));
        Self { requests: requests.collect(), outputs: outputs.to_vec() }
    }

    /// Waits until the GPU is done. Should it fail, those who wait for the answers are told first,
    /// and then the waiting is ended.
    pub(super) fn watch_for_failure(
        mut self,
        context: &WorkerContext,
        may_reply_early: &AtomicBool,
    ) {
        let Err(error) = self.wait_for_fences() else { return };
        tracing::warn!(instance = %context.name, %error, "a run failed after its early reply");
        // From now on whatever is wrong is told as it is.
        may_reply_early.store(false, Ordering::Relaxed);
        context.report_lost_requests(
            std::mem::take(&mut self.requests),
            std::mem::take(&mut self.outputs),
        );
    }

    fn wait_for_fences(&self) -> Result<()> {
        self.outputs.iter().try_for_each(|output| output.clone().wait_fence_on_host().map(drop))
    }
}

impl Drop for EarlyReply {
    /// Also where no reply was sent after all, the memory is still written.
    fn drop(&mut self) {
        self.wait_for_fences().ok();
    }
}
