//! Answers that are sent before the GPU has computed them.
//!
//! Whoever waits for an answer can as well wait for the GPU to write it, in memory that both have: then nothing is left to do
//! here when it has. The thread that sent it sleeps until the GPU is done, to know whether it could.

use std::sync::atomic::Ordering;

use tessera_core::{Error, Location, Tensor};
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
    pub(super) fn see_to(self, worker: &Shared) {
        let Self { requests, outputs } = self;
        let settled = outputs.iter().try_for_each(|output| output.clone().settled().map(drop));
        let Err(error) = settled else { return };
        Self { requests, outputs }.give_up(worker, &error);
    }

    /// The same where nobody was answered after all.
    pub(super) fn forget(self) {
        self.outputs.into_iter().for_each(|output| drop(output.settled()));
    }

    fn give_up(self, worker: &Shared, error: &Error) {
        tracing::warn!(block = %worker.parts.name, %error, "a run failed that was answered already");
        // From now on whatever is wrong is told as it is.
        worker.answers_ahead.store(false, Ordering::Relaxed);
        let (courier, outputs) = (worker.parts.peers.courier().clone(), self.outputs);
        worker.parts.overseer.lost(
            self.requests,
            Box::new(move || outputs.iter().for_each(|output| courier.free_waiters(output))),
        );
    }
}
