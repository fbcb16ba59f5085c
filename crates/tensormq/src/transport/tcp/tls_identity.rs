//! Who a process is to others of its cluster, and whom it believes: certificates of one authority.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
    crypto, version,
};
use tessera_core::{Error, Result};

/// A certificate with its key, and the authority of those who may connect.
#[derive(Clone)]
pub struct TlsIdentity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: String,
}

impl TlsIdentity {
    /// From PEM: the certificate with those between it and its authority, its key, and the
    /// authority. `name` is one of the certificate's own.
    pub fn from_pem(name: &str, certificate: &str, key: &str, authority: &str) -> Result<Self> {
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
        let (roots, provider) = (Arc::new(roots), Arc::new(crypto::ring::default_provider()));
        let fail = |error: rustls::Error| wrong("TLS", &error);
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| wrong("the authority", &error))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| wrong("the authority", &error))?;
        let versions = &[&version::TLS13];
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(fail)?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificates.clone(), key.clone_key())
            .map_err(fail)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(fail)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(certificates, key)
            .map_err(fail)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name: name.to_owned() })
    }

    /// The name under which others know it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shakes hands with whoever we connected to, who must have this name.
    pub(super) fn connect_to(&self, name: &str, socket: &TcpStream) -> io::Result<Connection> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name);
        shake_hands(Connection::Client(connection.map_err(io::Error::other)?), socket)
    }

    /// Shakes hands with whoever connected to us.
    pub(super) fn accept_from(&self, socket: &TcpStream) -> io::Result<Connection> {
        let connection = ServerConnection::new(Arc::clone(&self.server));
        shake_hands(Connection::Server(connection.map_err(io::Error::other)?), socket)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("TlsIdentity").field("name", &self.name).finish_non_exhaustive()
    }
}

fn shake_hands(mut connection: Connection, mut socket: &TcpStream) -> io::Result<Connection> {
    while connection.is_handshaking() || connection.wants_write() {
        connection.complete_io(&mut socket)?;
    }
    Ok(connection)
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
