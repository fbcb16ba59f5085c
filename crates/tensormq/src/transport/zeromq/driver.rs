//! ZeroMQ as the registry sees it: two transports over one context.

use std::sync::{Arc, Mutex};

use tessera_core::{Error, Result, lock};

use super::context::ZeroMqContext;
use super::link::ZeroMqDialler;
use super::listener::bind_listener;
use super::socket::check_socket_address;
use crate::address::Address;
use crate::channel::{ChannelPeer, OutgoingChannel};
use crate::inbox_registry::InboxShared;
use crate::options::{ConnectOptions, InboxOptions, Listen};
use crate::transport::driver::{OpenedListener, TransportContext, TransportDriver};
use crate::transport::id::Transport;
use crate::transport::network::listener::RetiringListeners;
use crate::transport::network::outgoing::open_network_channel;

/// Starts both.
pub(super) fn start_transports(
    context: &Arc<TransportContext>,
) -> Result<Vec<Box<dyn TransportDriver>>> {
    let shared = Arc::new(ZeroMqState {
        endpoint: Arc::clone(context),
        context: Mutex::default(),
        retiring: Arc::default(),
    });
    let driver = |transport| -> Box<dyn TransportDriver> {
        Box::new(ZeroMqTransport { transport, shared: Arc::clone(&shared) })
    };
    Ok(vec![driver(Transport::ZMQ_IPC), driver(Transport::ZMQ_TCP)])
}

/// One of the two.
struct ZeroMqTransport {
    transport: Transport,
    shared: Arc<ZeroMqState>,
}

/// What the two share.
struct ZeroMqState {
    endpoint: Arc<TransportContext>,
    context: Mutex<Option<Arc<ZeroMqContext>>>,
    retiring: Arc<RetiringListeners>,
}

impl ZeroMqState {
    /// ZeroMQ, which starts when it is needed.
    fn zeromq_context(&self) -> Result<Arc<ZeroMqContext>> {
        let mut context = lock(&self.context);
        if let Some(context) = &*context {
            return Ok(Arc::clone(context));
        }
        let new = Arc::new(ZeroMqContext::new()?);
        *context = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl TransportDriver for ZeroMqTransport {
    fn id(&self) -> Transport {
        self.transport
    }

    fn is_preferred_for(&self, address: &Address) -> bool {
        // Within a host it is there to compare with.
        self.transport == Transport::ZMQ_TCP && address.listener_of(self.transport).is_some()
    }

    fn open_channel(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)> {
        let (transport, endpoint) = (self.transport, &self.shared.endpoint);
        let listener = address.listener_of(transport);
        let listener = listener.ok_or_else(|| Error::usage("it does not listen there"))?;
        let is_within_host = transport == Transport::ZMQ_IPC;
        let scheme = if is_within_host { "ipc://" } else { "tcp://" };
        check_socket_address(&listener.socket_address, scheme)?;
        let dialler = ZeroMqDialler {
            socket_address: listener.socket_address.clone(),
            server_key: listener.public_key.clone(),
            keys: endpoint.keys.clone(),
            zeromq: self.shared.zeromq_context()?,
        };
        let dialler = Box::new(dialler);
        open_network_channel(dialler, transport, is_within_host, address, options, endpoint)
    }

    fn open_listener(
        &self,
        inbox: &Arc<InboxShared>,
        listen: &Listen,
        options: &InboxOptions,
    ) -> Result<Option<OpenedListener>> {
        let ZeroMqState { endpoint, retiring, .. } = &*self.shared;
        let zeromq = self.shared.zeromq_context()?;
        bind_listener(listen, inbox, options, zeromq, endpoint, retiring).map(Some)
    }
}
