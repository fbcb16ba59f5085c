//! How an error leaves: a status, and a JSON object that says what is wrong.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tessera_core::Error;
use tessera_http::{http_status, json_response};

/// Why a request is not answered.
#[derive(Debug)]
pub(super) struct ApiFailure {
    status: StatusCode,
    message: String,
}

/// A result whose error can be sent.
pub(super) type ApiResult<T> = Result<T, ApiFailure>;

impl ApiFailure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for ApiFailure {
    fn from(error: Error) -> Self {
        let status = http_status(error.kind());
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            // The client is not at fault, so that whoever runs the server must know, too.
            tracing::error!(%error, "a request to the control plane failed");
        }
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct ApiErrorBody {
            error: String,
        }
        json_response(self.status, &ApiErrorBody { error: self.message })
    }
}
