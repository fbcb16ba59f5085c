//! TLS: certificates of the server, and of clients where they must have one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tessera_core::{Error, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::reloading::Reloading;

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of clients' certificates, where they must have one.
    pub client_authority: Option<PathBuf>,
}

/// Accepts connections with what the files say at the time.
pub(crate) struct TlsSource(Reloading<TlsAcceptor>);

impl TlsFiles {
    /// Reads the files for the first time.
    pub(crate) fn open(&self) -> Result<TlsSource> {
        let mut files = vec![self.certificate.clone(), self.key.clone()];
        files.extend(self.client_authority.clone());
        let own = self.clone();
        Reloading::new(files, move || own.make_acceptor()).map(TlsSource)
    }

    fn make_acceptor(&self) -> Result<TlsAcceptor> {
        let certificates = read_certificates("--tls-cert", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unreadable("--tls-key", &self.key, &error))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::usage(format!("TLS: {error}")))?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates("--tls-client-ca", file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unreadable("--tls-client-ca", file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .build()
                    .map_err(|error| unreadable("--tls-client-ca", file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|error| unreadable("--tls-cert", &self.certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl TlsSource {
    /// What accepts the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        (*self.0.current()).clone()
    }
}

fn read_certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file);
    let read = read.and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let read = read.map_err(|error| unreadable(flag, file, &error))?;
    if read.is_empty() {
        return Err(unreadable(flag, file, &"there is no certificate in it, expected PEM"));
    }
    Ok(read)
}

fn unreadable(flag: &str, file: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("{flag} {}: {error}", file.display()))
}
