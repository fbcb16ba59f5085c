//! What the gRPC port answers to what is no gRPC.

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Version};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;
use tessera_http::json_response;

/// Lets calls of gRPC pass. Anything else gets an error that a plain client understands: the status
/// of a call is in its trailers, and such a client would only see the 200 before them.
pub(super) async fn refuse_plain_http(request: Request, next: Next) -> Response {
    let content_type = request.headers().get(CONTENT_TYPE);
    let is_grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let (status, message) = if !is_grpc {
        let message = "this port speaks gRPC, expected the content type application/grpc; \
                       the protocol over HTTP is at the port of --http";
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    } else if request.version() < Version::HTTP_2 {
        let message = "this port speaks gRPC, expected HTTP/2";
        (StatusCode::HTTP_VERSION_NOT_SUPPORTED, message)
    } else {
        return next.run(request).await;
    };
    json_response(status, &json!({ "error": message }))
}
