//! What changes beneath requests: routes, and instances that come and go.

use std::time::Duration;

use tessera_deploy::UnitId;
use tessera_tensormq::RequestId;

use super::Dispatcher;
use crate::routing_table::RouteChange;
use crate::state::RetryCause;

/// Why a request is sent again that others waited for in vain.
const UNCOMPUTED: &str = "a unit failed to compute what others waited for";

impl Dispatcher {
    /// Has requests pass other routes from now on. Those that were accepted before keep theirs; the
    /// number that is returned tells [`Dispatcher::wait_until_drained`] which those are.
    pub fn change_routes(&self, change: RouteChange) -> u64 {
        let mut state = self.0.lock_state();
        let before = state.change_routes(change);
        self.0.send_queued(state);
        before
    }

    /// So many cores compute what is dispatched, as far as is known before it is measured.
    pub fn set_cores(&self, cores: usize) {
        self.0.lock_state().set_cores(cores);
    }

    /// Waits until every request is done that was accepted before the change which returned `before`.
    pub async fn wait_until_drained(&self, before: u64) {
        loop {
            let ended = self.0.request_ended.notified();
            if self.0.lock_state().is_drained(before) {
                return;
            }
            // Looked at again now and then, should a notification be missed.
            tokio::time::timeout(Duration::from_millis(200), ended).await.ok();
        }
    }

    /// Whether a unit is part of the table, or of one that a request still uses.
    pub fn uses_unit(&self, unit: &UnitId) -> bool {
        self.0.lock_state().uses_unit(unit)
    }

    /// An instance takes requests from now on. Connects to it first, which may take a moment; where
    /// that fails it gets requests as soon as it can be reached.
    pub fn instance_up(&self, unit: &UnitId, instance: &str) {
        let connected = self.0.peers.sender_to(instance);
        let mut state = self.0.lock_state();
        state.instance_up(unit, instance);
        if let Err(error) = connected {
            // Where it is gone, whoever watches over it finds out, and starts another.
            tracing::warn!(instance, %error, "an instance can't be reached yet");
            state.note_unreachable(instance);
        }
        self.0.send_queued(state);
    }

    /// An instance takes requests from now on, which come to it from other units.
    pub fn add_instance(&self, unit: &UnitId, instance: &str) {
        let mut state = self.0.lock_state();
        state.instance_up(unit, instance);
        self.0.send_queued(state);
    }

    /// Sends an instance no more requests; what is on its way to it goes on.
    pub fn retire_instance(&self, unit: &UnitId, instance: &str) {
        self.0.lock_state().retire_instance(unit, instance);
    }

    /// Waits until nothing passes an instance any more.
    pub async fn wait_until_retired(&self, instance: &str) {
        while self.0.lock_state().is_instance_passed(instance) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// An instance is gone; what was on its way to it or through it is sent again.
    pub fn instance_down(&self, unit: &UnitId, instance: &str, reason: &str, comes_back: bool) {
        let mut state = self.0.lock_state();
        let results = state.instance_down(unit, instance, reason, comes_back);
        self.0.deliver_results(&mut state, results);
        self.0.send_queued(state);
    }

    /// A request is lost on its way: whatever comes of that try is no answer, and it is sent again.
    pub fn retry_part(&self, request: RequestId, part: u32) {
        let mut state = self.0.lock_state();
        let results = state.retry_part(request, part, RetryCause::InstanceLost, UNCOMPUTED);
        self.0.deliver_results(&mut state, results);
        self.0.send_queued(state);
    }

    /// Waits until no request is left.
    pub async fn wait_until_idle(&self) {
        self.wait_until_drained(u64::MAX).await;
    }
}
