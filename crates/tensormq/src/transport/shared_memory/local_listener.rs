//! Where other processes of this host connect, and what they are given: a channel, or a pool.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, Result, lock};

use super::handshake::{HandshakePacket, endpoint_socket_name};
use super::incoming::SharedMemoryIncoming;
use super::pool_exports::PoolExports;
use super::pool_imports::ReachablePools;
use super::ring::HeaderRing;
use super::unix_socket::{ReceivedPacket, UnixConnection, UnixSocketListener};
use crate::channel::ChannelPeer;
use crate::notifier::Notifier;
use crate::reactor::{EventSource, ReactorToken};
use crate::transport::driver::TransportContext;
use crate::transport::id::Transport;
use crate::wait::Wait;

/// Most processes that have connected and not said what they want.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// Where other processes connect.
pub(super) struct LocalListener {
    listener: UnixSocketListener,
    context: Arc<TransportContext>,
    pools: Weak<ReachablePools>,
    exports: Arc<PoolExports>,
    /// Processes that have connected and not said what they want.
    pending: Mutex<Vec<Arc<PendingConnection>>>,
    weak_self: Weak<Self>,
}

impl LocalListener {
    /// Opens it: from now on the reactor accepts others.
    pub(super) fn open_and_watch(
        context: &Arc<TransportContext>,
        pools: &Arc<ReachablePools>,
    ) -> Result<Arc<Self>> {
        let listener = UnixSocketListener::bind(&endpoint_socket_name(context.endpoint_id))?;
        let local_listener = Arc::new_cyclic(|weak_self| Self {
            listener,
            context: Arc::clone(context),
            pools: Arc::downgrade(pools),
            exports: Arc::default(),
            pending: Mutex::default(),
            weak_self: weak_self.clone(),
        });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&local_listener);
        context.reactor.register_source(&local_listener.listener, Arc::downgrade(&source))?;
        Ok(local_listener)
    }

    /// Answers a process that said what it wants.
    fn answer_request(&self, connection: &Arc<UnixConnection>, bytes: &[u8], fds: Vec<OwnedFd>) {
        let done = match HandshakePacket::from_bytes(bytes) {
            Ok(HandshakePacket::Open { inbox, endpoint_id }) => {
                self.accept_channel(connection, &inbox, endpoint_id, fds)
            }
            Ok(HandshakePacket::Attach { pool }) => {
                self.exports.export_pool(&self.context, connection, pool)
            }
            Ok(_) => Err(Error::invalid("neither a channel nor a pool was asked for")),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            // It may be gone already; then there is nobody to tell.
            connection.send_packet(&HandshakePacket::refusal_for(&error).to_bytes(), &[]).ok();
        }
    }

    fn accept_channel(
        &self,
        connection: &Arc<UnixConnection>,
        inbox: &str,
        endpoint_id: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
        let inbox = self.context.inboxes.find_inbox(inbox)?;
        let notifier = fds.into_iter().next();
        let notifier = notifier.ok_or_else(|| Error::invalid("a channel without a notifier"))?;
        let ring = HeaderRing::create(inbox.depth)?;
        let process = Some(connection.peer_process());
        let peer = ChannelPeer { transport: Transport::SHM, endpoint_id, process };
        let inbox_notifier = Arc::clone(&inbox.notifier);
        let notifier = Notifier::from_peer(notifier);
        let channel = SharedMemoryIncoming::new(
            ring,
            Arc::clone(connection),
            peer,
            inbox_notifier,
            notifier,
            &self.context.reactor,
            Weak::clone(&self.pools),
        )?;
        let len = channel.ring().segment().len() as u64;
        let opened = HandshakePacket::Opened { len, depth: inbox.depth };
        let memory = channel.ring().segment().as_fd();
        connection.send_packet(&opened.to_bytes(), &[memory, inbox.notifier.as_fd()])?;
        inbox.add_channel(channel)
    }
}

impl EventSource for LocalListener {
    fn on_readable(&self) {
        while let Some(connection) = self.listener.accept() {
            let pending = Arc::new(PendingConnection {
                connection: Arc::new(connection),
                listener: Weak::clone(&self.weak_self),
                token: OnceLock::new(),
            });
            let mut all_pending = lock(&self.pending);
            if all_pending.len() >= MAX_PENDING_CONNECTIONS {
                continue;
            }
            all_pending.push(Arc::clone(&pending));
            drop(all_pending);
            let source: Arc<dyn EventSource> = Arc::<PendingConnection>::clone(&pending);
            let reactor = &self.context.reactor;
            match reactor.register_source(&*pending.connection, Arc::downgrade(&source)) {
                Ok(token) => drop(pending.token.set(token)),
                Err(_) => pending.stop_watching(),
            }
        }
    }
}

/// A process that has connected and not said what it wants.
struct PendingConnection {
    connection: Arc<UnixConnection>,
    listener: Weak<LocalListener>,
    token: OnceLock<ReactorToken>,
}

impl PendingConnection {
    fn stop_watching(&self) {
        let Some(listener) = self.listener.upgrade() else { return };
        if let Some(token) = self.token.get() {
            listener.context.reactor.deregister_source(&*self.connection, *token);
        }
        lock(&listener.pending).retain(|pending| !std::ptr::eq(&raw const **pending, self));
    }
}

impl EventSource for PendingConnection {
    fn on_readable(&self) {
        let Some(listener) = self.listener.upgrade() else { return };
        match self.connection.receive_packet(Wait::No) {
            Ok(ReceivedPacket::Nothing) => {}
            Ok(ReceivedPacket::Data(bytes, fds)) => {
                // From here on the connection is watched by what it becomes.
                self.stop_watching();
                listener.answer_request(&self.connection, &bytes, fds);
            }
            Ok(ReceivedPacket::End) | Err(_) => self.stop_watching(),
        }
    }
}
