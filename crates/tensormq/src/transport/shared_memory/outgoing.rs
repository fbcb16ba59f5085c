//! The sending end of a channel between processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, Result, lock};

use super::pool_imports::ReachablePools;
use super::ring::{HeaderRing, RingWriter};
use super::unix_socket::{ReceivedPacket, UnixConnection};
use crate::alarm::{arm_alarm, disarm_alarm};
use crate::channel::{NotSent, OutgoingChannel, SendAttempt, inbox_closed};
use crate::in_flight::{InFlightMessages, MessageFate};
use crate::layout::TimeEncoding;
use crate::message::Message;
use crate::notifier::Notifier;
use crate::outgoing_channels::OutgoingChannels;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::driver::TransportContext;
use crate::wait::Wait;

/// The sending end.
pub(crate) struct SharedMemoryOutgoing {
    ring: HeaderRing,
    state: Mutex<RingSenderState>,
    depth: u32,
    connection: UnixConnection,
    inbox_notifier: Notifier,
    notifier: Notifier,
    in_flight: InFlightMessages,
    receiver_gone: AtomicBool,
    closed: AtomicBool,
    pools: Weak<ReachablePools>,
    outgoing: Weak<OutgoingChannels>,
    reactor: ReactorHandle,
    token: OnceLock<ReactorToken>,
}

struct RingSenderState {
    writer: RingWriter,
    last_sequence: u64,
}

impl SharedMemoryOutgoing {
    pub(crate) fn new(
        ring: HeaderRing,
        depth: u32,
        connection: UnixConnection,
        inbox_notifier: Notifier,
        notifier: Notifier,
        context: &TransportContext,
        pools: &Arc<ReachablePools>,
    ) -> Result<Arc<Self>> {
        let channel = Arc::new(Self {
            ring,
            state: Mutex::new(RingSenderState { writer: RingWriter::new(), last_sequence: 0 }),
            depth,
            connection,
            inbox_notifier,
            notifier,
            in_flight: InFlightMessages::default(),
            receiver_gone: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            pools: Arc::downgrade(pools),
            outgoing: Arc::downgrade(&context.outgoing),
            reactor: context.reactor.clone(),
            token: OnceLock::new(),
        });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&channel);
        let token =
            context.reactor.register_source(&channel.connection, Arc::downgrade(&source))?;
        channel.token.set(token).ok();
        Ok(channel)
    }

    /// Learns what the receiver took and is done with. All of it with the state locked: whoever
    /// looks after us must find what we found.
    fn apply_receipts(&self, state: &mut RingSenderState) {
        // In this order: what was taken before it closed must not count as not taken.
        let closed = self.ring.is_receiver_closed();
        let receipts = state.writer.take_receipts(&self.ring);
        let taken = self.ring.taken_count().min(state.last_sequence);
        self.in_flight.mark_taken(taken);
        for sequence in receipts.unwrap_or_default() {
            self.in_flight.mark_finished(sequence);
        }
        if closed {
            self.in_flight.fail_untaken(taken);
        }
    }

    /// Puts the message into the ring if there is room; gives back what to keep of it.
    fn push_message(&self, message: &Message) -> Result<Option<u64>> {
        if self.receiver_gone.load(Ordering::Acquire) {
            return Err(Error::lost("the receiver's process is gone"));
        }
        if self.ring.is_receiver_closed() {
            return Err(inbox_closed());
        }
        self.collect_receipts();
        // Before anything is copied: is there room?
        if self.in_flight.untaken_count() >= self.depth as usize {
            return Ok(None);
        }
        let pools = self.pools.upgrade().ok_or_else(|| Error::lost("the endpoint ended"))?;
        let Some((tensors, descriptors)) =
            pools.share_tensors(&message.tensors, message.is_early_send)?
        else {
            return Ok(None);
        };
        let mut state = lock(&self.state);
        let sequence = state.last_sequence + 1;
        let header =
            message.envelope.encode_header(sequence, TimeEncoding::HostClock, &descriptors)?;
        if !self.in_flight.track_message(sequence, message.request(), tensors) {
            return Ok(None);
        }
        match state.writer.push(&self.ring, &header) {
            Ok(Some(wake)) => {
                state.last_sequence = sequence;
                if wake {
                    self.inbox_notifier.notify();
                }
            }
            full_or_failed => {
                self.in_flight.untrack_message(sequence);
                return full_or_failed.map(|_| None);
            }
        }
        if self.receiver_gone.load(Ordering::Acquire) {
            // It died meanwhile, perhaps after what was in flight was gathered.
            self.in_flight.fail_all(self.ring.taken_count().min(sequence), MessageFate::NotTaken);
        }
        drop(state);
        Ok(Some(sequence))
    }
}

impl Drop for SharedMemoryOutgoing {
    fn drop(&mut self) {
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&self.connection, *token);
        }
    }
}

impl OutgoingChannel for SharedMemoryOutgoing {
    fn try_send(&self, message: Message) -> Result<SendAttempt, Box<NotSent>> {
        match self.push_message(&message) {
            Ok(Some(sequence)) => Ok(SendAttempt::Sent(sequence)),
            Ok(None) => Ok(SendAttempt::Full(message)),
            Err(error) => Err(Box::new(NotSent { error, message })),
        }
    }

    fn arm_wakeup(&self) {
        arm_alarm(self.ring.sender_alarm());
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(self.ring.sender_alarm());
    }

    fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    fn in_flight(&self) -> &InFlightMessages {
        &self.in_flight
    }

    fn collect_receipts(&self) {
        self.apply_receipts(&mut lock(&self.state));
    }

    fn is_lost(&self) -> bool {
        self.receiver_gone.load(Ordering::Acquire) || self.ring.is_receiver_closed()
    }

    fn is_over(&self) -> bool {
        let closed = self.closed.load(Ordering::Acquire) && self.in_flight.unfinished_count() == 0;
        closed || self.receiver_gone.load(Ordering::Acquire)
    }

    fn close_sending(&self) {
        self.closed.store(true, Ordering::Release);
        if self.ring.end_sending() {
            self.inbox_notifier.notify();
        }
        if let Some(outgoing) = self.outgoing.upgrade() {
            outgoing.forget_finished_channels();
        }
    }
}

impl EventSource for SharedMemoryOutgoing {
    fn on_readable(&self) {
        // The receiver says nothing here: what comes is the end.
        if let Ok(ReceivedPacket::Nothing | ReceivedPacket::Data(..)) =
            self.connection.receive_packet(Wait::No)
        {
            return;
        }
        self.receiver_gone.store(true, Ordering::Release);
        let mut state = lock(&self.state);
        self.apply_receipts(&mut state);
        self.in_flight
            .fail_all(self.ring.taken_count().min(state.last_sequence), MessageFate::NotTaken);
        drop(state);
        self.notifier.notify();
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&self.connection, *token);
        }
        if let Some(outgoing) = self.outgoing.upgrade() {
            outgoing.forget_finished_channels();
        }
    }
}
