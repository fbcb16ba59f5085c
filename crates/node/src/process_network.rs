//! How the process of an instance is reached from other hosts, and reaches them: as its node is.
//!
//! It has its node's certificate and key, and listens at a port of its own, so that a hop goes from
//! process to process without passing the nodes. It gets them through the pipe that it is told
//! everything through: they are in no file, argument or environment.

use serde::{Deserialize, Serialize};
use tessera_core::Result;
use tessera_tensormq::{
    ConnectionTraffic, IdentityPem, Listen, Peers, Security, TlsIdentity, Transport,
};

/// What the connections with somebody have done, by the names of whoever that is.
pub(crate) type PeerTraffic = (Vec<String>, ConnectionTraffic);

/// Who the process of an instance is to other hosts, and where it listens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessNetwork {
    name: String,
    credentials: ProcessCredentials,
    transport: Transport,
    socket_address: Option<String>,
    advertise: Option<String>,
    /// The port that it is to have, where one before it had it.
    port: Option<u16>,
}

/// What shows who a process is, and whom it does not believe any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessCredentials {
    pem: IdentityPem,
    removed: Vec<String>,
}

impl ProcessNetwork {
    /// For an instance of this name, as these peers are reached; `None` where no other host does, or
    /// not with certificates.
    pub(crate) fn of_peers(peers: &Peers, instance: &str) -> Option<Self> {
        let identity = peers.endpoint().tls_identity()?;
        let listen = peers.network()?;
        Some(Self {
            name: identity.name().to_owned(),
            credentials: ProcessCredentials::of_identity(identity),
            transport: listen.transport,
            socket_address: listen.socket_address.clone(),
            advertise: listen.advertise.clone(),
            port: peers.preferred_port(instance),
        })
    }

    /// The same peers, whose inbox of this name other hosts reach.
    pub(crate) fn extend_peers(&self, peers: Peers, instance: &str) -> Peers {
        let peers = peers.with_network(self.listen());
        if let Some(port) = self.port {
            peers.prefer_port(instance, port);
        }
        peers
    }

    /// Who that is.
    pub(crate) fn tls_identity(&self) -> Result<TlsIdentity> {
        let ProcessCredentials { pem, removed } = &self.credentials;
        let IdentityPem { certificate, key, authority } = pem;
        let identity = TlsIdentity::from_pem(&self.name, certificate, key, authority)?;
        identity.set_removed_peers(removed.iter().cloned());
        Ok(identity)
    }

    fn listen(&self) -> Listen {
        Listen {
            transport: self.transport,
            socket_address: self.socket_address.clone(),
            advertise: self.advertise.clone(),
            security: Security::Tls,
        }
    }
}

impl ProcessCredentials {
    /// Those of this process at this moment.
    pub(crate) fn of_identity(identity: &TlsIdentity) -> Self {
        Self { pem: identity.to_pem(), removed: identity.removed_peers() }
    }

    /// Has an identity be what these say.
    pub(crate) fn apply_to(self, identity: &TlsIdentity) -> Result<()> {
        identity.set_removed_peers(self.removed);
        if identity.to_pem() == self.pem {
            return Ok(());
        }
        let IdentityPem { certificate, key, authority } = &self.pem;
        identity.renew(certificate, key, authority)
    }
}
