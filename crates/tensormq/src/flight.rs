//! What is in flight on a channel: sent, and not yet done with by the receiver.
//!
//! A message's tensors are held for it until the receiver took it; the message itself is remembered
//! until the receiver dropped it, so that a sender whose receiver dies can say which requests were
//! lost with it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tessera_core::Tensor;

use crate::layout::Envelope;
use crate::message::RequestId;
use crate::sync::{Mutex, lock};

/// How far a message had come when its channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The receiver never had it, and never will.
    NotTaken,
    /// The receiver had it and was not done with it.
    Taken,
    /// The network was cut and did not come back in time: the receiver may have had it or not.
    Unknown,
}

/// A message that was sent and will not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its number in the channel.
    pub sequence: u64,
    /// Its request.
    pub request: RequestId,
    /// How far it had come.
    pub fate: Fate,
}

/// Most messages of a channel that the receiver may have taken and not dropped.
///
/// Receivers report what they are done with through a queue of this size, which therefore can't
/// overflow.
pub(crate) const MOST_UNFINISHED: usize = 1024;

/// The messages of one channel that are in flight.
#[derive(Default)]
pub(crate) struct Flight(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By their numbers.
    entries: BTreeMap<u64, Entry>,
    /// How many messages the receiver took.
    taken: u64,
    failed: Vec<Failed>,
    /// Whether anything ever failed.
    flawed: bool,
}

struct Entry {
    request: RequestId,
    tensors: Vec<Tensor>,
    /// The rest of the message, where it may have to be sent again.
    envelope: Option<Envelope>,
}

impl Inner {
    fn fail(&mut self, sequence: u64, entry: &Entry, fate: Fate) {
        self.flawed = true;
        self.failed.push(Failed { sequence, request: entry.request, fate });
    }
}

impl Flight {
    /// Notes a message that is about to be sent; false where there are too many.
    pub(crate) fn add(&self, sequence: u64, request: RequestId, tensors: Vec<Tensor>) -> bool {
        self.keep(sequence, request, tensors, None)
    }

    /// The same for one that may have to be sent again.
    pub(crate) fn keep(
        &self,
        sequence: u64,
        request: RequestId,
        tensors: Vec<Tensor>,
        envelope: Option<Envelope>,
    ) -> bool {
        let mut inner = lock(&self.0);
        if inner.entries.len() >= MOST_UNFINISHED {
            return false;
        }
        inner.entries.insert(sequence, Entry { request, tensors, envelope });
        true
    }

    /// Forgets a message that was noted: it was not sent after all.
    pub(crate) fn remove(&self, sequence: u64) {
        let entry = lock(&self.0).entries.remove(&sequence);
        drop(entry);
    }

    /// Notes that the receiver took the first `taken` messages of the channel.
    pub(crate) fn took(&self, taken: u64) {
        let mut free = Vec::new();
        let mut inner = lock(&self.0);
        let from = inner.taken.saturating_add(1);
        inner.taken = inner.taken.max(taken);
        if from <= taken {
            for (_, entry) in inner.entries.range_mut(from..=taken) {
                free.append(&mut entry.tensors);
                entry.envelope = None;
            }
        }
        // Tensors go back to their pools outside of the lock: somebody may wait for them there.
        drop(inner);
        drop(free);
    }

    /// Notes that the receiver is done with a message.
    pub(crate) fn finish(&self, sequence: u64) {
        self.remove(sequence);
    }

    /// Notes that the receiver is done with all of the first `taken` messages but these.
    pub(crate) fn finish_all(&self, taken: u64, unfinished: &HashSet<u64>) {
        let mut inner = lock(&self.0);
        inner.entries.retain(|sequence, _| *sequence > taken || unfinished.contains(sequence));
    }

    /// The channel ended: what is not done has failed. `taken`: how many messages the receiver is
    /// known to have taken; those after that have `rest` for their fate.
    pub(crate) fn end(&self, taken: u64, rest: Fate) {
        let mut inner = lock(&self.0);
        let taken = taken.max(inner.taken);
        let entries = std::mem::take(&mut inner.entries);
        for (sequence, entry) in &entries {
            inner.fail(*sequence, entry, if *sequence <= taken { Fate::Taken } else { rest });
        }
        drop(inner);
        drop(entries);
    }

