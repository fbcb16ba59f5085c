//! Requests that nobody waits for any more: their client went away before the answer.

use tessera_telemetry::RequestOutcome;
use tessera_tensormq::RequestId;

use super::{Dispatcher, DispatcherInner};

impl Dispatcher {
    /// What is to be done where nobody waits any more for a request that is on its way. Set once.
    pub fn on_cancelled(&self, what: impl Fn(RequestId) + Send + Sync + 'static) {
        self.0.on_cancelled.get_or_init(|| Box::new(what));
    }
}

/// Cancels a request whose client went away.
pub(super) struct CancelOnDrop<'a> {
    inner: &'a DispatcherInner,
    number: RequestId,
}

impl<'a> CancelOnDrop<'a> {
    pub(super) fn new(inner: &'a DispatcherInner, number: RequestId) -> Self {
        Self { inner, number }
    }

    /// The request has ended: there is nothing to cancel.
    pub(super) fn disarm_guard(self) {
        std::mem::forget(self);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.lock_state();
        let pending = state.remove_request(self.number);
        if let Some(pending) = &pending {
            self.inner.observe_ended(pending, RequestOutcome::Cancelled, &[]);
        }
        let is_on_its_way = pending.is_some() && state.has_flights(self.number);
        self.inner.send_queued(state);
        if is_on_its_way && let Some(on_cancelled) = self.inner.on_cancelled.get() {
            on_cancelled(self.number);
        }
        self.inner.request_ended.notify_waiters();
    }
}
