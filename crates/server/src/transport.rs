//! The part that every role with tensors has: this process's end of the transport.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tessera_core::Result;
use tessera_tensormq::{
    Endpoint, EndpointOptions, Listen, Peers, Security, TlsIdentity, Transport,
};

/// How tensors go to other processes.
#[derive(Clone, Debug, Default)]
pub struct TransportConfig {
    /// The way between processes, where it is not to be the fastest.
    pub transport: Option<Transport>,
    /// How hosts of a cluster reach each other.
    pub network: Option<NetworkConfig>,
}

/// How hosts of a cluster reach each other: TCP with certificates.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Who this process is, and whom it believes.
    pub identity: TlsIdentity,
    /// Where it listens.
    pub address: IpAddr,
    /// The name or address under which others reach it.
    pub advertise: String,
}

/// An endpoint, and whom it reaches.
#[derive(Clone)]
pub struct TransportPart {
    pub(crate) endpoint: Endpoint,
    pub(crate) peers: Arc<Peers>,
}

impl NetworkConfig {
    fn listen(self) -> Listen {
        Listen {
            transport: Transport::TCP,
            socket_address: Some(format!("tcp://{}", SocketAddr::new(self.address, 0))),
            advertise: Some(self.advertise),
            security: Security::Tls,
        }
    }
}

impl TransportConfig {
    /// Starts the endpoint.
    pub fn build(self) -> Result<TransportPart> {
        let tls = self.network.as_ref().map(|network| network.identity.clone());
        let endpoint = Endpoint::start(EndpointOptions { tls, ..EndpointOptions::default() })?;
        let mut peers = Peers::with_transport(endpoint.clone(), self.transport);
        if let Some(network) = self.network {
            peers = peers.with_network(network.listen());
        }
        Ok(TransportPart { endpoint, peers: Arc::new(peers) })
    }
}