    /// The receiver takes nothing more, and is at work still on what it took: what it did not take
    /// has failed.
    pub(crate) fn abandon(&self, taken: u64) {
        let mut inner = lock(&self.0);
        let taken = taken.max(inner.taken);
        let rest = inner.entries.split_off(&taken.saturating_add(1));
        for (sequence, entry) in &rest {
            inner.fail(*sequence, entry, Fate::NotTaken);
        }
        drop(inner);
        drop(rest);
    }

    /// What has failed and was not asked for yet.
    pub(crate) fn take_failed(&self) -> Vec<Failed> {
        std::mem::take(&mut lock(&self.0).failed)
    }

    /// Whether anything ever failed.
    pub(crate) fn is_flawed(&self) -> bool {
        lock(&self.0).flawed
    }

    /// Messages that the receiver did not take yet.
    pub(crate) fn untaken(&self) -> usize {
        let inner = lock(&self.0);
        inner.entries.range(inner.taken.saturating_add(1)..).count()
    }

    /// Messages that the receiver is not done with.
    pub(crate) fn unfinished(&self) -> usize {
        lock(&self.0).entries.len()
    }

    /// The messages after `sequence`, to send them once more.
    pub(crate) fn after(&self, sequence: u64) -> Vec<(u64, Option<Envelope>, Vec<Tensor>)> {
        let inner = lock(&self.0);
        let later = inner.entries.range(sequence.saturating_add(1)..);
        later
            .map(|(sequence, entry)| (*sequence, entry.envelope.clone(), entry.tensors.clone()))
            .collect()
    }
}

/// Who is told that a message was dropped.
pub(crate) trait Finish: Send + Sync {
    fn finish(&self, sequence: u64);
}

/// Goes with a message that was received; dropped with it, it tells the sender.
pub(crate) struct Receipt {
    sequence: u64,
    channel: Arc<dyn Finish>,
}

impl Receipt {
    pub(crate) fn new(sequence: u64, channel: Arc<dyn Finish>) -> Self {
        Self { sequence, channel }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.channel.finish(self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(count: u64) -> Flight {
        let flight = Flight::default();
        for sequence in 1..=count {
            let tensors = vec![Tensor::from_f32(&[1], &[0.0]).unwrap()];
            assert!(flight.add(sequence, RequestId(sequence.into()), tensors));
        }
        flight
    }

    #[test]
    fn what_was_not_done_at_the_end_has_failed_once() {
        let flight = flight(5);
        flight.took(3);
        flight.finish(2);
        use Fate::{NotTaken, Taken};
        flight.end(4, NotTaken);
        let failed: Vec<_> =
            flight.take_failed().iter().map(|failed| (failed.sequence, failed.fate)).collect();
        assert_eq!(failed, [(1, Taken), (3, Taken), (4, Taken), (5, NotTaken)]);
        assert!(flight.take_failed().is_empty());
    }

    #[test]
    fn tensors_are_held_until_they_are_taken_and_messages_until_they_are_done() {
        let flight = flight(3);
        flight.took(2);
        let held: Vec<_> = flight.after(0).iter().map(|(_, _, tensors)| tensors.len()).collect();
        assert_eq!(held, [0, 0, 1]);
        assert_eq!((flight.untaken(), flight.unfinished()), (1, 3));
        flight.finish(2);
        flight.finish(1);
        assert_eq!((flight.untaken(), flight.unfinished()), (1, 1));
        // Neither the past nor the future can be finished.
        flight.finish(1);
        flight.finish(99);
        assert_eq!(flight.unfinished(), 1);
    }

    #[test]
    fn there_is_a_most() {
        let flight = flight(MOST_UNFINISHED as u64);
        assert!(!flight.add(MOST_UNFINISHED as u64 + 1, RequestId(0), Vec::new()));
        // Any of them makes room, also while the first is kept.
        flight.finish(2);
        assert!(flight.add(MOST_UNFINISHED as u64 + 1, RequestId(0), Vec::new()));
    }
}
