//! Sessions over connections that break and come back: what transports between hosts have in
//! common.
//!
//! A channel is a session of its own above connections, of which it has one or several
//! (`outgoing`). Messages are numbered; the receiver says how far it is; when a connection breaks
//! the sender makes a new one, hears how far the receiver came, and sends the rest again, which the
//! receiver takes in order and once (`incoming`), from one listener for all senders (`listener`).
//! That also bounds what is on its way: the sender never has more messages out than the receiver's
//! queue has room for.
//!
//! What a connection is made of is behind `link`.

pub(super) mod bind_address;
pub(super) mod control_frame;
mod incoming;
mod lane;
pub(super) mod link;
pub(super) mod listener;
pub(super) mod outgoing;
pub(crate) mod tcp_info;
mod timer;

use std::time::Duration;

/// How often a sign of life is given, and after how much silence the other end is out of reach.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
