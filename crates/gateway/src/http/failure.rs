//! How an error leaves: a status and a JSON object that says what is wrong.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tessera_core::Error;
use tessera_dispatch::Refusal;
use tessera_http::{http_status, json_response, retry_after_seconds};

/// Why a request gets no answer.
#[derive(Debug)]
pub(super) struct HttpFailure {
    status: StatusCode,
    message: String,
    /// When to try again, in seconds.
    retry_after: Option<u64>,
    /// The client's name for the request; empty where it gave none, or none was read yet.
    id: String,
}

/// A result whose error can be sent.
pub(super) type HttpResult<T> = Result<T, HttpFailure>;

impl HttpFailure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None, id: String::new() }
    }

    /// The body is larger than the server allows.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the request is larger than {limit} bytes, the most there may be");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// The same for the request with this id.
    pub(super) fn with_id(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }
}

impl From<Error> for HttpFailure {
    fn from(error: Error) -> Self {
        Self::new(http_status(error.kind()), error.to_string())
    }
}

impl From<Refusal> for HttpFailure {
    fn from(refusal: Refusal) -> Self {
        let retry_after = refusal.retry_after.map(retry_after_seconds);
        Self { retry_after, ..Self::from(refusal.error) }
    }
}

impl IntoResponse for HttpFailure {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct ProtocolErrorBody<'a> {
            error: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            id: &'a str,
        }
        let body = ProtocolErrorBody { error: &self.message, id: &self.id };
        let mut response = json_response(self.status, &body);
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
