//! Answers that are sent before the GPU has computed them.
//!
//! Whoever waits for an answer can as well wait for the GPU to write it, in memory that both have: then nothing is left to do
//! here when it has. The thread that sent it sleeps until the GPU is done, to know whether it could.

use std::sync::atomic::Ordering;

use tessera_core::{Location, Result, Tensor};
use tessera_tensormq::RequestId;

use super::Shared;
use super::door::Item;

/// What was answered, and is not computed yet.
pub(super) struct Answered {
    requests: Vec<(RequestId, u32)>,
    outputs: Vec<Tensor>,
}

/// Whether all of these are where whoever gets them reads them, and a GPU is about to write some.
pub(super) fn are_arriving(tensors: &[Tensor]) -> bool {
    tensors.iter().all(|tensor| tensor.location() == Location::Host)
        && tensors.iter().any(|tensor| tensor.after().is_some())
}

impl Answered {
    /// A batch whose requests all go home with these.
    pub(super) fn new(batch: &[Item], outputs: &[Tensor]) -> Self {
        let requests = batch.iter().map(|item| (item.message.request(), item.log.part));
        Self { requests: requests.collect(), outputs: outputs.to_vec() }
    }

    /// Waits until the GPU is done. Should it fail, those who wait for the answers are told first, and then the waiting is
    /// ended.
    pub(super) fn see_to(mut self, worker: &Shared) {
        let Err(error) = self.settle() else { return };
        tracing::warn!(block = %worker.parts.name, %error, "a run failed that was answered already");
        // From now on whatever is wrong is told as it is.
        worker.answers_ahead.store(false, Ordering::Relaxed);
        worker.lose(std::mem::take(&mut self.requests), std::mem::take(&mut self.outputs));
    }

    fn settle(&self) -> Result<()> {
        self.outputs.iter().try_for_each(|output| output.clone().settled().map(drop))
    }
}

impl Drop for Answered {
    /// Also where nobody was answered after all, the memory is still written.
    fn drop(&mut self) {
        self.settle().ok();
    }
}
