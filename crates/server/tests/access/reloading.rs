//! Files of tokens and certificates that change while a server runs.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tessera_server::{AccessConfig, TlsFiles};
use tokio_rustls::TlsConnector;

use crate::asking::{Question, ask};
use crate::certificates::{Certificates, with_server};

const OLD: &str = "0123456789abcdef-old";
const NEW: &str = "0123456789abcdef-new";

/// Asks until the answer is this one: files are looked at every few seconds.
async fn wait_for_status(
    address: SocketAddr,
    connector: &TlsConnector,
    token: &str,
    expected: Option<u16>,
) {
    let start = Instant::now();
    loop {
        let question = Question::new("GET /v2").with_token(Some(token));
        let status = ask(address, connector, &question).await;
        if status == expected {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{status:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn tokens_and_certificates_that_change_count_without_a_restart() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let tokens = certificates.write("tokens", &format!("app infer {OLD}\n"));
    let copy = |from: &str, to: &str| {
        certificates.write(to, &fs::read_to_string(certificates.path(from)).unwrap())
    };
    let tls = TlsFiles {
        certificate: copy("server.pem", "changing.pem"),
        key: copy("server.key", "changing.key"),
        client_authority: None,
    };
    let access = AccessConfig {
        token_file: Some(tokens.clone()),
        tls: Some(tls),
        ..AccessConfig::default()
    };
    let trusting = certificates.connector(None);
    with_server(repository.path(), access, async |at| {
        wait_for_status(at.http, &trusting, OLD, Some(200)).await;
        // A file that makes no sense leaves things as they are, and one that does counts.
        fs::write(&tokens, "nonsense\n").unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        wait_for_status(at.http, &trusting, OLD, Some(200)).await;
        fs::write(&tokens, format!("app infer {NEW}\n")).unwrap();
        wait_for_status(at.http, &trusting, NEW, Some(200)).await;
        wait_for_status(at.http, &trusting, OLD, Some(401)).await;
        // A certificate of an authority that the client does not believe.
        copy("other-client.pem", "changing.pem");
        copy("other-client.key", "changing.key");
        wait_for_status(at.http, &trusting, NEW, None).await;
        copy("server.pem", "changing.pem");
        copy("server.key", "changing.key");
        wait_for_status(at.http, &trusting, NEW, Some(200)).await;
    });
}
