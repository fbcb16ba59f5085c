//! Certificates of the tests, and servers that have them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tessera_server::{AccessConfig, ServerAddresses, TlsFiles, run_role, shutdown_channel};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::common;

/// The files in `certificates`: an authority, a server and a client that it signed, and a client of
/// somebody else. And a folder for other files.
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A file of the project, or else of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name);
        if kept.exists() { kept } else { self.folder.path().join(name) }
    }

    /// A file of this test.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A server with tokens, where there are any, and clients with certificates, where they must.
    pub(crate) fn access(&self, tokens: Option<&str>, has_clients: bool) -> AccessConfig {
        AccessConfig {
            token_file: tokens.map(|text| self.write("tokens", text)),
            tls: Some(TlsFiles {
                certificate: self.path("server.pem"),
                key: self.path("server.key"),
                client_authority: has_clients.then(|| self.path("ca.pem")),
            }),
            ..AccessConfig::default()
        }
    }

    /// What connects as a client with this certificate, or with none.
    pub(crate) fn connector(&self, client: Option<&str>) -> TlsConnector {
        TlsConnector::from(Arc::new(self.client_config(client)))
    }

    /// The same for HTTP/2.
    pub(crate) fn http2_connector(&self, client: Option<&str>) -> TlsConnector {
        let mut config = self.client_config(client);
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn client_config(&self, client: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        match client {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let pem = self.path(&format!("{name}.pem"));
                let certificate = CertificateDer::from_pem_file(pem).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        }
    }
}

/// Runs a server of nothing while `check` asks it.
pub(crate) fn with_server<F: Future<Output = ()>>(
    repository: &Path,
    access: AccessConfig,
    check: impl FnOnce(ServerAddresses) -> F,
) {
    let mut config = common::empty_server(repository);
    config.access = access;
    config.drain = Duration::from_millis(100);
    run_role(async {
        let (trigger, mut shutdown) = shutdown_channel();
        let server = config.build().await?;
        let server = server.start_tasks(&mut shutdown).await?.unwrap();
        let addresses = server.server_status().addresses;
        check(addresses).await;
        trigger.request_shutdown();
        server.run_until(&mut shutdown).await;
        Ok(())
    })
    .unwrap();
}
