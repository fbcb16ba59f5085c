//! Compressed requests and responses.

use std::io::{Read, Write};

use axum::http::{Method, StatusCode};
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::json;
use tessera_gateway::FrontEndOptions;

use crate::fake::{Reply, Server, f32_bytes};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A request for `one` with 200,000 rows, its JSON's length, and the bytes of the input.
fn request() -> (Vec<u8>, String, Vec<u8>) {
    let values: Vec<f32> = (0..600_000u32).map(|n| n as f32).collect();
    let input = f32_bytes(&values);
    let json = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [200_000, 3],
                                  "parameters": {"binary_data_size": input.len()}}],
                      "outputs": [{"name": "x", "parameters": {"binary_data": true}}]})
    .to_string();
    let len = json.len().to_string();
    ([json.as_bytes(), &input].concat(), len, input)
}

async fn send(server: &Server, encoding: &str, body: Vec<u8>, len: &str) -> Reply {
    let headers = [
        ("Content-Encoding", encoding),
        ("Accept-Encoding", encoding),
        ("Inference-Header-Content-Length", len),
    ];
    server.call(Method::POST, "/v2/models/one/infer", &headers, body).await
}

#[tokio::test]
async fn a_compressed_request_gets_a_compressed_answer() {
    let server = Server::new();
    let (body, len, input) = request();
    for encoding in ["gzip", "deflate"] {
        let compressed = if encoding == "gzip" { gzip(&body) } else { zlib(&body) };
        let reply = send(&server, encoding, compressed, &len).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
        assert_eq!(reply.header("content-encoding"), encoding);
        let mut answer = Vec::new();
        if encoding == "gzip" {
            GzDecoder::new(&reply.body[..]).read_to_end(&mut answer).unwrap();
        } else {
            ZlibDecoder::new(&reply.body[..]).read_to_end(&mut answer).unwrap();
        }
        let len: usize = reply.header("inference-header-content-length").parse().unwrap();
        assert!(answer[len..] == input, "{encoding}");
    }
}

#[tokio::test]
async fn what_is_not_compressed_or_compressed_otherwise_is_refused() {
    let server = Server::new();
    let plain = b"{\"inputs\": []}".to_vec();
    let reply = send(&server, "gzip", plain.clone(), "14").await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.error().contains("Content-Encoding"));
    let reply = send(&server, "br", plain.clone(), "14").await;
    assert_eq!(reply.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let mut cut = gzip(&plain);
    cut.truncate(cut.len() - 4);
    let headers = [("Content-Encoding", "gzip")];
    let reply = server.call(Method::POST, "/v2/models/one/infer", &headers, cut).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_small_body_that_becomes_a_large_one_is_refused() {
    let options = FrontEndOptions { largest_body: 1 << 20, ..FrontEndOptions::default() };
    let server = Server::with(options);
    let bomb = gzip(&vec![b' '; 8 << 20]);
    let headers = [("Content-Encoding", "gzip")];
    let reply = server.call(Method::POST, "/v2/models/one/infer", &headers, bomb).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
}
