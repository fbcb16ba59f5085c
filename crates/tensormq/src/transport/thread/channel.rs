//! Between threads of a process: the message itself changes hands.

use std::sync::{Arc, Mutex};

use tessera_core::lock;

use super::handover::{Handover, Refused};
use crate::alarm::{arm_alarm, claim_wakeup, disarm_alarm};
use crate::channel::{
    ChannelPeer, IncomingChannel, NotSent, OutgoingChannel, Received, SendAttempt, inbox_closed,
};
use crate::in_flight::{InFlightMessages, Receipt, ReceiptSink};
use crate::message::Message;
use crate::notifier::Notifier;

/// Both ends of a channel: they are in the same process.
pub(crate) struct ThreadChannel {
    handover: Handover<(u64, Message)>,
    /// Number of the message that was sent last.
    last_sequence: Mutex<u64>,
    in_flight: InFlightMessages,
    peer: ChannelPeer,
    inbox_notifier: Arc<Notifier>,
    sender_notifier: Notifier,
}

impl ThreadChannel {
    pub(crate) fn new(
        depth: u32,
        peer: ChannelPeer,
        inbox_notifier: Arc<Notifier>,
    ) -> tessera_core::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            handover: Handover::new(depth as usize),
            last_sequence: Mutex::new(0),
            in_flight: InFlightMessages::default(),
            peer,
            inbox_notifier,
            sender_notifier: Notifier::new()?,
        }))
    }
}

/// The receiving end; a type of its own because receipts refer to the channel.
pub(crate) struct ThreadIncoming(pub(crate) Arc<ThreadChannel>);

impl IncomingChannel for ThreadIncoming {
    fn take_next(&self) -> Option<Received> {
        let channel = &self.0;
        match channel.handover.pop() {
            Some(((sequence, mut message), wake)) => {
                if wake {
                    channel.sender_notifier.notify();
                }
                let sink: Arc<dyn ReceiptSink> = Arc::<ThreadChannel>::clone(channel);
                message.receipt = Some(Receipt::new(sequence, sink));
                Some(Received::Message(message))
            }
            None if channel.handover.is_over() => Some(Received::Closed(channel.peer.clone())),
            None => None,
        }
    }

    fn arm_wakeup(&self) {
        arm_alarm(&self.0.handover.receiver_alarm);
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(&self.0.handover.receiver_alarm);
    }

    fn close_receiving(&self) {
        // Nothing may be halfway sent meanwhile: it would count as failed and come back too.
        let sending = lock(&self.0.last_sequence);
        let (rest, wake) = self.0.handover.end_receiving();
        self.0.in_flight.fail_untaken(self.0.handover.taken());
        drop(sending);
        if wake {
            self.0.sender_notifier.notify();
        }
        drop(rest);
    }
}

impl ReceiptSink for ThreadChannel {
    fn finish_message(&self, sequence: u64) {
        self.in_flight.mark_finished(sequence);
        if claim_wakeup(&self.handover.sender_alarm) {
            self.sender_notifier.notify();
        }
    }
}

impl OutgoingChannel for ThreadChannel {
    fn try_send(&self, mut message: Message) -> Result<SendAttempt, Box<NotSent>> {
        let mut last = lock(&self.last_sequence);
        let sequence = *last + 1;
        if !self.in_flight.track_message(sequence, message.request(), Vec::new()) {
            return Ok(SendAttempt::Full(message));
        }
        // A message that was received is done with once it is forwarded.
        let receipt = message.receipt.take();
        match self.handover.push((sequence, message)) {
            Ok(wake) => {
                drop(receipt);
                *last = sequence;
                if wake {
                    self.inbox_notifier.notify();
                }
                Ok(SendAttempt::Sent(sequence))
            }
            Err(Refused::Full((_, mut message))) => {
                self.in_flight.untrack_message(sequence);
                message.receipt = receipt;
                Ok(SendAttempt::Full(message))
            }
            Err(Refused::ReceiverGone((_, mut message))) => {
                self.in_flight.untrack_message(sequence);
                message.receipt = receipt;
                Err(Box::new(NotSent { error: inbox_closed(), message }))
            }
        }
    }

    fn arm_wakeup(&self) {
        arm_alarm(&self.handover.sender_alarm);
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(&self.handover.sender_alarm);
    }

    fn notifier(&self) -> &Notifier {
        &self.sender_notifier
    }

    fn in_flight(&self) -> &InFlightMessages {
        &self.in_flight
    }

    fn collect_receipts(&self) {
        self.in_flight.mark_taken(self.handover.taken());
    }

    fn is_lost(&self) -> bool {
        self.handover.is_abandoned()
    }

    fn is_over(&self) -> bool {
        self.is_lost()
    }

    fn close_sending(&self) {
        if self.handover.end_sending() {
            self.inbox_notifier.notify();
        }
    }
}
