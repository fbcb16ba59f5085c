//! TCP as the registry sees it.

use std::sync::Arc;

use tessera_core::{Error, Result};

use super::link::TcpDialler;
use super::listener::{TcpConnections, bind_socket};
use super::tls_identity::TlsIdentity;
use crate::address::{Address, ListenAddress};
use crate::channel::{ChannelPeer, OutgoingChannel};
use crate::inbox_registry::InboxShared;
use crate::options::{ConnectOptions, InboxOptions, Listen, Security};
use crate::transport::driver::{OpenedListener, TransportContext, TransportDriver};
use crate::transport::id::Transport;
use crate::transport::network::bind_address::advertised_address;
use crate::transport::network::listener::{ListenerParts, NetworkListener, RetiringListeners};
use crate::transport::network::outgoing::open_network_channel;

/// Where those listen to whom nobody says where: any port of this host.
const LOOPBACK_ADDRESS: &str = "tcp://127.0.0.1:0";

/// Starts it.
pub(super) fn start_transports(
    context: &Arc<TransportContext>,
) -> Result<Vec<Box<dyn TransportDriver>>> {
    let (endpoint, retiring) = (Arc::clone(context), Arc::default());
    Ok(vec![Box::new(TcpTransport { endpoint, retiring })])
}

struct TcpTransport {
    endpoint: Arc<TransportContext>,
    retiring: Arc<RetiringListeners>,
}

impl TcpTransport {
    fn identity(&self) -> Result<TlsIdentity> {
        self.endpoint
            .tls
            .clone()
            .ok_or_else(|| Error::usage("TLS between hosts needs an endpoint with a certificate"))
    }
}

impl TransportDriver for TcpTransport {
    fn id(&self) -> Transport {
        Transport::TCP
    }

    fn is_preferred_for(&self, address: &Address) -> bool {
        address.listener_of(Transport::TCP).is_some()
    }

    fn open_channel(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)> {
        let listener = address.listener_of(Transport::TCP);
        let listener = listener.ok_or_else(|| Error::usage("it does not listen there"))?;
        let tls = match &listener.server_name {
            Some(name) => Some((self.identity()?, name.clone())),
            None => None,
        };
        let dialler = TcpDialler {
            host_and_port: host_and_port(&listener.socket_address)?.to_owned(),
            socket_address: listener.socket_address.clone(),
            tls,
        };
        let (dialler, endpoint) = (Box::new(dialler), &*self.endpoint);
        open_network_channel(dialler, Transport::TCP, false, address, options, endpoint)
    }

    fn open_listener(
        &self,
        inbox: &Arc<InboxShared>,
        listen: &Listen,
        options: &InboxOptions,
    ) -> Result<Option<OpenedListener>> {
        let wanted = listen.socket_address.as_deref().unwrap_or(LOOPBACK_ADDRESS);
        let tls = match listen.security {
            Security::Plain => None,
            Security::Tls => Some(self.identity()?),
            Security::Curve { .. } => {
                return Err(Error::usage("keys of CURVE are for ZeroMQ; tcp has TLS"));
            }
        };
        let socket = bind_socket(host_and_port(wanted)?)?;
        let bound = socket.local_addr().map_err(|error| Error::from_io(wanted, &error))?;
        let socket_address =
            advertised_address(&format!("tcp://{bound}"), listen.advertise.as_deref())?;
        let server_name = tls.as_ref().map(|identity| identity.name().to_owned());
        let links = TcpConnections::accept_at(socket, options.largest_tensor_bytes, tls)?;
        let parts = ListenerParts {
            inbox,
            options,
            transport: Transport::TCP,
            is_within_host: false,
            reactor: &self.endpoint.reactor,
            retiring: &self.retiring,
        };
        let listener = NetworkListener::start(Box::new(links), &parts)?;
        let address = ListenAddress { socket_address, public_key: None, server_name };
        Ok(Some(OpenedListener { listener, address }))
    }
}

fn host_and_port(socket_address: &str) -> Result<&str> {
    let rest = socket_address.strip_prefix("tcp://");
    rest.filter(|rest| rest.contains(':') && !rest.contains(char::is_control)).ok_or_else(|| {
        Error::usage(format!("{socket_address:?} is no address of the form tcp://HOST:PORT"))
    })
}
