//! Who a process is to others of its cluster, and whom it believes: certificates of one authority.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
    crypto, version,
};
use tessera_core::{Error, Result, lock};

use super::identity_pem::IdentityPem;
use super::peer_verifier::{PeerVerifier, RemovedPeers, certificate_names};
use crate::transport::network::HEARTBEAT_TIMEOUT;
use crate::transport::network::tcp_info::{ConnectionTraffic, connection_traffic};

/// How long both ends may take to shake hands.
const HANDSHAKE_TIME: Duration = HEARTBEAT_TIMEOUT;

/// A certificate with its key, and the authority of those who may connect. What has a copy of it
/// sees it renewed, and whom it does not believe any more.
#[derive(Clone)]
pub struct TlsIdentity(Arc<IdentityShared>);

struct IdentityShared {
    name: String,
    removed: RemovedPeers,
    state: Mutex<IdentityState>,
}

struct IdentityState {
    pem: IdentityPem,
    configs: TlsConfigs,
    /// What is open, with whom.
    connections: Vec<(Vec<String>, Weak<dyn EndableConnection>)>,
}

/// How hands are shaken.
#[derive(Clone)]
struct TlsConfigs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// A connection that can be ended.
pub(super) trait EndableConnection: Send + Sync {
    /// Ends it at once.
    fn end_at_once(&self);

    /// What it has done; `None` where that can't be known.
    fn traffic(&self) -> Option<ConnectionTraffic>;
}

/// A socket that is shut down when whoever is at its other end does not belong to us any more.
pub struct WatchedSocket {
    _watch: Arc<SocketWatch>,
}

struct SocketWatch(OwnedFd);

impl EndableConnection for SocketWatch {
    fn end_at_once(&self) {
        // One that is not connected any more has ended.
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }

    fn traffic(&self) -> Option<ConnectionTraffic> {
        connection_traffic(self.0.as_fd())
    }
}

impl TlsIdentity {
    /// From PEM: the certificate with those between it and its authority, its key, and the
    /// authority. `name` is one of the certificate's own.
    pub fn from_pem(name: &str, certificate: &str, key: &str, authority: &str) -> Result<Self> {
        let pem = IdentityPem::new(certificate, key, authority);
        let removed = RemovedPeers::default();
        let configs = TlsConfigs::from_pem(name, &pem, &removed)?;
        let state = Mutex::new(IdentityState { pem, configs, connections: Vec::new() });
        Ok(Self(Arc::new(IdentityShared { name: name.to_owned(), removed, state })))
    }

    /// Has another certificate from now on. Connections that there are go on.
    pub fn renew(&self, certificate: &str, key: &str, authority: &str) -> Result<()> {
        let pem = IdentityPem::new(certificate, key, authority);
        let IdentityShared { name, removed, state } = &*self.0;
        let configs = TlsConfigs::from_pem(name, &pem, removed)?;
        let mut state = lock(state);
        (state.pem, state.configs) = (pem, configs);
        Ok(())
    }

    /// What it is made of at this moment, for another process of its owner.
    pub fn to_pem(&self) -> IdentityPem {
        lock(&self.0.state).pem.clone()
    }

    /// The names that are refused from now on, and no others. Connections with them end at once.
    pub fn set_removed_peers(&self, names: impl IntoIterator<Item = String>) {
        let IdentityShared { removed, state, .. } = &*self.0;
        let mut state = lock(state);
        removed.set_names(names.into_iter().collect());
        let ending = state.connections.extract_if(.., |(peer, _)| removed.contains_any(peer));
        let ending: Vec<_> = ending.filter_map(|(_, open)| open.upgrade()).collect();
        drop(state);
        for connection in ending {
            connection.end_at_once();
        }
    }

    /// The names that are refused.
    pub fn removed_peers(&self) -> Vec<String> {
        self.0.removed.list_names()
    }

    /// The name under which others know it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What the connections with others have done, each by the names of whoever is at its other end.
    pub fn connection_traffic(&self) -> Vec<(Vec<String>, ConnectionTraffic)> {
        let open: Vec<_> = lock(&self.0.state).connections.clone();
        let traffic = open.into_iter().filter_map(|(peer, open)| {
            let traffic = open.upgrade()?.traffic()?;
            Some((peer, traffic))
        });
        traffic.collect()
    }

    /// How TLS is spoken with those who connect to another port of this process.
    pub fn server_config(&self) -> ServerConfig {
        ServerConfig::clone(&self.configs().server)
    }

