//! A request at a worker, from its inbox to where it is sent next.

use tessera_core::Tensor;
use tessera_deploy::SourceRoute;
use tessera_tensormq::Message;

/// How uncertain the least certain row of a request is, or why that can't be told.
pub(crate) type RequestEntropy = Result<f64, String>;

/// A request at this worker.
pub(crate) struct BatchItem {
    pub(crate) message: Message,
    /// Where it goes, and what happened to it so far.
    pub(crate) route: SourceRoute,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) rows: Option<usize>,
    /// How uncertain its least certain row is, where it was run at an exit.
    pub(crate) entropy: Option<RequestEntropy>,
}

impl BatchItem {
    /// Whether it is at the head of an exit.
    pub(crate) fn is_at_exit(&self) -> bool {
        self.route.current_hop().is_some_and(|hop| hop.exit().is_some())
    }

    /// The instance that it goes to next; `None` where it is at an exit, or at the end.
    pub(crate) fn next_instance(&self) -> Option<&str> {
        if self.is_at_exit() {
            return None;
        }
        self.route.next_hop().map(|hop| hop.instance())
    }

    /// Whether its result is the reply, whatever it is.
    pub(crate) fn is_last_hop(&self) -> bool {
        !self.is_at_exit() && self.route.next_hop().is_none()
    }
}

/// The rows of all requests of a batch together.
pub(crate) fn total_rows(batch: &[BatchItem]) -> usize {
    batch.iter().filter_map(|item| item.rows).sum()
}

/// A request of a batch that was run.
pub(crate) struct ExecutedRequest {
    pub(crate) item: BatchItem,
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) timing: BatchTiming,
}

/// When a batch began to run, how long it was computed, how many rows it had, and the request of
/// them.
#[derive(Clone, Copy)]
pub(crate) struct BatchTiming {
    pub(crate) started: u64,
    /// How long it waited for weights before.
    pub(crate) loading: u64,
    pub(crate) computed: u64,
    /// What of the time that passed here was not the worker's own: the engine's, and waiting for a
    /// device.
    pub(crate) apart: u64,
    pub(crate) batch: usize,
    pub(crate) rows: usize,
}
