//! Processes that have a pool of ours open: what they hold is free when they are gone.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, PoolId, Result, lock};

use super::handshake::HandshakePacket;
use super::unix_socket::{ReceivedPacket, UnixConnection};
use crate::pool::{OpenPool, PoolHolder};
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::driver::TransportContext;
use crate::wait::Wait;

/// All of them.
#[derive(Default)]
pub(super) struct PoolExports(Mutex<Vec<Arc<PoolExport>>>);

impl PoolExports {
    /// Has another process open a pool of ours.
    pub(super) fn export_pool(
        self: &Arc<Self>,
        context: &TransportContext,
        connection: &Arc<UnixConnection>,
        id: PoolId,
    ) -> Result<()> {
        let pool = context.pools.find_pool(id);
        let pool = pool.ok_or_else(|| Error::not_found("there is no such pool"))?;
        let description = pool.admit_holder(as_holder(connection))?;
        let export = Arc::new(PoolExport {
            connection: Arc::clone(connection),
            pool: Arc::downgrade(&pool),
            exports: Arc::downgrade(self),
            reactor: context.reactor.clone(),
            token: OnceLock::new(),
        });
        lock(&self.0).push(Arc::clone(&export));
        let source: Arc<dyn EventSource> = Arc::<PoolExport>::clone(&export);
        let (control, payload, notifier) = pool.shared_descriptors();
        let fds = [control.as_fd(), payload.as_fd(), notifier.as_fd()];
        // Watched before it gets the pool: from then on it must be noticed when it goes.
        let added = context.reactor.register_source(&*export.connection, Arc::downgrade(&source));
        let sent = added.and_then(|token| {
            export.token.set(token).ok();
            connection.send_packet(&HandshakePacket::Attached(description).to_bytes(), &fds)
        });
        sent.inspect_err(|_| export.end_export())
    }
}

impl PoolHolder for UnixConnection {
    fn request_buffers_back(&self) {
        // One that is gone is dismissed by the reactor; one that is asked already need not be asked
        // again.
        self.send_packet(&HandshakePacket::ReclaimBuffers.to_bytes(), &[]).ok();
    }

    fn end_holding(&self) {
        self.shut_down();
    }
}

fn as_holder(connection: &Arc<UnixConnection>) -> Arc<dyn PoolHolder> {
    Arc::<UnixConnection>::clone(connection)
}

/// A process that has a pool of ours open.
struct PoolExport {
    connection: Arc<UnixConnection>,
    pool: Weak<OpenPool>,
    exports: Weak<PoolExports>,
    reactor: ReactorHandle,
    token: OnceLock<ReactorToken>,
}

impl PoolExport {
    fn end_export(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.dismiss_holder(&as_holder(&self.connection));
        }
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&*self.connection, *token);
        }
        if let Some(exports) = self.exports.upgrade() {
            lock(&exports.0).retain(|export| !std::ptr::eq(&raw const **export, self));
        }
    }
}

impl EventSource for PoolExport {
    fn on_readable(&self) {
        if let Ok(ReceivedPacket::Nothing | ReceivedPacket::Data(..)) =
            self.connection.receive_packet(Wait::No)
        {
            return;
        }
        self.end_export();
    }
}
