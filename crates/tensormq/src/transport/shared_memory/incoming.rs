//! The receiving end of a channel between processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, Result, Tensor, lock};

use super::pool_imports::ReachablePools;
use super::ring::{HeaderRing, RingReader};
use super::unix_socket::{ReceivedPacket, UnixConnection};
use crate::alarm::{arm_alarm, disarm_alarm};
use crate::channel::{ChannelPeer, IncomingChannel, Received};
use crate::ids::RequestId;
use crate::in_flight::{Receipt, ReceiptSink};
use crate::layout::{HeaderView, TensorDescriptor};
use crate::message::Message;
use crate::notifier::Notifier;
use crate::pool::OpenPool;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::wait::Wait;

/// The receiving end.
pub(crate) struct SharedMemoryIncoming {
    ring: HeaderRing,
    reader: Mutex<RingReader>,
    connection: Arc<UnixConnection>,
    peer: ChannelPeer,
    inbox_notifier: Arc<Notifier>,
    sender_notifier: Notifier,
    sender_gone: AtomicBool,
    pools: Weak<ReachablePools>,
    reactor: ReactorHandle,
    token: OnceLock<ReactorToken>,
    weak_self: Weak<Self>,
}

impl SharedMemoryIncoming {
    pub(crate) fn new(
        ring: HeaderRing,
        connection: Arc<UnixConnection>,
        peer: ChannelPeer,
        inbox_notifier: Arc<Notifier>,
        sender_notifier: Notifier,
        reactor: &ReactorHandle,
        pools: Weak<ReachablePools>,
    ) -> Result<Arc<Self>> {
        let channel = Arc::new_cyclic(|weak_self| Self {
            ring,
            reader: Mutex::new(RingReader::new()),
            connection,
            peer,
            inbox_notifier,
            sender_notifier,
            sender_gone: AtomicBool::new(false),
            pools,
            reactor: reactor.clone(),
            token: OnceLock::new(),
            weak_self: weak_self.clone(),
        });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&channel);
        let token = reactor.register_source(&*channel.connection, Arc::downgrade(&source))?;
        channel.token.set(token).ok();
        Ok(channel)
    }

    pub(crate) fn ring(&self) -> &HeaderRing {
        &self.ring
    }

    fn read_message(&self) -> Result<Option<Received>> {
        let mut reader = lock(&self.reader);
        let Some(header) = reader.peek(&self.ring)? else { return Ok(None) };
        // Tensors are held before the message counts as taken: the sender lets go of them then.
        let mut pools = Vec::new();
        let (request, result) = match HeaderView::parse_with_tensors(&header) {
            Ok((view, descriptors)) => {
                let tensors = self.resolve_tensors(&descriptors, &mut pools);
                (Some(RequestId(view.request())), tensors.map(|all| (view.envelope(), all)))
            }
            Err(error) => (None, Err(error)),
        };
        let (sequence, wake) = reader.pop(&self.ring, header.len());
        if wake {
            self.sender_notifier.notify();
        }
        drop(reader);
        for pool in pools {
            pool.notify_owner();
        }
        let own = self.weak_self.upgrade().ok_or_else(|| Error::lost("the channel ended"))?;
        let receipt = Some(Receipt::new(sequence, own));
        Ok(Some(match result {
            Ok((envelope, tensors)) => {
                Received::Message(Message { envelope, tensors, receipt, is_early_send: false })
            }
            Err(error) => Received::Failed { peer: self.peer.clone(), request, error },
        }))
    }

    /// The tensors of a header, held, and the pools that they are in.
    fn resolve_tensors(
        &self,
        descriptors: &[TensorDescriptor],
        pools: &mut Vec<Arc<OpenPool>>,
    ) -> Result<Vec<Tensor>> {
        let reachable = self.pools.upgrade().ok_or_else(|| Error::lost("the endpoint ended"))?;
        descriptors.iter().map(|tensor| reachable.resolve_tensor(tensor, pools)).collect()
    }
}

impl Drop for SharedMemoryIncoming {
    fn drop(&mut self) {
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&*self.connection, *token);
        }
    }
}

impl IncomingChannel for SharedMemoryIncoming {
    fn take_next(&self) -> Option<Received> {
        // Read before looking for messages: what came before the end is received before it.
        let sender_gone = self.sender_gone.load(Ordering::Acquire);
        let closed = self.ring.is_sender_closed();
        match self.read_message() {
            Ok(Some(received)) => Some(received),
            Ok(None) if closed => Some(Received::Closed(self.peer.clone())),
            Ok(None) if sender_gone => {
                Some(Received::Lost(self.peer.clone(), Error::lost("the sender's process is gone")))
            }
            Ok(None) => None,
            Err(error) => {
                self.close_receiving();
                Some(Received::Lost(self.peer.clone(), error))
            }
        }
    }

    fn arm_wakeup(&self) {
        arm_alarm(self.ring.receiver_alarm());
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(self.ring.receiver_alarm());
    }

    fn close_receiving(&self) {
        if self.ring.end_receiving() {
            self.sender_notifier.notify();
        }
    }
}

impl ReceiptSink for SharedMemoryIncoming {
    fn finish_message(&self, sequence: u64) {
        if lock(&self.reader).push_receipt(&self.ring, sequence) {
            self.sender_notifier.notify();
        }
    }
}

impl EventSource for SharedMemoryIncoming {
    fn on_readable(&self) {
        if let Ok(ReceivedPacket::Nothing | ReceivedPacket::Data(..)) =
            self.connection.receive_packet(Wait::No)
        {
            return;
        }
        self.sender_gone.store(true, Ordering::Release);
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&*self.connection, *token);
        }
        self.inbox_notifier.notify();
    }
}
