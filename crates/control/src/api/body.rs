//! Bodies: JSON in, whatever its media type says, and JSON out.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::LARGEST_BODY;
use super::failure::Failure;
use crate::json::read_json;

/// The JSON document that a request brings.
pub(super) struct Document(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for Document {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let message = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    format!("the body is larger than {LARGEST_BODY} bytes, the most there may be")
                }
                _ => format!("the body could not be read: {}", rejection.body_text()),
            };
            Failure::new(rejection.status(), message)
        })?;
        Ok(Self(read_json(&bytes)?))
    }
}

/// The answer to a request that was carried out.
pub(super) fn answer(value: &impl Serialize) -> Response {
    json_response(StatusCode::OK, value)
}

pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        // None of our types fails to be written.
        Err(_) => {
            let body = b"{\"error\":\"the answer can't be written as JSON\"}".to_vec();
            (StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
