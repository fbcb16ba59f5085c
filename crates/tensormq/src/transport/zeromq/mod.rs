//! ZeroMQ, a header and its tensors as frames of one message: the baseline within a host, and the
//! way between hosts.
//!
//! Sessions above its connections are those of [`network`](super::network).
//!
//! It needs a C++ compiler, and is there with the cargo feature `zeromq` alone; its names and the
//! type of its keys always are.

#[cfg(feature = "zeromq")]
mod bind_address;
#[cfg(feature = "zeromq")]
mod context;
#[cfg_attr(not(feature = "zeromq"), path = "curve_keys_absent.rs")]
pub(crate) mod curve_keys;
#[cfg(feature = "zeromq")]
mod driver;
#[cfg(feature = "zeromq")]
mod frame;
#[cfg(feature = "zeromq")]
mod link;
#[cfg(feature = "zeromq")]
mod listener;
#[cfg(feature = "zeromq")]
mod monitor;
#[cfg(feature = "zeromq")]
mod socket;
#[cfg(feature = "zeromq")]
mod zap;

use super::driver::TransportEntry;
use super::id::Transport;

impl Transport {
    /// Between processes of a host: ZeroMQ with the whole tensor in the message, the baseline.
    pub const ZMQ_IPC: Self = Self::with_name("zmq-ipc");
    /// Between hosts: ZeroMQ over TCP.
    pub const ZMQ_TCP: Self = Self::with_name("zmq-tcp");
}

/// How they are started.
pub(super) const ENTRY: TransportEntry = TransportEntry {
    transports: &[Transport::ZMQ_IPC, Transport::ZMQ_TCP],
    #[cfg(feature = "zeromq")]
    start: Ok(driver::start_transports),
    #[cfg(not(feature = "zeromq"))]
    start: Err("zeromq"),
};
