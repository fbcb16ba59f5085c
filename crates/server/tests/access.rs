//! TLS and tokens on every port of a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tessera_server::{AccessConfig, StandaloneConfig, TlsFiles, run_role, shutdown_channel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

mod common;

const OPS: &str = "0123456789abcdef-ops";
const APP: &str = "0123456789abcdef-app";

/// The files in `certificates`: an authority, a server and a client that it signed, and a client of
/// somebody else. And a folder for other files.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A file of the project, or else of this test.
    fn path(&self, name: &str) -> PathBuf {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name);
        if kept.exists() { kept } else { self.folder.path().join(name) }
    }

    /// What connects as a client with this certificate, or with none.
    fn connector(&self, client: Option<&str>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let pem = self.path(&format!("{name}.pem"));
                let certificate = CertificateDer::from_pem_file(pem).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

/// The status of an answer; `None` where the connection is refused.
async fn ask(
    address: SocketAddr,
    connector: &TlsConnector,
    request: &str,
    token: Option<&str>,
) -> Option<u16> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.ok()?;
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         {token}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.split(' ').nth(1)?.parse().ok()
}

/// Runs a server of nothing while `check` asks it.
fn with_server<F: Future<Output = ()>>(
    repository: &Path,
    access: AccessConfig,
    check: impl FnOnce(tessera_server::ServerAddresses) -> F,
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

#[test]
fn every_port_speaks_tls_and_asks_for_roles_and_changes_are_written_down() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let tokens = certificates.path("tokens");
    fs::write(&tokens, format!("ops change {OPS}\napp infer {APP}\n")).unwrap();
    let access = AccessConfig {
        token_file: Some(tokens),
        tls: Some(TlsFiles {
            certificate: certificates.path("server.pem"),
            key: certificates.path("server.key"),
            client_authority: None,
        }),
        ..AccessConfig::default()
    };
    let trusting = certificates.connector(None);
    with_server(repository.path(), access, async |at| {
        for (address, request, token, expected) in [
            (at.http, "GET /v2/health/live", None, 200),
            (at.http, "GET /v2", None, 401),
            (at.http, "GET /v2", Some("0123456789abcdef-eve"), 401),
            (at.http, "GET /v2", Some(APP), 200),
            (at.http, "POST /v2/models/none/infer", Some(OPS), 403),
            (at.http, "POST /v2/models/none/infer", Some(APP), 404),
            (at.http, "POST /v2/repository/models/none/unload", Some(APP), 403),
            (at.http, "POST /v2/repository/models/none/unload", Some(OPS), 200),
            (at.metrics, "GET /metrics", None, 401),
            (at.metrics, "GET /metrics", Some(APP), 403),
            (at.metrics, "GET /metrics", Some(OPS), 200),
            (at.control, "GET /v1/system", Some(APP), 403),
            (at.control, "GET /v1/system", Some(OPS), 200),
            (at.control, "DELETE /v1/tasks/none", Some(APP), 403),
            (at.control, "DELETE /v1/tasks/none", Some(OPS), 404),
        ] {
            let status = ask(address, &trusting, request, token).await;
            assert_eq!(status, Some(expected), "{request} {token:?}");
        }
        // Without TLS nothing is answered.
        let mut plain = TcpStream::connect(at.http).await.unwrap();
        plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        plain.read_to_end(&mut answer).await.ok();
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
    let trail = fs::read_to_string(repository.path().join("serve/audit.jsonl")).unwrap();
    let changes: Vec<String> = trail
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            format!("{} {} {}", line["who"], line["path"], line["status"])
        })
        .collect();
    assert_eq!(
        changes,
        [
            "\"app\" \"/v2/repository/models/none/unload\" 403",
            "\"ops\" \"/v2/repository/models/none/unload\" 200",
            "\"app\" \"/v1/tasks/none\" 403",
            "\"ops\" \"/v1/tasks/none\" 404",
        ]
    );
}

#[test]
fn clients_must_have_a_certificate_where_that_is_asked_for() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let access = AccessConfig {
        tls: Some(TlsFiles {
            certificate: certificates.path("server.pem"),
            key: certificates.path("server.key"),
            client_authority: Some(certificates.path("ca.pem")),
        }),
        ..AccessConfig::default()
    };
    let known = certificates.connector(Some("client"));
    let unknown = certificates.connector(Some("other-client"));
    let nobody = certificates.connector(None);
    with_server(repository.path(), access, async |at| {
        for address in [at.http, at.control] {
            let request = if address == at.http { "GET /v2" } else { "GET /v1/system" };
            assert_eq!(ask(address, &known, request, None).await, Some(200));
            assert_eq!(ask(address, &unknown, request, None).await, None);
            assert_eq!(ask(address, &nobody, request, None).await, None);
        }
    });
}

#[test]
fn files_that_are_wrong_are_named_before_anything_is_made() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let tls = |certificate: &str, key: &str| AccessConfig {
        tls: Some(TlsFiles {
            certificate: certificates.path(certificate),
            key: certificates.path(key),
            client_authority: None,
        }),
        ..AccessConfig::default()
    };
    let empty = certificates.path("empty");
    fs::write(&empty, "").unwrap();
    let tokens = |file: PathBuf| AccessConfig { token_file: Some(file), ..AccessConfig::default() };
    for (access, expected) in [
        (tls("missing.pem", "server.key"), "--tls-cert"),
        (tls("server.pem", "client.key"), "--tls-cert"),
        (tls("server.pem", "server.pem"), "--tls-key"),
        (tls("empty", "server.key"), "no certificate in it"),
        (tokens(empty), "there is no token in it"),
        (tokens(certificates.path("missing")), "--token-file"),
    ] {
        let mut config: StandaloneConfig = common::empty_server(&repository.path().join("repo"));
        config.access = access;
        let error = run_role(async { config.build().await.map(drop) }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!repository.path().join("repo").exists());
    }
}
