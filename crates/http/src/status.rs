//! Which status an error becomes, over HTTP and over gRPC: the one place that decides it.

use std::time::Duration;

use axum::http::StatusCode;
use tessera_core::ErrorKind;

/// The codes of gRPC, by the names that its specification gives them.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

fn error_status(kind: ErrorKind) -> (StatusCode, i32) {
    match kind {
        ErrorKind::Usage | ErrorKind::Invalid => (StatusCode::BAD_REQUEST, code::INVALID_ARGUMENT),
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, code::NOT_FOUND),
        ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, code::UNIMPLEMENTED),
        ErrorKind::Full | ErrorKind::Lost => (StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE),
        ErrorKind::TimedOut => (StatusCode::SERVICE_UNAVAILABLE, code::DEADLINE_EXCEEDED),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL),
    }
}

/// The HTTP status of an error.
pub fn http_status(kind: ErrorKind) -> StatusCode {
    error_status(kind).0
}

/// The gRPC code of an error, as a number.
pub fn grpc_code(kind: ErrorKind) -> i32 {
    error_status(kind).1
}

/// The HTTP status that says what a gRPC code does.
pub fn http_status_of_code(code: i32) -> StatusCode {
    match code {
        0 => StatusCode::OK,
        code::INVALID_ARGUMENT => StatusCode::BAD_REQUEST,
        code::NOT_FOUND => StatusCode::NOT_FOUND,
        code::PERMISSION_DENIED => StatusCode::FORBIDDEN,
        code::UNIMPLEMENTED => StatusCode::NOT_IMPLEMENTED,
        code::DEADLINE_EXCEEDED | code::UNAVAILABLE => StatusCode::SERVICE_UNAVAILABLE,
        code::UNAUTHENTICATED => StatusCode::UNAUTHORIZED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The whole seconds of a `Retry-After`: rounded up, so that nobody comes back too early, and at
/// least one, since zero says "at once".
pub fn retry_after_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_to_whole_seconds() {
        for (milliseconds, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (2500, 3)] {
            assert_eq!(retry_after_seconds(Duration::from_millis(milliseconds)), seconds);
        }
    }

    #[test]
    fn every_kind_has_the_http_status_that_clients_expect() {
        for (kind, expected) in [
            (ErrorKind::Usage, 400),
            (ErrorKind::Invalid, 400),
            (ErrorKind::NotFound, 404),
            (ErrorKind::Unsupported, 501),
            (ErrorKind::Full, 503),
            (ErrorKind::Lost, 503),
            (ErrorKind::TimedOut, 503),
            (ErrorKind::Engine, 500),
            (ErrorKind::Corrupt, 500),
            (ErrorKind::Io, 500),
        ] {
            assert_eq!(http_status(kind).as_u16(), expected, "{kind:?}");
        }
    }
}
