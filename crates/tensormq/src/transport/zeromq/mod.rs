//! ZeroMQ, a header and its tensors as frames of one message: the baseline within a host, and the
//! way between hosts.
//!
//! A channel is a session of its own above ZeroMQ's connections, of which it has one or several
//! (`outgoing`). Messages are numbered; the receiver says how far it is; when a connection breaks
//! the sender makes a new one, hears how far the receiver came, and sends the rest again, which the
//! receiver takes in order and once (`listener/incoming`), from one socket for all senders
//! (`listener`). That also bounds what is on its way: the sender never has more messages out than
//! the receiver's queue has room for.
//!
//! It needs a C++ compiler, and is there with the cargo feature `zeromq` alone; its names and the
//! type of its keys always are.

#[cfg(feature = "zeromq")]
mod context;
#[cfg(feature = "zeromq")]
mod control_frame;
#[cfg_attr(not(feature = "zeromq"), path = "curve_keys_absent.rs")]
pub(crate) mod curve_keys;
#[cfg(feature = "zeromq")]
mod driver;
#[cfg(feature = "zeromq")]
mod frame;
#[cfg(feature = "zeromq")]
mod lane;
#[cfg(feature = "zeromq")]
mod listener;
#[cfg(feature = "zeromq")]
mod monitor;
#[cfg(feature = "zeromq")]
mod outgoing;
#[cfg(feature = "zeromq")]
mod socket;
#[cfg(feature = "zeromq")]
mod timer;
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
