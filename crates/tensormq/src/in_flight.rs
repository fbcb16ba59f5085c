//! What is in flight on a channel: sent, and not yet done with by the receiver.
//!
//! A message's tensors are held for it until the receiver took it; the message itself is remembered
//! until the receiver dropped it, so that a sender whose receiver dies can say which requests were
//! lost with it.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use tessera_core::{Tensor, lock};

use crate::ids::RequestId;
use crate::layout::Envelope;

/// How far a message had come when its channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageFate {
    /// The receiver never had it, and never will.
    NotTaken,
    /// The receiver had it and was not done with it.
    Taken,
    /// The network was cut and did not come back in time: the receiver may have had it or not.
    Unknown,
}

/// A message that was sent and will not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedMessage {
    /// Its number in the channel.
    pub sequence: u64,
    /// Its request.
    pub request: RequestId,
    /// How far it had come.
    pub fate: MessageFate,
}

/// Most messages of a channel that the receiver may have taken and not dropped.
///
/// Receivers report what they are done with through a queue of this size, which therefore can't
/// overflow.
pub(crate) const MAX_UNFINISHED: usize = 1024;

/// The messages of one channel that are in flight.
#[derive(Default)]
pub(crate) struct InFlightMessages(Mutex<InFlightState>);

#[derive(Default)]
struct InFlightState {
    /// By their numbers.
    entries: BTreeMap<u64, InFlightEntry>,
    /// How many messages the receiver took.
    taken: u64,
    failed: Vec<FailedMessage>,
    /// Whether anything ever failed.
    has_failed: bool,
}

struct InFlightEntry {
    request: RequestId,
    tensors: Vec<Tensor>,
    /// The rest of the message, where it may have to be sent again.
    envelope: Option<Envelope>,
}

impl InFlightState {
    fn mark_failed(&mut self, sequence: u64, entry: &InFlightEntry, fate: MessageFate) {
        self.has_failed = true;
        self.failed.push(FailedMessage { sequence, request: entry.request, fate });
    }
}

impl InFlightMessages {
    /// Notes a message that is about to be sent; false where there are too many.
    pub(crate) fn track_message(
        &self,
        sequence: u64,
        request: RequestId,
        tensors: Vec<Tensor>,
    ) -> bool {
        self.track_resendable(sequence, request, tensors, None)
    }

    /// The same for one that may have to be sent again.
    pub(crate) fn track_resendable(
        &self,
        sequence: u64,
        request: RequestId,
        tensors: Vec<Tensor>,
        envelope: Option<Envelope>,
    ) -> bool {
        let mut state = lock(&self.0);
        if state.entries.len() >= MAX_UNFINISHED {
            return false;
        }
        state.entries.insert(sequence, InFlightEntry { request, tensors, envelope });
        true
    }

    /// Forgets a message that was noted: it was not sent after all.
    pub(crate) fn untrack_message(&self, sequence: u64) {
        let entry = lock(&self.0).entries.remove(&sequence);
        drop(entry);
    }

    /// Notes that the receiver took the first `taken` messages of the channel.
    pub(crate) fn mark_taken(&self, taken: u64) {
        let mut free = Vec::new();
        let mut state = lock(&self.0);
        let from = state.taken.saturating_add(1);
        state.taken = state.taken.max(taken);
        if from <= taken {
            for (_, entry) in state.entries.range_mut(from..=taken) {
                free.append(&mut entry.tensors);
                entry.envelope = None;
            }
        }
        // Tensors go back to their pools outside of the lock: somebody may wait for them there.
        drop(state);
        drop(free);
    }

    /// Notes that the receiver is done with a message.
    pub(crate) fn mark_finished(&self, sequence: u64) {
        self.untrack_message(sequence);
    }

    #[cfg_attr(not(feature = "zeromq"), allow(dead_code, reason = "for transports between hosts"))]
    /// Notes that the receiver is done with all of the first `taken` messages but these.
    pub(crate) fn mark_finished_except(&self, taken: u64, unfinished: &HashSet<u64>) {
        let mut state = lock(&self.0);
        state.entries.retain(|sequence, _| *sequence > taken || unfinished.contains(sequence));
    }

    /// The channel ended: what is not done has failed. `taken`: how many messages the receiver is
    /// known to have taken; those after that have `rest` for their fate.
    pub(crate) fn fail_all(&self, taken: u64, rest: MessageFate) {
        let mut state = lock(&self.0);
        let taken = taken.max(state.taken);
        let entries = std::mem::take(&mut state.entries);
        for (sequence, entry) in &entries {
            state.mark_failed(
                *sequence,
                entry,
                if *sequence <= taken { MessageFate::Taken } else { rest },
            );
        }
        drop(state);
        drop(entries);
    }

