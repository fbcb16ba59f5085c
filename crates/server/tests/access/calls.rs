//! The port of gRPC: TLS, roles, and statuses as its clients know them.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tessera_gateway::inference::{
    ModelInferRequest, RepositoryModelUnloadRequest, ServerLiveRequest, ServerMetadataRequest,
};
use tokio_rustls::TlsConnector;

use crate::asking::connect;
use crate::certificates::{Certificates, with_server};
use crate::trail::read_trail;

const OPS: &str = "0123456789abcdef-ops";
const APP: &str = "0123456789abcdef-app";
const TOKENS: &str = "ops change 0123456789abcdef-ops\napp infer 0123456789abcdef-app\n";

/// Calls a method; its status, as gRPC numbers them.
async fn call(
    address: SocketAddr,
    connector: &TlsConnector,
    method: &str,
    message: &impl Message,
    token: Option<&str>,
) -> u16 {
    let stream = connect(address, connector).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0][..], &length, &message].concat();
    let mut request = Request::post(format!("https://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(framed))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let (parts, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let status = parts
        .headers
        .get("grpc-status")
        .or(collected.trailers().and_then(|trailers| trailers.get("grpc-status")));
    status.unwrap().to_str().unwrap().parse().unwrap()
}

fn protocol(method: &str) -> String {
    format!("/inference.GRPCInferenceService/{method}")
}

#[test]
fn calls_need_their_roles_and_are_refused_as_clients_of_grpc_know_it() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let trusting = certificates.http2_connector(None);
    let unload = RepositoryModelUnloadRequest { model_name: "cats".into(), ..Default::default() };
    with_server(repository.path(), certificates.access(Some(TOKENS), false), async |at| {
        let ask = async |method: &str, token: Option<&str>| match method {
            "ModelInfer" => {
                let request = ModelInferRequest { model_name: "none".into(), ..Default::default() };
                call(at.grpc, &trusting, &protocol(method), &request, token).await
            }
            "RepositoryModelUnload" => {
                call(at.grpc, &trusting, &protocol(method), &unload, token).await
            }
            "ServerMetadata" => {
                let request = ServerMetadataRequest {};
                call(at.grpc, &trusting, &protocol(method), &request, token).await
            }
            "Check" => {
                let method = "/grpc.health.v1.Health/Check";
                call(at.grpc, &trusting, method, &ServerLiveRequest {}, token).await
            }
            _ => call(at.grpc, &trusting, &protocol(method), &ServerLiveRequest {}, token).await,
        };
        for (method, token, expected) in [
            ("Check", None, 0),
            ("ServerLive", None, 0),
            ("ServerMetadata", None, 16),
            ("ServerMetadata", Some("0123456789abcdef-eve"), 16),
            ("ServerMetadata", Some(APP), 0),
            ("ModelInfer", Some(OPS), 7),
            ("ModelInfer", Some(APP), 5),
            ("RepositoryModelUnload", None, 16),
            ("RepositoryModelUnload", Some(APP), 7),
            ("RepositoryModelUnload", Some(OPS), 0),
            ("LogSettings", Some(APP), 7),
            ("TraceSetting", Some(APP), 7),
            ("SystemSharedMemoryUnregister", Some(OPS), 7),
        ] {
            assert_eq!(ask(method, token).await, expected, "{method} {token:?}");
        }
    });
    let body = [&[0, 0, 0, 0, 6][..], &unload.encode_to_vec()].concat();
    let digest = tessera_core::ContentHash::of_content(&body).to_string();
    let changes = read_trail(repository.path(), "audit.jsonl");
    let unloads: Vec<_> = changes.iter().filter(|line| line["names"][0] == "cats").collect();
    assert_eq!(unloads.len(), 1, "{changes:?}");
    assert_eq!((&unloads[0]["who"], &unloads[0]["status"]), (&"ops".into(), &200.into()));
    assert_eq!(unloads[0]["body"]["blake3"], digest);
    let refused: Vec<_> = changes.iter().filter(|line| line["status"] == 403).collect();
    assert_eq!(refused.len(), 3, "{changes:?}");
    assert!(refused.iter().all(|line| line["who"] == "app"), "{changes:?}");
    let unknown = read_trail(repository.path(), "refused.jsonl");
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0]["path"], protocol("RepositoryModelUnload"));
    assert_eq!((&unknown[0]["status"], &unknown[0]["who"]), (&401.into(), &().into()));
}

#[test]
fn the_roles_of_certificates_hold_for_calls_as_well() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let known = certificates.http2_connector(Some("client"));
    let file = "certificate client infer\n";
    with_server(repository.path(), certificates.access(Some(file), true), async |at| {
        let infer = ModelInferRequest { model_name: "none".into(), ..Default::default() };
        let unload =
            RepositoryModelUnloadRequest { model_name: "cats".into(), ..Default::default() };
        let inferred = call(at.grpc, &known, &protocol("ModelInfer"), &infer, None).await;
        let unloaded =
            call(at.grpc, &known, &protocol("RepositoryModelUnload"), &unload, None).await;
        assert_eq!((inferred, unloaded), (5, 7));
    });
    let changes = read_trail(repository.path(), "audit.jsonl");
    assert_eq!((&changes[0]["who"], &changes[0]["by"]), (&"client".into(), &"certificate".into()));
}
