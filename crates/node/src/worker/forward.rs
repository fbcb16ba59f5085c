//! A request that was run is forwarded to its next unit, or its reply is sent.

use std::time::Duration;

use tessera_core::{Error, ErrorKind, Result, Tensor};
use tessera_deploy::{HopTiming, ReplyOutcome, SourceRoute};
use tessera_tensormq::{Deadline, Message, Wait};

use super::batch_item::{BatchItem, BatchTiming, ExecutedRequest};
use super::context::WorkerContext;
use super::exit;

/// Brings outputs to where those who get them read them.
pub(crate) trait PlaceTensors {
    /// Tensors where an instance reads them.
    fn place_for_instance(
        &self,
        context: &WorkerContext,
        instance: &str,
        tensors: Vec<Tensor>,
    ) -> Result<Vec<Tensor>>;

    /// Tensors where whoever waits for a reply reads them, and whether the reply may go out before
    /// they are written.
    fn place_for_reply(&self, tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, bool)>;
}

/// A request on its way to its next unit.
pub(crate) struct ForwardedRequest {
    pub(crate) instance: String,
    pub(crate) message: Message,
    /// What it came with, kept until it is on its way: a request is never nowhere.
    received: Message,
    route: SourceRoute,
}

impl WorkerContext {
    /// Sends a request to its next hop, or its reply.
    pub(crate) fn forward_request(&self, executed: ExecutedRequest, place: &dyn PlaceTensors) {
        let Some(mut packed) = self.pack_forwarded(executed, place) else { return };
        let instance = &packed.instance;
        let tensors = packed.message.take_tensors();
        let tensors = place.place_for_instance(self, instance, tensors);
        let until = send_wait_limit(&packed.message);
        let sent = tensors.and_then(|tensors| {
            let message = packed.message.with_tensors(tensors);
            Ok(self.peers.send_to(instance, message, until)?)
        });
        if let Err(error) = sent {
            let outcome = match error.kind() {
                ErrorKind::TimedOut => ReplyOutcome::Late,
                ErrorKind::Lost => ReplyOutcome::Lost(packed.instance),
                _ => ReplyOutcome::Failed(error.to_string()),
            };
            self.reply_without_result(&packed.received, &packed.route, &outcome);
        }
    }

    /// The message to a request's next hop; `None` where there is none or it can't be forwarded:
    /// then its reply was sent.
    pub(crate) fn pack_forwarded(
        &self,
        executed: ExecutedRequest,
        place: &dyn PlaceTensors,
    ) -> Option<ForwardedRequest> {
        let ExecutedRequest { item, outputs, timing: time } = executed;
        // What it came with is let go of when whoever waits for a reply has it: letting go may take
        // a while.
        let BatchItem { mut message, mut route, inputs: _inputs, entropy, .. } = item;
        let hop = route.current_hop()?;
        let (exit, keep) = (hop.exit(), hop.keep().collect::<Vec<usize>>());
        let mut tensors = message.take_tensors();
        if let Some(exit) = exit {
            let leaves = match exit::should_exit(&exit, entropy) {
                Ok(leaves) => leaves,
                Err(error) => {
                    self.reply_without_result(&message, &route, &ReplyOutcome::Failed(error));
                    return None;
                }
            };
            if leaves {
                self.complete_hop(&mut route, &message, time);
                let outcome = ReplyOutcome::Exit(exit.number);
                self.send_reply(&message, &route, &outcome, outputs, place);
                return None;
            }
            if exit.standby {
                let outcome = ReplyOutcome::Standby(exit.number);
                self.send_reply(&message, &route, &outcome, outputs, place);
            }
        } else {
            tensors.extend(outputs);
        }
        let kept: Option<Vec<Tensor>> =
            keep.iter().map(|&index| tensors.get(index).cloned()).collect();
        let Some(kept) = kept else {
            let reason = "a unit gave fewer outputs than its route".to_owned();
            self.reply_without_result(&message, &route, &ReplyOutcome::Failed(reason));
            return None;
        };
        self.complete_hop(&mut route, &message, time);
        let Some(next) = route.current_hop() else {
            self.send_reply(&message, &route, &ReplyOutcome::Done, kept, place);
            return None;
        };
        match message.with_route(route.as_bytes()) {
            Ok(forwarded) => Some(ForwardedRequest {
                instance: next.instance().to_owned(),
                message: forwarded.with_tensors(kept),
                received: message,
                route,
            }),
            Err(error) => {
                let outcome = ReplyOutcome::Failed(error.to_string());
                self.reply_without_result(&message, &route, &outcome);
                None
            }
        }
    }

