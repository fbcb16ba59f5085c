//! The channels that an endpoint sends on, kept until nothing is in flight on them.
//!
//! A sender that is dropped may have messages in flight still, whose tensors are held here until
//! the receiver has them. Whoever is short of buffers asks all channels what came back.

use std::sync::{Arc, Mutex};

use tessera_core::lock;

use crate::channel::OutgoingChannel;
use crate::pool::BufferReclaimer;

/// The channels of an endpoint that something may be in flight on.
#[derive(Default)]
pub(crate) struct OutgoingChannels(Mutex<Vec<Arc<dyn OutgoingChannel>>>);

impl OutgoingChannels {
    /// Keeps a channel.
    pub(crate) fn keep_channel(&self, channel: Arc<dyn OutgoingChannel>) {
        lock(&self.0).push(channel);
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