    /// How TLS is spoken with those whom another part of this process connects to.
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig::clone(&self.configs().client)
    }

    /// Has a connection over a socket of another part of this process ended when whoever is at its
    /// other end does not belong to us any more, until what is returned is dropped.
    pub fn watch_socket(&self, peer: Vec<String>, socket: OwnedFd) -> WatchedSocket {
        let watched = Arc::new(SocketWatch(socket));
        let weak: Weak<SocketWatch> = Arc::downgrade(&watched);
        self.watch_connection(peer, weak);
        WatchedSocket { _watch: watched }
    }

    fn configs(&self) -> TlsConfigs {
        lock(&self.0.state).configs.clone()
    }

    /// Shakes hands with whoever we connected to, who must have this name.
    pub(super) fn connect_to(&self, name: &str, socket: &TcpStream) -> io::Result<Connection> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(self.configs().client, name);
        self.shake_hands(Connection::Client(connection.map_err(io::Error::other)?), socket)
    }

    /// Shakes hands with whoever connected to us.
    pub(super) fn accept_from(&self, socket: &TcpStream) -> io::Result<Connection> {
        let connection = ServerConnection::new(self.configs().server);
        self.shake_hands(Connection::Server(connection.map_err(io::Error::other)?), socket)
    }

    fn shake_hands(
        &self,
        mut connection: Connection,
        mut socket: &TcpStream,
    ) -> io::Result<Connection> {
        let end = Instant::now() + HANDSHAKE_TIME;
        loop {
            flush_handshake(&mut connection, socket)?;
            if !connection.is_handshaking() {
                break;
            }
            // However slowly it comes.
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            socket.set_read_timeout(Some(left))?;
            if connection.read_tls(&mut socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = connection.process_new_packets() {
                // It hears why; where it is gone, nobody has to.
                flush_handshake(&mut connection, socket).ok();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        socket.set_read_timeout(None)?;
        if self.0.removed.contains_any(&peer_names(&connection)) {
            return Err(io::Error::other("it does not belong to us any more"));
        }
        Ok(connection)
    }

    /// Has a connection ended when whoever is at its other end does not belong to us any more.
    pub(super) fn watch_connection(&self, peer: Vec<String>, open: Weak<dyn EndableConnection>) {
        let mut state = lock(&self.0.state);
        if self.0.removed.contains_any(&peer) {
            drop(state);
            return open.upgrade().into_iter().for_each(|open| open.end_at_once());
        }
        state.connections.retain(|(_, open)| open.strong_count() > 0);
        state.connections.push((peer, open));
    }
}

fn flush_handshake(connection: &mut Connection, mut socket: &TcpStream) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(&mut socket)?;
    }
    Ok(())
}

/// The names of whoever is at the other end.
pub(super) fn peer_names(connection: &Connection) -> Vec<String> {
    let own = connection.peer_certificates().and_then(|chain| chain.first());
    own.map(certificate_names).unwrap_or_default()
}

impl TlsConfigs {
    fn from_pem(name: &str, pem: &IdentityPem, removed: &RemovedPeers) -> Result<Self> {
        let IdentityPem { certificate, key, authority } = pem;
        let wrong = |what: &str, error: &dyn fmt::Display| {
            Error::usage(format!("{what} of \"{name}\": {error}"))
        };
        ServerName::try_from(name.to_owned()).map_err(|error| wrong("the name", &error))?;
        let certificates =
            parse_certificates(certificate).map_err(|error| wrong("the certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| wrong("the key", &error))?;
        let mut roots = RootCertStore::empty();
        for root in parse_certificates(authority).map_err(|e| wrong("the authority", &e))? {
            roots.add(root).map_err(|error| wrong("the authority", &error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(crypto_provider()));
        let fail = |error: rustls::Error| wrong("TLS", &error);
        let believed =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| wrong("the authority", &error))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| wrong("the authority", &error))?;
        let clients = Arc::new(PeerVerifier { believed, removed: removed.clone() });
        let versions = &[&version::TLS13];
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(fail)?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificates.clone(), key.clone_key())
            .map_err(fail)?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(fail)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(certificates, key)
            .map_err(fail)?;
        // Nobody comes back without showing a certificate that is good now.
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Encrypts with what this processor is quick at.
fn crypto_provider() -> crypto::CryptoProvider {
    let (quick, other) = (TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256);
    let cipher_suites = if computes_aes() { vec![quick, other] } else { vec![other, quick] };
    crypto::CryptoProvider { cipher_suites, ..crypto::ring::default_provider() }
}

/// Whether the processor has instructions for AES.
fn computes_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("TlsIdentity").field("name", &self.0.name).finish_non_exhaustive()
    }
}

fn parse_certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::usage("there is no certificate in it, expected PEM")),
        Err(error) => Err(Error::usage(error.to_string())),
    }
}
