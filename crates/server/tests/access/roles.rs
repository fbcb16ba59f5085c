//! Who may ask for what, with tokens and with certificates.

use tessera_server::{AccessConfig, StandaloneConfig, TlsFiles, run_role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::asking::{Question, ask};
use crate::certificates::{Certificates, with_server};
use crate::common;

const OPS: &str = "0123456789abcdef-ops";
const APP: &str = "0123456789abcdef-app";
const TOKENS: &str = "ops change 0123456789abcdef-ops\napp infer 0123456789abcdef-app\n";

#[test]
fn every_port_speaks_tls_and_asks_for_roles() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let trusting = certificates.connector(None);
    with_server(repository.path(), certificates.access(Some(TOKENS), false), async |at| {
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
            let question = Question::new(request).with_token(token);
            let status = ask(address, &trusting, &question).await;
            assert_eq!(status, Some(expected), "{request} {token:?}");
        }
        // Without TLS nothing is answered.
        let mut plain = TcpStream::connect(at.http).await.unwrap();
        plain.write_all(&Question::new("GET /v2/health/live").bytes()).await.unwrap();
        let mut answer = Vec::new();
        plain.read_to_end(&mut answer).await.ok();
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
}

#[test]
fn clients_must_have_a_certificate_where_that_is_asked_for_and_may_do_all_without_a_file() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let known = certificates.connector(Some("client"));
    let unknown = certificates.connector(Some("other-client"));
    let nobody = certificates.connector(None);
    with_server(repository.path(), certificates.access(None, true), async |at| {
        for (address, request) in [(at.http, "GET /v2"), (at.control, "GET /v1/system")] {
            let question = Question::new(request);
            assert_eq!(ask(address, &known, &question).await, Some(200));
            assert_eq!(ask(address, &unknown, &question).await, None);
            assert_eq!(ask(address, &nobody, &question).await, None);
        }
        let change = Question::new("PUT /v1/system").with_body(r#"{"tasks": {}}"#);
        assert_eq!(ask(at.control, &known, &change).await, Some(200));
    });
}

#[test]
fn a_certificate_has_the_roles_of_its_name() {
    const INFER: &str = "POST /v2/models/none/infer";
    const CHANGE: &str = "DELETE /v1/tasks/none";
    const SEE: &str = "GET /v1/system";
    // What the file says, and what is answered to a client called `client`, at localhost: 404 and
    // 200 are for those who may.
    for (file, token, infer, see, change) in [
        ("certificate client change,infer", None, 404, 200, 404),
        ("certificate localhost change", None, 403, 200, 404),
        ("certificate client infer\ncertificate localhost change", None, 404, 403, 403),
        // One that is not named.
        ("certificate ops change", None, 404, 200, 403),
        // A token counts before the certificate, and one that is not known for nothing.
        ("certificate client change\napp infer 0123456789abcdef-app", Some(APP), 404, 403, 403),
        ("certificate client change", Some(APP), 401, 401, 401),
        // Where no certificate is named, it stands for no token.
        (TOKENS, None, 401, 401, 401),
        (TOKENS, Some(OPS), 403, 200, 404),
    ] {
        let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
        let known = certificates.connector(Some("client"));
        with_server(repository.path(), certificates.access(Some(file), true), async |at| {
            for (address, request, expected) in
                [(at.http, INFER, infer), (at.control, SEE, see), (at.control, CHANGE, change)]
            {
                let question = Question::new(request).with_token(token);
                let status = ask(address, &known, &question).await;
                assert_eq!(status, Some(expected), "{file}: {request} {token:?}");
            }
        });
    }
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
    let empty = certificates.write("empty", "");
    let named = certificates.write("named", "certificate ops change\n");
    let tokens = |file| AccessConfig { token_file: Some(file), ..AccessConfig::default() };
    for (access, expected) in [
        (tls("missing.pem", "server.key"), "--tls-cert"),
        (tls("server.pem", "client.key"), "--tls-cert"),
        (tls("server.pem", "server.pem"), "--tls-key"),
        (tls("empty", "server.key"), "no certificate in it"),
        (tokens(empty), "there is no token in it"),
        (tokens(named), "lines name certificates, which clients have with --tls-client-ca"),
        (tokens(certificates.path("missing")), "--token-file"),
    ] {
        let mut config: StandaloneConfig = common::empty_server(&repository.path().join("repo"));
        config.access = access;
        let error = run_role(async { config.build().await.map(drop) }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!repository.path().join("repo").exists());
    }
}
