//! The channels that an endpoint sends on, kept until nothing is in flight on them.
//!
//! A sender that is dropped may have messages in flight still, whose tensors are held here until
//! the receiver has them. Whoever is short of buffers asks all channels what came back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::lock;

use crate::channel::OutgoingChannel;
use crate::pool::BufferReclaimer;
use crate::wait::Deadline;

/// For how long an endpoint that ends waits for its receivers to hear of it.
const MOST_FAREWELL: Duration = Duration::from_secs(3);
/// How often it looks.
const FAREWELL_INTERVAL: Duration = Duration::from_millis(1);

/// The channels of an endpoint that something may be in flight on.
#[derive(Default)]
pub(crate) struct OutgoingChannels(Mutex<Vec<Arc<dyn OutgoingChannel>>>);

impl OutgoingChannels {
    /// Keeps a channel.
    pub(crate) fn keep_channel(&self, channel: Arc<dyn OutgoingChannel>) {
        lock(&self.0).push(channel);
    }

    /// Waits for the receivers to hear that nothing more will come; not for long.
    ///
    /// A connection that is closed right after the last word may take it along: a receiver that is
    /// slow would then wait for a sender that is gone.
    pub(crate) fn await_farewells(&self) {
        let end = Deadline::after(MOST_FAREWELL);
        loop {
            let mut waiting: Vec<_> = lock(&self.0).clone();
            waiting.retain(|channel| {
                channel.collect_receipts();
                channel.awaits_farewell()
            });
            if waiting.is_empty() || end.has_passed() {
                return;
            }
            drop(waiting);
            std::thread::sleep(FAREWELL_INTERVAL);
        }
    }

    /// Lets go of channels on which nothing is in flight any more.
    pub(crate) fn forget_finished_channels(&self) {
        let mut over = Vec::new();
        let mut outgoing = lock(&self.0);
        let mut index = 0;
        while index < outgoing.len() {
            if outgoing[index].is_over() {
                over.push(outgoing.swap_remove(index));
            } else {
                index += 1;
            }
        }
        drop(outgoing);
        drop(over);
    }
}

impl BufferReclaimer for OutgoingChannels {
    fn reclaim_buffers(&self) {
        let outgoing: Vec<_> = lock(&self.0).clone();
        for channel in outgoing {
            channel.collect_receipts();
        }
    }
}
