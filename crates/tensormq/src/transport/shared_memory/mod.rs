//! Between processes of a host: headers through a ring in shared memory, tensors where they are.
//!
//! Every endpoint listens at one Unix socket ([`local_listener`]) for processes that want a channel
//! to an inbox, or a pool that a tensor of theirs is in. What they get are descriptors of anonymous
//! memory ([`handshake`], [`unix_socket`]); from then on nothing goes through the kernel but
//! wake-ups. The socket stays open, so that both sides hear of the other's end at once.
//!
//! | file | |
//! |---|---|
//! | `ring` | the memory of a channel |
//! | `outgoing`, `incoming` | its two ends |
//! | `tensor_places` | from tensors to where they are, and back |
//! | `pool_imports`, `pool_exports` | pools of others that we have open, and the reverse |

mod handshake;
mod incoming;
mod local_listener;
mod outgoing;
mod pool_exports;
mod pool_imports;
mod ring;
mod tensor_places;
mod unix_socket;

use std::os::fd::AsFd;
use std::sync::Arc;

use tessera_core::{Error, Result};

use super::driver::{TransportContext, TransportDriver, TransportEntry};
use super::id::Transport;
use crate::address::Address;
use crate::channel::{ChannelPeer, OutgoingChannel};
use crate::notifier::Notifier;
use crate::options::ConnectOptions;
use handshake::{HandshakePacket, connect_to_endpoint, receive_answer};
use local_listener::LocalListener;
use outgoing::SharedMemoryOutgoing;
use pool_imports::ReachablePools;
use ring::HeaderRing;

impl Transport {
    /// Between processes of a host: shared memory.
    pub const SHM: Self = Self::with_name("shm");
}

/// How it is started.
pub(super) const ENTRY: TransportEntry = TransportEntry {
    transports: &[Transport::SHM],
    start: Ok(|context| Ok(vec![Box::new(SharedMemoryTransport::start(context)?)])),
};

/// Shared memory in this endpoint.
struct SharedMemoryTransport {
    context: Arc<TransportContext>,
    pools: Arc<ReachablePools>,
    /// Where other processes connect.
    _listener: Arc<LocalListener>,
}

impl SharedMemoryTransport {
    fn start(context: &Arc<TransportContext>) -> Result<Self> {
        let pools = Arc::new(ReachablePools::new(context));
        let listener = LocalListener::open_and_watch(context, &pools)?;
        Ok(Self { context: Arc::clone(context), pools, _listener: listener })
    }
}

impl TransportDriver for SharedMemoryTransport {
    fn id(&self) -> Transport {
        Transport::SHM
    }

    fn is_preferred_for(&self, address: &Address) -> bool {
        address.host == self.context.host
    }

    fn open_channel(
        &self,
        address: &Address,
        _: &ConnectOptions,
    ) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)> {
        let connection = connect_to_endpoint(address.endpoint_id)?;
        let notifier = Notifier::new()?;
        let endpoint_id = self.context.endpoint_id;
        let open = HandshakePacket::Open { inbox: address.inbox.clone(), endpoint_id };
        connection.send_packet(&open.to_bytes(), &[notifier.as_fd()])?;
        let (answer, fds) = receive_answer(&connection)?;
        let mut fds = fds.into_iter();
        let (HandshakePacket::Opened { len, depth }, Some(memory), Some(inbox_notifier)) =
            (answer, fds.next(), fds.next())
        else {
            return Err(Error::invalid("an answer to something else"));
        };
        let ring = HeaderRing::open(memory, len, depth)?;
        let process = Some(connection.peer_process());
        let peer = ChannelPeer { transport: self.id(), endpoint_id: address.endpoint_id, process };
        let notifiers = (Notifier::from_peer(inbox_notifier), notifier);
        let channel = SharedMemoryOutgoing::new(
            ring,
            depth,
            connection,
            notifiers.0,
            notifiers.1,
            &self.context,
            &self.pools,
        )?;
        self.context.outgoing.keep_channel(Arc::<SharedMemoryOutgoing>::clone(&channel));
        Ok((channel, peer))
    }
}
