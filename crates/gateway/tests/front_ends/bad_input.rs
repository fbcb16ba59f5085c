//! What is wrong with a request is said in a word that helps.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tessera_gateway::FrontEndOptions;

use crate::fake::Server;

fn with_input(input: &Value) -> Value {
    json!({"id": "9", "inputs": [input]})
}

async fn refused(request: &Value) -> String {
    let reply = Server::new().infer("echo", request).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{request}");
    assert_eq!(reply.json()["id"], "9", "{request}");
    reply.error()
}

#[tokio::test]
async fn inputs_that_make_no_sense_are_refused() {
    for (input, expected) in [
        (json!({"datatype": "INT8", "shape": [1], "data": [1]}), "has no name"),
        (json!({"name": "x", "shape": [1], "data": [1]}), "\"x\" has no datatype"),
        (json!({"name": "x", "datatype": "INT8", "data": [1]}), "\"x\" has no shape"),
        (json!({"name": "x", "datatype": "INT7", "shape": [1], "data": [1]}), "INT7"),
        (json!({"name": "x", "datatype": "INT8", "shape": [-1], "data": [1]}), "negative"),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [i64::MAX, 3], "data": [1]}),
            "too large",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [u64::MAX], "data": [1]}),
            "18446744073709551615",
        ),
        (json!({"name": "x", "datatype": "INT8", "shape": [1]}), "has no data"),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [1], "data": [1],
                   "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 1}}),
            "more than one place",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [2], "data": [1]}),
            "holds 2 values, data has 1",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [1_000_000_000_000_i64], "data": [1]}),
            "holds 1000000000000 values, data has 1",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [2], "data": [1, 128]}),
            "input \"x\": value 1 is 128, expected an integer from -128 to 127",
        ),
        (json!({"name": "x", "datatype": "FP16", "shape": [1], "data": [1]}), "as binary"),
        (json!({"name": "x", "datatype": "BF16", "shape": [1], "data": [1]}), "as binary"),
        (json!({"name": "x", "datatype": "INT8", "shape": [1], "data": 1}), "no array"),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [1],
                   "parameters": {"binary_data_size": -1}}),
            "binary_data_size",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [1],
                   "parameters": {"shared_memory_region": "r"}}),
            "shared_memory_byte_size",
        ),
        (
            json!({"name": "x", "datatype": "INT8", "shape": [2],
                   "parameters": {"binary_data_size": 3}}),
            "i8[2] needs 2 bytes, got 3",
        ),
    ] {
        let error = refused(&with_input(&input)).await;
        assert!(error.contains(expected), "{input}: {error}");
    }
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let x = json!({"name": "x", "datatype": "INT8", "shape": [1], "data": [1]});
    for (request, expected) in [
        (json!({"id": "9"}), "has no \"inputs\""),
        (json!({"id": "9", "inputs": [x, x]}), "input \"x\" is there twice"),
        (
            json!({"id": "9", "inputs": [x], "outputs": [{"name": "q"}]}),
            "task \"echo\" has no output \"q\", it has \"x\", \"y\"",
        ),
        (
            json!({"id": "9", "inputs": [x], "outputs": [{"name": "x"}, {"name": "x"}]}),
            "asked for twice",
        ),
        (json!({"id": "9", "inputs": [x], "outputs": [{}]}), "output 0 of the request has no name"),
        (
            json!({"id": "9", "inputs": [x],
                   "outputs": [{"name": "x", "parameters": {"binary_data": 1}}]}),
            "output \"x\": parameter \"binary_data\" must be true or false",
        ),
        (json!({"id": "9", "inputs": [x], "parameters": {"sequence_id": 3}}), "sequence_id"),
        (json!({"id": "9", "inputs": [x], "parameters": {"sequence_start": true}}), "no task"),
        (json!({"id": "9", "inputs": [x], "parameters": {"timeout": -5}}), "timeout"),
        (json!({"id": "9", "inputs": [x], "parameters": {"timeout": "soon"}}), "timeout"),
    ] {
        let error = refused(&request).await;
        assert!(error.contains(expected), "{request}: {error}");
    }
}

#[tokio::test]
async fn half_precision_and_broken_text_are_not_written_as_json() {
    let server = Server::new();
    for (input, bytes, expected) in [
        (json!({"name": "x", "datatype": "FP16", "shape": [1]}), &[0u8, 0][..], "FP16"),
        (json!({"name": "x", "datatype": "BYTES", "shape": [1]}), &b"\x01\0\0\0\xff"[..], "UTF-8"),
    ] {
        let mut input = input;
        input["parameters"] = json!({"binary_data_size": bytes.len()});
        let reply = server.infer_binary("echo", &with_input(&input), &[bytes]).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
}

#[tokio::test]
async fn what_is_not_json_is_refused_with_its_position() {
    let server = Server::new();
    for (body, expected) in [
        ("", "line 1 column 0"),
        ("not json", "line 1 column"),
        ("{\"inputs\": 3}", "line 1 column"),
        ("{\"inputs\": []} tail", "Inference-Header-Content-Length"),
    ] {
        let reply = server.post("/v2/models/echo/infer", body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(reply.error().contains(expected), "{body}: {}", reply.error());
    }
}

#[tokio::test]
async fn bytes_that_are_missing_or_too_many_are_refused_with_both_counts() {
    let server = Server::new();
    let x = json!({"name": "x", "datatype": "INT32", "shape": [2],
                   "parameters": {"binary_data_size": 8}});
    for (bytes, expected) in [
        (&[0u8; 7][..], "have 8 bytes, the body has 7"),
        (&[0u8; 9][..], "have 8 bytes, the body has 9"),
    ] {
        let reply = server.infer_binary("echo", &with_input(&x), &[bytes]).await;
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
    let strings = json!({"name": "x", "datatype": "BYTES", "shape": [2],
                         "parameters": {"binary_data_size": 5}});
    let reply = server.infer_binary("echo", &with_input(&strings), &[b"\x01\0\0\0a"]).await;
    assert!(reply.error().contains("holds 2 strings, got 1"), "{}", reply.error());
}

#[tokio::test]
async fn the_length_of_the_json_must_be_a_length_within_the_body() {
    let server = Server::new();
    for (length, expected) in
        [("x", "expected a number"), ("-1", "expected a number"), ("99", "99")]
    {
        let headers = [("Inference-Header-Content-Length", length)];
        let body = b"{\"inputs\": []}".to_vec();
        let reply = server.call(Method::POST, "/v2/models/echo/infer", &headers, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let options = FrontEndOptions { largest_body: 100, ..FrontEndOptions::default() };
    let server = Server::with(options);
    let reply = server.post("/v2/models/echo/infer", vec![b' '; 101]).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(reply.error().contains("100 bytes"));
    let small = server.post("/v2/repository/index", vec![b' '; 100]).await;
    assert_eq!(small.status, StatusCode::OK);
}