    /// The receiver takes nothing more, and is at work still on what it took: what it did not take
    /// has failed.
    pub(crate) fn fail_untaken(&self, taken: u64) {
        let mut state = lock(&self.0);
        let taken = taken.max(state.taken);
        let rest = state.entries.split_off(&taken.saturating_add(1));
        for (sequence, entry) in &rest {
            state.mark_failed(*sequence, entry, MessageFate::NotTaken);
        }
        drop(state);
        drop(rest);
    }

    /// What has failed and was not asked for yet.
    pub(crate) fn take_failed(&self) -> Vec<FailedMessage> {
        std::mem::take(&mut lock(&self.0).failed)
    }

    /// Whether anything ever failed.
    pub(crate) fn has_failures(&self) -> bool {
        lock(&self.0).has_failed
    }

    /// Messages that the receiver did not take yet.
    pub(crate) fn untaken_count(&self) -> usize {
        let state = lock(&self.0);
        state.entries.range(state.taken.saturating_add(1)..).count()
    }

    /// Messages that the receiver is not done with.
    pub(crate) fn unfinished_count(&self) -> usize {
        lock(&self.0).entries.len()
    }

    #[cfg_attr(not(feature = "zeromq"), allow(dead_code, reason = "for transports between hosts"))]
    /// The messages after `sequence`, to send them once more.
    pub(crate) fn messages_after(
        &self,
        sequence: u64,
    ) -> Vec<(u64, Option<Envelope>, Vec<Tensor>)> {
        let state = lock(&self.0);
        let later = state.entries.range(sequence.saturating_add(1)..);
        later
            .map(|(sequence, entry)| (*sequence, entry.envelope.clone(), entry.tensors.clone()))
            .collect()
    }
}

/// Who is told that a message was dropped.
pub(crate) trait ReceiptSink: Send + Sync {
    fn finish_message(&self, sequence: u64);
}

/// Goes with a message that was received; dropped with it, it tells the sender.
pub(crate) struct Receipt {
    sequence: u64,
    sink: Arc<dyn ReceiptSink>,
}

impl Receipt {
    pub(crate) fn new(sequence: u64, sink: Arc<dyn ReceiptSink>) -> Self {
        Self { sequence, sink }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.sink.finish_message(self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(count: u64) -> InFlightMessages {
        let in_flight = InFlightMessages::default();
        for sequence in 1..=count {
            let tensors = vec![Tensor::from_f32(&[1], &[0.0]).unwrap()];
            assert!(in_flight.track_message(sequence, RequestId(sequence.into()), tensors));
        }
        in_flight
    }

    #[test]
    fn what_was_not_done_at_the_end_has_failed_once() {
        let in_flight = in_flight(5);
        in_flight.mark_taken(3);
        in_flight.mark_finished(2);
        use MessageFate::{NotTaken, Taken};
        in_flight.fail_all(4, NotTaken);
        let failed: Vec<_> =
            in_flight.take_failed().iter().map(|failed| (failed.sequence, failed.fate)).collect();
        assert_eq!(failed, [(1, Taken), (3, Taken), (4, Taken), (5, NotTaken)]);
        assert!(in_flight.take_failed().is_empty());
    }

    #[test]
    fn tensors_are_held_until_they_are_taken_and_messages_until_they_are_done() {
        let in_flight = in_flight(3);
        in_flight.mark_taken(2);
        let held: Vec<_> =
            in_flight.messages_after(0).iter().map(|(_, _, tensors)| tensors.len()).collect();
        assert_eq!(held, [0, 0, 1]);
        assert_eq!((in_flight.untaken_count(), in_flight.unfinished_count()), (1, 3));
        in_flight.mark_finished(2);
        in_flight.mark_finished(1);
        assert_eq!((in_flight.untaken_count(), in_flight.unfinished_count()), (1, 1));
        // Neither the past nor the future can be finished.
        in_flight.mark_finished(1);
        in_flight.mark_finished(99);
        assert_eq!(in_flight.unfinished_count(), 1);
    }

    #[test]
    fn there_is_a_most() {
        let in_flight = in_flight(MAX_UNFINISHED as u64);
        assert!(!in_flight.track_message(MAX_UNFINISHED as u64 + 1, RequestId(0), Vec::new()));
        // Any of them makes room, also while the first is kept.
        in_flight.mark_finished(2);
        assert!(in_flight.track_message(MAX_UNFINISHED as u64 + 1, RequestId(0), Vec::new()));
    }
}
