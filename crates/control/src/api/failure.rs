//! How an error leaves: a status, and a JSON object that says what is wrong.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tessera_core::{Error, ErrorKind};

use super::body::json_response;

/// Why a request is not answered.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    message: String,
}

/// A result whose error can be sent.
pub(super) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Usage | ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Full | ErrorKind::Lost | ErrorKind::TimedOut => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => {
                // The client is not at fault, so that whoever runs the server must know, too.
                tracing::error!(%error, "a request to the control plane failed");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct ErrorBody {
            error: String,
        }
        json_response(self.status, &ErrorBody { error: self.message })
    }
}
