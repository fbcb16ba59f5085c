//! TCP, in the clear or through TLS with certificates at both ends: the way between hosts.
//!
//! Sessions above its connections are those of [`network`](super::network). A connection has a
//! thread that sends and one that reads (`connection`), so that encryption and copies keep nobody
//! who computes or dispatches.

mod connection;
mod driver;
pub(crate) mod identity_pem;
mod link;
mod listener;
mod message_reader;
pub(crate) mod peer_verifier;
pub(crate) mod tls_identity;
mod wire_socket;

use super::driver::TransportEntry;
use super::id::Transport;

impl Transport {
    /// Between hosts: TCP, with or without TLS.
    pub const TCP: Self = Self::with_name("tcp");
}

/// How it is started.
pub(super) const ENTRY: TransportEntry =
    TransportEntry { transports: &[Transport::TCP], start: Ok(driver::start_transports) };
