//! What a connection between hosts provides: whole messages, in order, and word of its end. What
//! becomes of a channel when one breaks is not its business.

use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, Result, Tensor};

use crate::reactor::{EventSource, ReactorHandle};

/// A part of a message that is to be sent.
pub(crate) enum LinkFrame {
    /// A header, or what the ends say to each other.
    Bytes(Vec<u8>),
    /// The elements of a tensor on the host, which are sent from where they are.
    Tensor(Tensor),
}

/// What happened to a connection that we made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// It broke, could not be made, or the other end closed it.
    Broken,
    /// It broke before both ends had understood each other, for a reason that is not known.
    HandshakeBroken,
    /// The other end refused us, or we it.
    HandshakeFailed,
}

/// Makes connections to one inbox.
pub(crate) trait LinkDialler: Send + Sync {
    /// Begins a connection; what is sent before it is there waits for it.
    fn dial(&self) -> Result<Box<dyn DialledLink>>;

    /// Where to, for people.
    fn target(&self) -> &str;

    /// Why the receiver may have broken off.
    fn refusal_error(&self) -> Error;
}

/// A connection that we made. Nothing of it blocks.
pub(crate) trait DialledLink: Send {
    /// Sends a message. An error says that the connection is broken, of which there is an event too.
    fn send_frames(&mut self, frames: Vec<LinkFrame>) -> Result<()>;

    /// What the other end said next; it speaks in single frames.
    fn take_frame(&mut self) -> Option<Bytes>;

    /// What happened since the last time.
    fn take_events(&mut self) -> Vec<LinkEvent>;

    /// How long a packet and its acknowledgement take; `None` where that can't be known.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Has the reactor call `source` when there is something to take.
    fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()>;

    /// Ends it; what was not sent yet is sent first where `sends_rest` says so, as far as that does
    /// not take long.
    fn close_link(&mut self, reactor: &ReactorHandle, sends_rest: bool);
}

/// A connection that others made to us, by a number that is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// For how long nothing came through a connection.
pub(crate) struct ConnectionSilence {
    /// No bytes: the other process said nothing.
    pub(crate) of_process: Duration,
    /// Not even an acknowledgement: nothing of the other host. Its kernel acknowledges what we send
    /// also while the process there is not scheduled.
    pub(crate) of_host: Duration,
    /// How long a packet and its acknowledgement take, where that is known.
    pub(crate) round_trip: Option<Duration>,
}

/// All connections that others made to an inbox. Nothing of it blocks.
pub(crate) trait LinkListener: Send {
    /// Notices what happened to connections; whether anything did. What they brought before is
    /// taken before [`LinkListener::take_ended`].
    fn notice_events(&mut self) -> bool;

    /// The next message of any of them.
    fn take_message(&mut self) -> Option<(ConnectionId, Vec<Bytes>)>;

    /// Those that ended, as far as it was noticed.
    fn take_ended(&mut self) -> Vec<ConnectionId>;

    /// Says something, where it is there still.
    fn send_frame(&mut self, to: ConnectionId, frame: Vec<u8>);

    /// Refuses whoever may not send here at all.
    fn check_peer(&self, connection: ConnectionId) -> Result<()>;

    /// For how long nothing came through; `None` where that can't be known.
    fn silence_of(&self, connection: ConnectionId) -> Option<ConnectionSilence>;

    /// Has the reactor call `source` when there is something to take.
    fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()>;

    /// Has the reactor look no more. To be called before it is dropped.
    fn stop_watching(&mut self, reactor: &ReactorHandle);
}
