//! The same attacks over gRPC, and over HTTP with TLS: stalled uploads, bodies that unpack to very
//! much, and large messages.

mod wire_attacks;
mod wire_body;
mod wire_connection;
mod wire_request;
mod wire_victim;
mod wire_watch;

pub(super) use wire_attacks::{
    GRPC_BOMBS, GRPC_LARGE_MESSAGES, GRPC_STALLED_UPLOADS, TLS_BOMBS, TLS_HALF_HANDSHAKES,
    TLS_LARGE_JSON, TLS_STALLED_UPLOADS,
};

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireKind {
    /// gRPC, without TLS.
    Grpc,
    /// HTTP/1.1 over TLS.
    Tls,
}
