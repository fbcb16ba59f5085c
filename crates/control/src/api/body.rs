//! Bodies: JSON in, which says that it is, and JSON out.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tessera_http::{JSON_MEDIA_TYPE, json_response};

use super::MAX_BODY_BYTES;
use super::failure::ApiFailure;
use crate::json::read_json;
use crate::names::shorten_name;

/// The JSON document that a request brings.
pub(super) struct JsonDocument(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for JsonDocument {
    type Rejection = ApiFailure;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiFailure> {
        require_json(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let message = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    format!("the body is larger than {MAX_BODY_BYTES} bytes, the most there may be")
                }
                _ => format!("the body could not be read: {}", rejection.body_text()),
            };
            ApiFailure::new(rejection.status(), message)
        })?;
        Ok(Self(read_json(&bytes)?))
    }
}

/// A change without a document, which says all the same that it is JSON.
pub(super) struct BodilessChange;

impl<S: Send + Sync> FromRequestParts<S> for BodilessChange {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiFailure> {
        require_json(&parts.headers).map(|()| Self)
    }
}

/// Refuses what does not say that it is JSON: a page can have a browser send text or nothing to any
/// server, and JSON only where the server was asked first.
fn require_json(headers: &HeaderMap) -> Result<(), ApiFailure> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|text| text.to_str().ok());
    let media_type = media_type.and_then(|text| text.split(';').next()).unwrap_or("nothing");
    if media_type.trim().eq_ignore_ascii_case(JSON_MEDIA_TYPE) {
        return Ok(());
    }
    let media_type = shorten_name(media_type);
    let message = format!("content-type: {media_type}, expected {JSON_MEDIA_TYPE}");
    Err(ApiFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// The answer to a request that was carried out.
pub(super) fn ok_response(value: &impl Serialize) -> Response {
    json_response(StatusCode::OK, value)
}
