//! Between threads of a process: the message itself changes hands.

use std::sync::Arc;

use crate::bell::Bell;
use crate::channel::{Attempt, Incoming, NotSent, Outgoing, Peer, Received};
use crate::flight::{Finish, Flight, Receipt};
use crate::handover::{Handover, Refused, arm, disarm, raise};
use crate::message::Message;
use crate::sync::{Mutex, lock};

/// Both ends of a channel: they are in the same process.
pub(crate) struct ThreadChannel {
    handover: Handover<(u64, Message)>,
    /// Number of the message that was sent last.
    sequence: Mutex<u64>,
    flight: Flight,
    peer: Peer,
    inbox_bell: Arc<Bell>,
    sender_bell: Bell,
}

impl ThreadChannel {
    pub(crate) fn new(
        depth: u32,
        peer: Peer,
        inbox_bell: Arc<Bell>,
    ) -> tessera_core::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            handover: Handover::new(depth as usize),
            sequence: Mutex::new(0),
            flight: Flight::default(),
            peer,
            inbox_bell,
            sender_bell: Bell::new()?,
        }))
    }
}

/// The receiving end; a type of its own because receipts refer to the channel.
pub(crate) struct ThreadIncoming(pub(crate) Arc<ThreadChannel>);

impl Incoming for ThreadIncoming {
    fn take(&self) -> Option<Received> {
        let channel = &self.0;
        match channel.handover.pop() {
            Some(((sequence, mut message), wake)) => {
                if wake {
                    channel.sender_bell.ring();
                }
                let finish: Arc<dyn Finish> = Arc::<ThreadChannel>::clone(channel);
                message.receipt = Some(Receipt::new(sequence, finish));
                Some(Received::Message(message))
            }
            None if channel.handover.is_over() => Some(Received::Closed(channel.peer.clone())),
            None => None,
        }
    }

    fn arm(&self) {
        arm(&self.0.handover.receiver_alarm);
    }

    fn disarm(&self) {
        disarm(&self.0.handover.receiver_alarm);
    }

    fn close(&self) {
        // Nothing may be halfway sent meanwhile: it would count as failed and come back too.
        let sending = lock(&self.0.sequence);
        let (rest, wake) = self.0.handover.end_receiving();
        self.0.flight.abandon(self.0.handover.taken());
        drop(sending);
        if wake {
            self.0.sender_bell.ring();
        }
        drop(rest);
    }
}

impl Finish for ThreadChannel {
    fn finish(&self, sequence: u64) {
        self.flight.finish(sequence);
        if raise(&self.handover.sender_alarm) {
            self.sender_bell.ring();
        }
    }
}

impl Outgoing for ThreadChannel {
    fn try_send(&self, mut message: Message) -> Result<Attempt, Box<NotSent>> {
        let mut last = lock(&self.sequence);
        let sequence = *last + 1;
        if !self.flight.add(sequence, message.request(), Vec::new()) {
            return Ok(Attempt::Full(message));
        }
        // A message that was received is done with once it is sent on.
        let receipt = message.receipt.take();
        match self.handover.push((sequence, message)) {
            Ok(wake) => {
                drop(receipt);
                *last = sequence;
                if wake {
                    self.inbox_bell.ring();
                }
                Ok(Attempt::Sent(sequence))
            }
            Err(Refused::Full((_, mut message))) => {
                self.flight.remove(sequence);
                message.receipt = receipt;
                Ok(Attempt::Full(message))
            }
            Err(Refused::ReceiverGone((_, mut message))) => {
                self.flight.remove(sequence);
                message.receipt = receipt;
                Err(Box::new(NotSent { error: crate::sender::inbox_closed(), message }))
            }
        }
    }

    fn arm(&self) {
        arm(&self.handover.sender_alarm);
    }

    fn disarm(&self) {
        disarm(&self.handover.sender_alarm);
    }

    fn bell(&self) -> &Bell {
        &self.sender_bell
    }

    fn flight(&self) -> &Flight {
        &self.flight
    }

    fn settle(&self) {
        self.flight.took(self.handover.taken());
    }

    fn is_lost(&self) -> bool {
        self.handover.is_abandoned()
    }

    fn is_over(&self) -> bool {
        self.is_lost()
    }

    fn close(&self) {
        if self.handover.end_sending() {
            self.inbox_bell.ring();
        }
    }
}
