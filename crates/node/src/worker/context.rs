//! What a worker knows beside the unit that it runs: its name, who it sends to, and who is told.

use std::sync::Arc;

use tessera_core::Tensor;
use tessera_tensormq::{Peers, RequestId};

use super::local_workers::LocalWorkers;
use crate::cancelled::CancelledRequests;

/// Is told of requests that go on through other units, and must not be answered by them any more.
pub trait LossReporter: Send + Sync {
    /// Requests, each with the number of its try. Calls `then` once whoever waits for them knows.
    fn report_lost(&self, requests: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>);
}

/// For workers that send nothing to other processes: nothing that they send can get lost.
pub struct NoLossReporter;

impl LossReporter for NoLossReporter {
    fn report_lost(&self, _: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}

/// What a worker knows beside its unit.
pub(crate) struct WorkerContext {
    /// Its name, by which others send to it.
    pub(crate) name: String,
    /// Who it sends to.
    pub(crate) peers: Arc<Peers>,
    /// The requests that nobody waits for any more.
    pub(crate) cancelled: Arc<CancelledRequests>,
    /// The workers of this process.
    pub(crate) local_workers: Arc<LocalWorkers>,
    /// Who is told of requests that were sent on and are lost.
    pub(crate) loss_reporter: Arc<dyn LossReporter>,
}

impl WorkerContext {
    /// Has requests that were sent early be taken for lost; then nobody waits any longer for what
    /// they carry.
    pub(crate) fn report_lost_requests(
        &self,
        requests: Vec<(RequestId, u32)>,
        carried: Vec<Tensor>,
    ) {
        let endpoint = self.peers.endpoint().clone();
        let then = move || carried.iter().for_each(|tensor| endpoint.release_fence_waiters(tensor));
        self.loss_reporter.report_lost(requests, Box::new(then));
    }
}
