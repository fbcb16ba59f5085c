//! Pools of other processes that this one has open, each opened once, beside its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, PoolId, Result, lock};

use super::handshake::{HandshakePacket, connect_to_endpoint, receive_answer};
use super::unix_socket::{ReceivedPacket, UnixConnection};
use crate::notifier::Notifier;
use crate::outgoing_channels::OutgoingChannels;
use crate::pool::{BufferReclaimer, DeviceHooks, OpenPool, PoolRegistry};
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::driver::TransportContext;
use crate::wait::Wait;

/// The pools that tensors can be in which are sent and received here: our own, and those of others
/// that are open.
pub(super) struct ReachablePools {
    own: Arc<PoolRegistry>,
    imports: Mutex<HashMap<PoolId, Arc<PoolImport>>>,
    outgoing: Weak<OutgoingChannels>,
    devices: Arc<DeviceHooks>,
    reactor: ReactorHandle,
}

impl ReachablePools {
    pub(super) fn new(context: &TransportContext) -> Self {
        Self {
            own: Arc::clone(&context.pools),
            imports: Mutex::default(),
            outgoing: Arc::downgrade(&context.outgoing),
            devices: Arc::clone(&context.devices),
            reactor: context.reactor.clone(),
        }
    }

    /// Our own.
    pub(super) fn own_pools(&self) -> &PoolRegistry {
        &self.own
    }

    /// A pool by its name, ours or another's.
    pub(super) fn open_or_import_pool(&self, id: PoolId) -> Result<Arc<OpenPool>> {
        if self.own.owns_pool(id) {
            let pool = self.own.find_pool(id);
            return pool.ok_or_else(|| Error::not_found("a tensor in a pool that is gone"));
        }
        // Held while the owner is asked, so that a pool is opened once; the reactor never takes it.
        let mut imports = lock(&self.imports);
        if let Some(import) = imports.get(&id)
            && !import.owner_gone.load(Ordering::Acquire)
            && let Some(pool) = &*lock(&import.pool)
        {
            return Ok(Arc::clone(pool));
        }
        imports.retain(|_, import| !import.owner_gone.load(Ordering::Acquire));
        let import =
            self.import_pool(id).map_err(|error| error.with_context("the pool of a tensor"))?;
        let pool = lock(&import.pool).clone();
        imports.insert(id, import);
        pool.ok_or_else(|| Error::lost("the owner of a pool went away"))
    }

    /// A pool that whoever gets a tensor of it can open: its owner is there.
    pub(super) fn reachable_pool(&self, id: PoolId) -> Option<Arc<OpenPool>> {
        if self.own.owns_pool(id) {
            return self.own.find_pool(id);
        }
        let import = lock(&self.imports).get(&id).cloned()?;
        let pool = lock(&import.pool).clone();
        pool.filter(|_| !import.owner_gone.load(Ordering::Acquire))
    }

    fn import_pool(&self, id: PoolId) -> Result<Arc<PoolImport>> {
        let connection = Arc::new(connect_to_endpoint(id.owner)?);
        connection.send_packet(&HandshakePacket::Attach { pool: id }.to_bytes(), &[])?;
        // The owner may be short of buffers at this very moment, and ask us too.
        let (answer, fds) = loop {
            match receive_answer(&connection)? {
                (HandshakePacket::ReclaimBuffers, _) => {}
                other => break other,
            }
        };
        let mut fds = fds.into_iter();
        let (HandshakePacket::Attached(description), Some(control), Some(payload), Some(notifier)) =
            (answer, fds.next(), fds.next(), fds.next())
        else {
            return Err(Error::invalid("an answer to something else"));
        };
        if description.id != id {
            return Err(Error::invalid("another pool than the one that was asked for"));
        }
        let reclaimer: Weak<dyn BufferReclaimer> = Weak::<OutgoingChannels>::clone(&self.outgoing);
        let notifier = Notifier::from_peer(notifier);
        let owner = Arc::clone(&connection);
        let pool = OpenPool::open_imported(
            description,
            control,
            payload,
            notifier,
            reclaimer,
            owner,
            &self.devices,
        )?;
        let import = Arc::new(PoolImport {
            pool: Mutex::new(Some(pool)),
            connection: Mutex::new(Some(Arc::clone(&connection))),
            owner_gone: AtomicBool::new(false),
            outgoing: Weak::clone(&self.outgoing),
            devices: Arc::clone(&self.devices),
            reactor: self.reactor.clone(),
            token: OnceLock::new(),
        });
        let source: Arc<dyn EventSource> = Arc::<PoolImport>::clone(&import);
        let token = self.reactor.register_source(&*connection, Arc::downgrade(&source))?;
        import.token.set(token).ok();
        Ok(import)
    }
}

/// Another process, whose pool we have open.
struct PoolImport {
    /// Until its owner is gone or needs it no more.
    pool: Mutex<Option<Arc<OpenPool>>>,
    /// The same: no descriptor is kept for a pool that is gone.
    connection: Mutex<Option<Arc<UnixConnection>>>,
    owner_gone: AtomicBool,
    outgoing: Weak<OutgoingChannels>,
    devices: Arc<DeviceHooks>,
    reactor: ReactorHandle,
    token: OnceLock<ReactorToken>,
}

impl EventSource for PoolImport {
    fn on_readable(&self) {
        let Some(connection) = lock(&self.connection).clone() else { return };
        match connection.receive_packet(Wait::No) {
            Ok(ReceivedPacket::Nothing) => {}
            // Whatever it says, there is one thing that it can want.
            Ok(ReceivedPacket::Data(..)) => {
                if let Some(outgoing) = self.outgoing.upgrade() {
                    outgoing.reclaim_buffers();
                }
            }
            Ok(ReceivedPacket::End) | Err(_) => {
                self.owner_gone.store(true, Ordering::Release);
                let pool = lock(&self.pool).take();
                if let Some(pool) = pool {
                    self.devices.handle_owner_lost(pool);
                }
                if let Some(token) = self.token.get() {
                    self.reactor.deregister_source(&*connection, *token);
                }
                *lock(&self.connection) = None;
            }
        }
    }
}
