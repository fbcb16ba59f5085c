//! The endpoint of a process: it makes inboxes, senders and pools, and holds what they share.

mod devices;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::address::{Address, host_identity};
use crate::inbox::Inbox;
use crate::inbox_registry::InboxRegistry;
use crate::keep_alive::KeepAlive;
use crate::options::{ConnectOptions, EndpointOptions, InboxOptions};
use crate::outgoing_channels::OutgoingChannels;
use crate::pool::{BufferReclaimer, Buffers, DeviceHooks, OpenPool, Pool, PoolRegistry};
use crate::random::random_u64;
use crate::reactor::Reactor;
use crate::sender::Sender;
use crate::transport::driver::TransportContext;
use crate::transport::id::Transport;
use crate::transport::registry::StartedTransports;
use crate::transport::tcp::tls_identity::TlsIdentity;

/// A process' end of the transport. Cheap to clone; it ends with the last clone, inbox and sender.
#[derive(Clone)]
pub struct Endpoint(Arc<EndpointInner>);

struct EndpointInner {
    /// The thread, which ends before what it works for.
    _reactor: Reactor,
    transports: StartedTransports,
    context: Arc<TransportContext>,
    spin_time: Duration,
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        self.context.outgoing.await_farewells();
    }
}

impl Endpoint {
    /// Starts the endpoint of this process.
    pub fn start(options: EndpointOptions) -> Result<Self> {
        let endpoint_id = random_u64()?;
        let (reactor, host) = (Reactor::start_thread()?, host_identity()?);
        let outgoing: Arc<OutgoingChannels> = Arc::default();
        let reclaimer: Arc<dyn BufferReclaimer> = Arc::<OutgoingChannels>::clone(&outgoing);
        let context = Arc::new(TransportContext {
            endpoint_id,
            host,
            reactor: reactor.new_handle(),
            inboxes: Arc::new(InboxRegistry::default()),
            pools: Arc::new(PoolRegistry::new(endpoint_id, Arc::downgrade(&reclaimer))),
            outgoing,
            devices: Arc::new(DeviceHooks::for_endpoint(&options)),
            keys: options.keys,
            tls: options.tls,
        });
        let transports = StartedTransports::start_all(&context)?;
        let spin_time = options.spin_time;
        Ok(Self(Arc::new(EndpointInner { _reactor: reactor, transports, context, spin_time })))
    }

    /// The number of this endpoint, unique over all processes and restarts.
    pub fn id(&self) -> u64 {
        self.0.context.endpoint_id
    }

    /// A pool of buffers that any process of this host can read.
    pub fn create_pool(&self, buffers: &[Buffers]) -> Result<Pool> {
        Ok(self.own_pool(self.0.context.pools.create_host_pool(buffers)?))
    }

    fn own_pool(&self, pool: Arc<OpenPool>) -> Pool {
        Pool::new(pool, Some(self.keep_alive()))
    }

    fn keep_alive(&self) -> KeepAlive {
        Arc::<EndpointInner>::clone(&self.0)
    }

    /// An inbox under a name that no other inbox of this process has.
    pub fn create_inbox(&self, name: &str, options: &InboxOptions) -> Result<Inbox> {
        let TransportContext { endpoint_id, host, inboxes, .. } = &*self.0.context;
        let shared = inboxes.create_shared(name, options.depth)?;
        let mut address = Address {
            inbox: name.to_owned(),
            endpoint_id: *endpoint_id,
            host: host.clone(),
            listeners: BTreeMap::new(),
            device: None,
        };
        let mut listeners = Vec::new();
        for listen in &options.listen {
            let driver = self.0.transports.driver_of(listen.transport);
            let opened = driver.and_then(|driver| driver.open_listener(&shared, listen, options));
            let opened = opened.map_err(|e: Error| e.with_context(format!("inbox \"{name}\"")))?;
            if let Some(opened) = opened {
                address = address.with_listener(listen.transport, opened.address);
                listeners.push(opened.listener);
            }
        }
        let (registry, spin_time) = (Arc::clone(inboxes), self.0.spin_time);
        Ok(Inbox::new(shared, registry, address, spin_time, listeners, self.keep_alive()))
    }

    /// The way from here to an inbox: the fastest that leads there.
    pub fn fastest_transport_to(&self, address: &Address) -> Result<Transport> {
        self.0.transports.fastest_to(address)
    }

    /// A channel to an inbox, by the fastest way that leads there.
    pub fn connect(&self, address: &Address) -> Result<Sender> {
        self.connect_with_options(address, &ConnectOptions::default())
    }

    /// A channel to an inbox.
    pub fn connect_with_options(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<Sender> {
        let transport = match options.transport {
            Some(transport) => transport,
            None => self.fastest_transport_to(address)?,
        };
        let driver = self.0.transports.driver_of(transport);
        let opened = driver.and_then(|driver| driver.open_channel(address, options));
        let (channel, peer) = opened.map_err(|error| {
            error.with_context(format!("inbox \"{}\" over {transport}", address.inbox))
        })?;
        Ok(Sender::new(channel, peer, self.0.spin_time, self.keep_alive()))
    }

    /// Who this process is to those of other hosts, where it is somebody.
    pub fn tls_identity(&self) -> Option<&TlsIdentity> {
        self.0.context.tls.as_ref()
    }

    /// Bytes that were copied because a tensor was not in a pool when it was sent.
    pub fn copied_bytes(&self) -> u64 {
        self.0.context.pools.copied_bytes()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({:016x})", self.id())
    }
}
