//! Which way between hosts a test program is about: it says so in a constant `NETWORK`.

use std::sync::OnceLock;
use std::time::Duration;

use tessera_identity::{Authority, CertificateRequest, NodeName};
use tessera_tensormq::{CurveKeys, EndpointOptions, Security, TlsIdentity, Transport};

/// A way between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Tcp,
    Tls,
    ZeroMq,
    Curve,
}

impl Network {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Tcp | Self::Tls => Transport::TCP,
            Self::ZeroMq | Self::Curve => "zmq-tcp".parse().unwrap(),
        }
    }

    /// Who may connect.
    pub(crate) fn security(self) -> Security {
        match self {
            Self::Tcp | Self::ZeroMq => Security::Plain,
            Self::Tls => Security::Tls,
            Self::Curve => Security::Curve { allowed: Vec::new() },
        }
    }

    /// An endpoint that may connect, and be connected to.
    pub(crate) fn endpoint_options(self) -> EndpointOptions {
        let (keys, tls) = match self {
            Self::Tcp | Self::ZeroMq => (None, None),
            Self::Tls => (None, Some(Cluster::shared().identity("node"))),
            Self::Curve => (CurveKeys::generate().map(Some).unwrap(), None),
        };
        EndpointOptions { keys, tls, ..EndpointOptions::default() }
    }
}

/// Makes identities that those of one cluster believe.
pub(crate) struct Cluster(Authority);

/// Where other processes of a test find the authority that they share.
pub(crate) const AUTHORITY: &str = "TESSERA_TEST_AUTHORITY";
const SEPARATOR: &str = "=====";

impl Cluster {
    pub(crate) fn new() -> Self {
        Self(Authority::generate("test").unwrap())
    }

    /// The one of this test, all processes of it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| match std::env::var(AUTHORITY) {
            Ok(pem) => {
                let (certificate, key) = pem.split_once(SEPARATOR).unwrap();
                Self(Authority::from_pem(certificate, key).unwrap())
            }
            Err(_) => Self::new(),
        })
    }

    /// For the environment of other processes.
    pub(crate) fn to_text(&self) -> String {
        format!("{}{SEPARATOR}{}", self.0.certificate_pem(), self.0.key_pem())
    }

    /// Somebody whom those of this cluster believe to be called so.
    pub(crate) fn identity(&self, name: &str) -> TlsIdentity {
        self.identity_for(name, Duration::from_secs(3600))
    }

    /// The same for so long.
    pub(crate) fn identity_for(&self, name: &str, life: Duration) -> TlsIdentity {
        let (certificate, key, authority) = self.certificate(name, life);
        let name: NodeName = name.parse().unwrap();
        TlsIdentity::from_pem(&name.certificate_name(), &certificate, &key, &authority).unwrap()
    }

    /// A certificate for somebody, its key, and the authority.
    pub(crate) fn certificate(&self, name: &str, life: Duration) -> (String, String, String) {
        let name: NodeName = name.parse().unwrap();
        let request = CertificateRequest::generate(&name).unwrap();
        let names = [name.certificate_name()];
        let signed = self.0.sign_request(request.request_pem(), &names, life).unwrap();
        (signed.certificate_pem, request.key_pem(), self.0.certificate_pem().to_owned())
    }
}
