//! The exchange with instances: messages that are sent, replies that come, and the answers that are
//! made of them.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tessera_core::{ErrorKind, MemoryLocation, Result, Tensor};
use tessera_deploy::{ReplyOutcome, SourceRoute, UnitId};
use tessera_telemetry::{EndedRequest, RequestOutcome};
use tessera_tensormq::{Deadline, Inbox, Message, Received, Wait};

use super::DispatcherInner;
use crate::device_tensors::with_readable_tensors;
use crate::early_reply::EarlyReplies;
use crate::pending_request::PendingRequest;
use crate::state::{DispatcherState, InferenceResults, OutgoingMessage, RetryCause};

/// How often an instance is tried that could not be reached.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// How long after a request's deadline its places are given to others, though no reply came of it:
/// what it was sent through may be cut off, and whoever gets it later drops it.
const OVERDUE_GRACE: Duration = Duration::from_secs(1);
/// How often that is looked after.
const OVERDUE_INTERVAL: Duration = Duration::from_millis(500);

/// Receives replies on the runtime that this is called on, for as long as there is a dispatcher.
pub(super) fn start_receiving(inner: &Arc<DispatcherInner>, mut inbox: Inbox) -> Result<()> {
    let receiver = Arc::downgrade(inner);
    let waiting = Arc::downgrade(inner);
    let early_replies = EarlyReplies::start_thread(move |message, is_written| {
        if let Some(inner) = waiting.upgrade() {
            inner.receive_reply(message, is_written);
        }
    })?;
    tokio::spawn(async move {
        loop {
            let received = match inbox.receive_async(Wait::at_most(Duration::from_secs(1))).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(%error, "replies can't be received any more");
                    return;
                }
            };
            let Some(inner) = receiver.upgrade() else {
                return;
            };
            let Some(Received::Message(message)) = received else {
                continue;
            };
            if message.tensors().iter().all(|tensor| tensor.fence().is_none()) {
                inner.receive_reply(message, true);
            } else if let Some(written) = early_replies.defer_unwritten(message) {
                inner.receive_reply(written, true);
            }
        }
    });
    Ok(())
}

/// Ends flights that no reply will come of, for as long as there is a dispatcher.
pub(super) fn keep_ending_overdue(inner: &Arc<DispatcherInner>) {
    let own = Arc::downgrade(inner);
    inner.runtime.spawn(async move {
        loop {
            tokio::time::sleep(OVERDUE_INTERVAL).await;
            let Some(inner) = own.upgrade() else { return };
            let mut state = inner.lock_state();
            if state.end_overdue_flights(OVERDUE_GRACE) {
                inner.send_queued(state);
                inner.request_ended.notify_waiters();
            }
        }
    });
}

