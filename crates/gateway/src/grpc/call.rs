//! What a call's metadata says beside its message: how long the client waits, and its trace.

use std::time::Duration;

use tessera_dispatch::Refusal;
use tessera_http::{grpc_code, retry_after_seconds};
use tessera_tensormq::TraceContext;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::protocol::parse_traceparent;

/// What a client said of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrpcCall {
    pub(super) timeout: Option<Duration>,
    pub(super) trace: Option<TraceContext>,
}

impl GrpcCall {
    pub(super) fn new(metadata: &MetadataMap) -> Self {
        let text = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
        Self {
            timeout: text("grpc-timeout").and_then(parse_timeout),
            trace: text("traceparent").and_then(parse_traceparent),
        }
    }
}

/// A `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    let count = digits.parse::<u64>().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The status of a call that is refused.
pub(super) fn refusal_status(refusal: impl Into<Refusal>) -> Status {
    let Refusal { error, retry_after } = refusal.into();
    let mut status = Status::new(Code::from_i32(grpc_code(error.kind())), error.to_string());
    if let Some(wait) = retry_after {
        let seconds = MetadataValue::from(retry_after_seconds(wait));
        status.metadata_mut().insert("retry-after", seconds);
    }
    status
}

#[cfg(test)]
mod tests {
    use tessera_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        for (text, expected) in [
            ("2S", Some(Duration::from_secs(2))),
            ("100m", Some(Duration::from_millis(100))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("1n", Some(Duration::from_nanos(1))),
            ("123456789S", None),
            ("5", None),
            ("", None),
            ("S", None),
            ("-1S", None),
            ("1é", None),
        ] {
            assert_eq!(parse_timeout(text), expected, "{text}");
        }
    }

    #[test]
    fn every_kind_has_the_code_that_clients_expect() {
        for (kind, expected) in [
            (ErrorKind::Usage, Code::InvalidArgument),
            (ErrorKind::Invalid, Code::InvalidArgument),
            (ErrorKind::NotFound, Code::NotFound),
            (ErrorKind::Unsupported, Code::Unimplemented),
            (ErrorKind::Full, Code::Unavailable),
            (ErrorKind::Lost, Code::Unavailable),
            (ErrorKind::TimedOut, Code::DeadlineExceeded),
            (ErrorKind::Engine, Code::Internal),
            (ErrorKind::Corrupt, Code::Internal),
            (ErrorKind::Io, Code::Internal),
        ] {
            assert_eq!(refusal_status(Error::new(kind, "wrong")).code(), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let retry_after = Some(Duration::from_millis(1500));
        let refused = refusal_status(Refusal { error: Error::full("no room"), retry_after });
        assert_eq!(refused.code(), Code::Unavailable);
        assert_eq!(refused.message(), "no room");
        assert_eq!(refused.metadata().get("retry-after").unwrap(), "2");
        assert!(refusal_status(Error::full("no room")).metadata().get("retry-after").is_none());
    }
}
