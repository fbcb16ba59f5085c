//! Which status an error becomes, over HTTP and over gRPC: the one place that decides it.

use std::time::Duration;

use axum::http::StatusCode;
use tessera_core::ErrorKind;
use tonic::Code;

/// The HTTP status of an error.
pub(crate) fn http_status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Usage | ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Full | ErrorKind::Lost | ErrorKind::TimedOut => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The gRPC code of an error.
pub(crate) fn grpc_code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Usage | ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Full | ErrorKind::Lost => Code::Unavailable,
        ErrorKind::TimedOut => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

/// The whole seconds of a `Retry-After`: rounded up, so that nobody comes back too early, and at
/// least one, since zero says "at once".
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
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
    fn every_kind_has_the_status_that_clients_expect() {
        for (kind, http, grpc) in [
            (ErrorKind::Usage, 400, Code::InvalidArgument),
            (ErrorKind::Invalid, 400, Code::InvalidArgument),
            (ErrorKind::NotFound, 404, Code::NotFound),
            (ErrorKind::Unsupported, 501, Code::Unimplemented),
            (ErrorKind::Full, 503, Code::Unavailable),
            (ErrorKind::Lost, 503, Code::Unavailable),
            (ErrorKind::TimedOut, 503, Code::DeadlineExceeded),
            (ErrorKind::Engine, 500, Code::Internal),
            (ErrorKind::Corrupt, 500, Code::Internal),
            (ErrorKind::Io, 500, Code::Internal),
        ] {
            assert_eq!((http_status(kind).as_u16(), grpc_code(kind)), (http, grpc), "{kind:?}");
        }
    }
}