impl DispatcherInner {
    /// Sends what can be sent.
    pub(super) fn send_queued<'a>(&'a self, mut state: MutexGuard<'a, DispatcherState>) {
        loop {
            let (outgoing, results) = state.take_sendable();
            self.deliver_results(&mut state, results);
            let unreachable = state.take_unreachable();
            drop(state);
            for (unit, instance) in unreachable {
                self.look_after(unit, instance);
            }
            let mut failed = false;
            for departing in outgoing {
                failed |= !self.send_message(departing);
            }
            if !failed {
                return;
            }
            // Those that failed leave room for others.
            state = self.lock_state();
        }
    }

    /// Sends a message, and returns whether it is either on its way or to be sent again.
    fn send_message(&self, departing: OutgoingMessage) -> bool {
        let OutgoingMessage { instance, message, request, flight } = departing;
        let message = match self.make_readable(&instance, message) {
            Ok(message) => message,
            Err(error) => {
                let mut state = self.lock_state();
                let results = state.fail_unsent(request, flight, error);
                self.deliver_results(&mut state, results);
                return false;
            }
        };
        if let Err(not_sent) = self.peers.send_to(&instance, message, Wait::No) {
            let mut state = self.lock_state();
            let reason = format!("instance {instance}: {}", not_sent.error);
            let cause = match not_sent.error.kind() {
                ErrorKind::Lost => {
                    state.note_unreachable(&instance);
                    RetryCause::Unreachable
                }
                _ => RetryCause::InstanceLost,
            };
            let results = state.retry_part(request, flight, cause, &reason);
            self.deliver_results(&mut state, results);
            // Where there is another instance it goes there; else it waits until this one is back.
            return cause == RetryCause::InstanceLost;
        }
        true
    }

    /// Finds out when an instance can be reached again, for as long as it is known.
    fn look_after(&self, unit: UnitId, instance: String) {
        let inner = self.own.clone();
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(PROBE_INTERVAL).await;
                let Some(inner) = inner.upgrade() else { return };
                if inner.peers.address_of(&instance).is_none() {
                    return;
                }
                let (probing, name) = (Arc::clone(&inner), instance.clone());
                let probe = move || probing.peers.reconnect_to(&name).is_ok();
                if tokio::task::spawn_blocking(probe).await.unwrap_or(false) {
                    let mut state = inner.lock_state();
                    state.instance_up(&unit, &instance);
                    inner.send_queued(state);
                    return;
                }
            }
        });
    }

    /// The same message with tensors that an instance reads: as it is, where the host can.
    fn make_readable(&self, instance: &str, message: Message) -> Result<Message> {
        let is_on_host = |tensor: &Tensor| tensor.location() == MemoryLocation::Host;
        if message.tensors().iter().all(is_on_host) {
            return Ok(message);
        }
        with_readable_tensors(&self.peers, &self.export_input, instance, message)
    }

    /// A reply came; its tensors are there, or else not even though its deadline has passed.
    fn receive_reply(&self, mut message: Message, is_there: bool) {
        let (request, tensors) = (message.request(), message.take_tensors());
        let accepted = message.accepted();
        let route = SourceRoute::read(message.route());
        drop(message);
        let Some((route, outcome)) = route.ok().and_then(|route| {
            let outcome = route.outcome()?;
            Some((route, outcome))
        }) else {
            tracing::error!(%request, "a reply can't be read");
            return;
        };
        let (outcome, tensors) = if is_there {
            (outcome, tensors.into_iter().map(Tensor::without_fence).collect())
        } else {
            (ReplyOutcome::Late, Vec::new())
        };
        let mut state = self.lock_state();
        let results = state.apply_reply(request, outcome, &route, tensors, accepted);
        self.deliver_results(&mut state, results);
        self.send_queued(state);
    }

    /// Ends requests whose answers are there.
    pub(super) fn deliver_results(&self, state: &mut DispatcherState, results: InferenceResults) {
        for (number, result) in results {
            let Some(mut pending) = state.remove_request(number) else {
                continue;
            };
            match &result {
                Ok(answer) => {
                    let outcome = match &answer.degraded {
                        Some(reason) => RequestOutcome::Degraded(reason),
                        None => RequestOutcome::Answered,
                    };
                    self.observe_ended(&pending, outcome, &answer.exits);
                }
                Err(refusal) => {
                    self.observe_ended(&pending, RequestOutcome::Failed(&refusal.error), &[]);
                }
            }
            if let Some(sender) = pending.result_sender.take() {
                // A client that went away needs no answer.
                drop(sender.send(result));
            }
            self.request_ended.notify_waiters();
        }
    }

    /// Tells of a request that has ended.
    pub(super) fn observe_ended(
        &self,
        pending: &PendingRequest,
        outcome: RequestOutcome<'_>,
        exits: &[Option<String>],
    ) {
        let ended = EndedRequest {
            task: &pending.entry.route.task,
            version: &pending.entry.route.version,
            request: pending.number,
            id: &pending.id,
            rows: pending.rows,
            accepted: pending.accepted,
            ended: Deadline::now().nanoseconds(),
            hop_timings: &pending.hop_timings,
            exits,
            outcome,
            retries: pending.retries,
            trace: pending.trace,
        };
        pending.entry.count_request(&ended);
        self.observer.request_ended(&ended);
    }
}
