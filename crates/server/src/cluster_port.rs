//! The port that nodes of a cluster connect to: TLS with certificates of the cluster's authority.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use tessera_control::MemberRegistry;
use tessera_core::{Error, Result, lock};
use tessera_identity::{CONTROLLER_CERTIFICATE_NAME, CertificateRequest, NodeName};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto, version};

use crate::connection::{ConnectionTimes, serve_connections};
use crate::listeners::{Listener, RunningListener};
use crate::shutdown::ShutdownSignal;

/// How long a controller's own certificate is believed; another is made when half of it is over.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// A node that is gone is to be noticed soon.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIME: Duration = Duration::from_secs(3);

/// Who a controller is to nodes.
pub(crate) struct ControllerIdentity {
    name: NodeName,
    members: Arc<MemberRegistry>,
    current: Mutex<(TlsAcceptor, SystemTime)>,
}

impl ControllerIdentity {
    /// With a certificate of the cluster's authority.
    pub(crate) fn new(name: NodeName, members: Arc<MemberRegistry>) -> Result<Self> {
        let current = Mutex::new(make_acceptor(&name, &members)?);
        Ok(Self { name, members, current })
    }

    /// What accepts the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = lock(&self.current);
        if SystemTime::now() >= current.1 {
            match make_acceptor(&self.name, &self.members) {
                Ok(renewed) => *current = renewed,
                Err(error) => {
                    tracing::error!(%error, "the controller's certificate is not renewed");
                }
            }
        }
        current.0.clone()
    }
}

/// What accepts connections, and when to make another.
fn make_acceptor(name: &NodeName, members: &MemberRegistry) -> Result<(TlsAcceptor, SystemTime)> {
    let wrong =
        |error: &dyn std::fmt::Display| Error::engine(format!("TLS of the cluster: {error}"));
    let authority = members.authority();
    let request = CertificateRequest::generate(name)?;
    let names = [name.controller_certificate_name(), CONTROLLER_CERTIFICATE_NAME.to_owned()];
    let signed = authority.sign_request(request.request_pem(), &names, CERTIFICATE_LIFE)?;
    let parse =
        |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| wrong(&error));
    // With the authority itself, which somebody with a token knows by its fingerprint alone.
    let chain = vec![parse(&signed.certificate_pem)?, parse(authority.certificate_pem())?];
    let key = PrivateKeyDer::from_pem_slice(request.key_pem().as_bytes())
        .map_err(|error| wrong(&error))?;
    let mut roots = RootCertStore::empty();
    roots.add(parse(authority.certificate_pem())?).map_err(|error| wrong(&error))?;
    let provider = Arc::new(crypto::ring::default_provider());
    // Whoever joins has no certificate yet; what needs one is refused where it is asked for.
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| wrong(&error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| wrong(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&error))?;
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let renew_at = SystemTime::now() + CERTIFICATE_LIFE / 2;
    Ok((TlsAcceptor::from(Arc::new(config)), renew_at))
}

/// Answers nodes until it is closed.
pub(crate) fn serve_cluster(
    listener: Listener,
    router: Router,
    identity: ControllerIdentity,
    closed: ShutdownSignal,
) -> RunningListener {
    let times = ConnectionTimes {
        ping_interval: PING_INTERVAL,
        ping_time: PING_TIME,
        may_bodies_rest: true,
    };
    let acceptor = move || Some(identity.acceptor());
    tokio::spawn(serve_connections(listener.into_socket(), router, acceptor, times, closed))
}