    /// Writes down what happened here.
    pub(crate) fn complete_hop(
        &self,
        route: &mut SourceRoute,
        message: &Message,
        time: BatchTiming,
    ) {
        let here = Deadline::now().nanoseconds().saturating_sub(time.started);
        route.complete_hop(&HopTiming {
            // That of the hop: it is in the route already.
            instance: String::new(),
            started: time.started.saturating_sub(message.accepted()),
            waited: time.started.saturating_sub(message.made()),
            loading: time.loading,
            computed: time.computed,
            overhead: here.saturating_sub(time.apart),
            batch: time.batch as u64,
            rows: time.rows as u64,
        });
    }

    /// Tells those who wait for the requests of a batch why there is no result.
    pub(crate) fn fail_batch(&self, batch: Vec<BatchItem>, error: &Error) {
        for item in batch {
            let outcome = match (error.kind(), item.route.previous_hop()) {
                (ErrorKind::TimedOut, _) => ReplyOutcome::Late,
                // Whoever was to write its inputs is gone: it is sent again.
                (ErrorKind::Lost, Some(before)) => ReplyOutcome::Lost(before.instance().to_owned()),
                (ErrorKind::Invalid, _) => ReplyOutcome::Refused(error.to_string()),
                _ => ReplyOutcome::Failed(error.to_string()),
            };
            self.reply_without_result(&item.message, &item.route, &outcome);
        }
    }

    /// Tells whoever waits for a request that there is no result.
    pub(crate) fn reply_without_result(
        &self,
        message: &Message,
        route: &SourceRoute,
        outcome: &ReplyOutcome,
    ) {
        self.send_placed_reply(message, route, outcome, Vec::new(), false);
    }

    /// Sends the reply to whoever waits for it.
    fn send_reply(
        &self,
        message: &Message,
        route: &SourceRoute,
        outcome: &ReplyOutcome,
        tensors: Vec<Tensor>,
        place: &dyn PlaceTensors,
    ) {
        match place.place_for_reply(tensors) {
            Ok((tensors, is_early)) => {
                self.send_placed_reply(message, route, outcome, tensors, is_early);
            }
            Err(error) => {
                let outcome = ReplyOutcome::Failed(error.to_string());
                self.reply_without_result(message, route, &outcome);
            }
        }
    }

    fn send_placed_reply(
        &self,
        message: &Message,
        route: &SourceRoute,
        outcome: &ReplyOutcome,
        tensors: Vec<Tensor>,
        is_early: bool,
    ) {
        let sent = message
            .with_route(route.with_outcome(outcome).as_bytes())
            .map(|reply| {
                let reply = reply.with_tensors(tensors);
                if is_early { reply.with_early_send() } else { reply }
            })
            .and_then(|reply| {
                let until = send_wait_limit(message);
                Ok(self.peers.send_to(route.reply_inbox(), reply, until)?)
            });
        if let Err(error) = sent {
            // Whoever waited is gone, or has cancelled.
            let (instance, request) = (&self.name, message.request());
            tracing::debug!(task = message.task(), %instance, %request, %error, "no reply sent");
        }
    }
}

/// Until when it makes sense to try to send: a little past the deadline, so that this can be told.
fn send_wait_limit(message: &Message) -> Wait {
    const SEND_GRACE_PERIOD: Duration = Duration::from_secs(1);
    let left = message.deadline().map_or(Duration::from_secs(30), Deadline::remaining);
    Wait::at_most(left + SEND_GRACE_PERIOD)
}
