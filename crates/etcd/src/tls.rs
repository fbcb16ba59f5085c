//! TLS to members of etcd.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, crypto};
use tessera_core::{Error, Result};
use tokio_rustls::TlsConnector;

use crate::config::EtcdTlsFiles;

impl EtcdTlsFiles {
    /// Reads the files.
    pub(crate) fn make_connector(&self) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates("authority", &self.authority)? {
            let added = roots.add(certificate);
            added.map_err(|error| unreadable("authority", &self.authority, &error))?;
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| Error::engine(format!("TLS: {error}")))?
                .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let certificates = read_certificates("certificate", &files.certificate)?;
                let key = PrivateKeyDer::from_pem_file(&files.key)
                    .map_err(|error| unreadable("key", &files.key, &error))?;
                builder
                    .with_client_auth_cert(certificates, key)
                    .map_err(|error| unreadable("certificate", &files.certificate, &error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn read_certificates(what: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file);
    let read = read.and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let read = read.map_err(|error| unreadable(what, file, &error))?;
    if read.is_empty() {
        return Err(unreadable(what, file, &"there is no certificate in it, expected PEM"));
    }
    Ok(read)
}

fn unreadable(what: &str, file: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("etcd's {what} {}: {error}", file.display()))
}
