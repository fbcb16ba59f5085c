//! Bodies: JSON in, whatever its media type says, and JSON out.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tessera_http::json_response;

use super::MAX_BODY_BYTES;
use super::failure::ApiFailure;
use crate::json::read_json;

/// The JSON document that a request brings.
pub(super) struct JsonDocument(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for JsonDocument {
    type Rejection = ApiFailure;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiFailure> {
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

/// The answer to a request that was carried out.
pub(super) fn ok_response(value: &impl Serialize) -> Response {
    json_response(StatusCode::OK, value)
}
