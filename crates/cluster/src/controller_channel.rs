//! A connection to a controller, or from node to node.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tessera_core::{Error, Result};
use tessera_identity::{CONTROLLER_CERTIFICATE_NAME, Fingerprint};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::authority_verifier::AuthorityVerifier;
use crate::joined_node::JoinedNode;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is asked whether it is there, and how long it may take to answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What may come of one answer before it is taken, and of all together: more than all the content
/// that is fetched at the same time, so that an answer which is not taken yet keeps back no other,
/// such as what that content is checked with, or orders.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Where a controller is: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerAddress(String);

impl FromStr for ControllerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let parts = text.rsplit_once(':');
        let is_address = |(host, port): (&str, &str)| {
            !host.is_empty() && !host.contains(['/', '@', ' ']) && is_port(port)
        };
        if parts.is_some_and(is_address) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::usage(format!("{text:?} is no address of a controller: expected HOST:PORT")))
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// Does something with the socket of each connection as soon as it is made; an error ends it.
pub type SocketHook = Arc<dyn Fn(&TcpStream) -> std::io::Result<()> + Send + Sync>;

/// Connects as a node of the cluster.
pub(crate) async fn connect_with_certificate(
    address: &ControllerAddress,
    node: &JoinedNode,
) -> Result<Channel> {
    let wrong = |what: &str, error: &dyn fmt::Display| Error::invalid(format!("{what}: {error}"));
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(node.authority_pem.as_bytes())
        .map_err(|error| wrong("the authority", &error))?;
    roots.add(authority).map_err(|error| wrong("the authority", &error))?;
    let certificate = CertificateDer::from_pem_slice(node.certificate_pem.as_bytes())
        .map_err(|error| wrong("the certificate", &error))?;
    let key = PrivateKeyDer::from_pem_slice(node.key_pem.as_bytes())
        .map_err(|error| wrong("the key", &error))?;
    let config = client_builder(provider())?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .map_err(|error| wrong("the certificate", &error))?;
    connect(address, config).await
}

/// Connects to a node of the cluster, with how TLS is spoken by this one.
pub(crate) async fn connect_to_node(
    who: &str,
    address: &str,
    certificate_name: &str,
    config: ClientConfig,
    on_socket: SocketHook,
) -> Result<Channel> {
    connect_as(who, address, certificate_name, config, on_socket, false).await
}

/// Connects as somebody who has a token.
pub(crate) async fn connect_with_fingerprint(
    address: &ControllerAddress,
    authority: Fingerprint,
) -> Result<Channel> {
    let provider = provider();
    let verifier = AuthorityVerifier::new(authority, Arc::clone(&provider));
    let config = client_builder(provider)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    connect(address, config).await
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

fn client_builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| Error::engine(format!("TLS: {error}")))
}

async fn connect(address: &ControllerAddress, config: ClientConfig) -> Result<Channel> {
    let (who, nothing) = (format!("controller {address}"), Arc::new(|_: &TcpStream| Ok(())));
    connect_as(&who, &address.0, CONTROLLER_CERTIFICATE_NAME, config, nothing, true).await
}

/// Connects to whoever has this name in its certificate.
async fn connect_as(
    who: &str,
    address: &str,
    certificate_name: &str,
    mut config: ClientConfig,
    on_socket: SocketHook,
    pings_while_idle: bool,
) -> Result<Channel> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Each connection shows a certificate that is good at that time.
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(certificate_name.to_owned())
        .map_err(|error| Error::engine(error.to_string()))?;
    let (connector, target) = (TlsConnector::from(Arc::new(config)), address.to_owned());
    let connect = service_fn(move |_| {
        let (connector, target, name) = (connector.clone(), target.clone(), name.clone());
        let on_socket = Arc::clone(&on_socket);
        async move {
            let socket = TcpStream::connect(target).await?;
            socket.set_nodelay(true)?;
            on_socket(&socket)?;
            connector.connect(name, socket).await.map(TokioIo::new)
        }
    });
    // The name is not looked up: the connector knows where to.
    let endpoint = Endpoint::from_static("http://member.tessera")
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(pings_while_idle);
    let connecting = endpoint.connect_with_connector(connect);
    connecting.await.map_err(|error| connect_error(who, &error))
}

/// Why there is no connection, down to the cause.
fn connect_error(who: &str, error: &tonic::transport::Error) -> Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let reason = cause.to_string();
    let reason = match () {
        () if reason.contains("UnknownIssuer") => {
            "it is not the cluster that the token is for".to_owned()
        }
        () => reason,
    };
    Error::lost(format!("{who}: {reason}"))
}
