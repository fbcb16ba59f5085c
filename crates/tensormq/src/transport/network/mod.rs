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

/// So many round trips without a sign of life are bad luck still: one that is lost in a queue that
/// tensors fill comes again after a round trip, and then each time after twice as long.
const SILENT_ROUND_TRIPS: u32 = 12;
/// More silence is borne on no link.
const LONGEST_SILENCE: Duration = Duration::from_secs(8);

/// How long silence is borne where the round trip is known; `usual` where that is short.
fn silence_limit(usual: Duration, round_trip: Option<Duration>) -> Duration {
    let of_link = round_trip.unwrap_or_default().saturating_mul(SILENT_ROUND_TRIPS);
    usual.max(of_link.min(LONGEST_SILENCE))
}
