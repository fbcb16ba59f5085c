//! What a transport provides: the two ends of a channel.

use tessera_core::{Error, Result};

use crate::address::Transport;
use crate::bell::Bell;
use crate::flight::Flight;
use crate::message::{Message, RequestId};

/// Who is at the other end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// How it is reached.
    pub transport: Transport,
    /// The number of its transport, unique over all processes and restarts.
    pub courier: u64,
    /// Its process, where it is on this host.
    pub process: Option<u32>,
}

/// What an inbox received.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A message that can't be read: its sender died and its memory is in use for something else, or
    /// it breaks the rules. The channel goes on.
    Failed {
        /// Who sent it.
        peer: Peer,
        /// The request that it belonged to, where that much could be read.
        request: Option<RequestId>,
        /// What is wrong with it.
        error: Error,
    },
    /// A sender closed its channel, after everything that it sent was received.
    Closed(Peer),
    /// A sender died, after everything of it that could be received was.
    Lost(Peer, Error),
    /// The connection to a sender is gone. It may come back.
    Interrupted(Peer),
    /// The connection to a sender is back, and nothing was lost.
    Resumed(Peer),
}

/// Why a message was not sent; it comes back.
#[derive(Debug)]
pub struct NotSent {
    /// `Full`, `TimedOut`, `Lost`, or what is wrong with the message.
    pub error: Error,
    /// The message.
    pub message: Message,
}

impl From<Box<NotSent>> for Error {
    fn from(not_sent: Box<NotSent>) -> Self {
        not_sent.error
    }
}

/// The receiving end of a channel.
pub(crate) trait Incoming: Send + Sync {
    /// What is there now.
    fn take(&self) -> Option<Received>;
    /// The receiver is about to sleep: it wants its bell rung.
    fn arm(&self);
    /// The receiver is awake.
    fn disarm(&self);
    /// The receiver will take nothing more.
    fn close(&self);
}

/// What came of trying to send.
pub(crate) enum Attempt {
    /// Sent, under this number.
    Sent(u64),
    /// No room now.
    Full(Message),
}

/// The sending end of a channel.
pub(crate) trait Outgoing: Send + Sync {
    /// Sends if there is room.
    fn try_send(&self, message: Message) -> Result<Attempt, Box<NotSent>>;
    /// The sender is about to sleep: it wants its bell rung when something changes.
    fn arm(&self);
    /// The sender is awake.
    fn disarm(&self);
    /// What rings when there is room, or the receiver is gone.
    fn bell(&self) -> &Bell;
    /// What is in flight, as known now.
    fn flight(&self) -> &Flight;
    /// Learns what the receiver took and is done with.
    fn settle(&self);
    /// Whether the receiver is gone for good.
    fn is_lost(&self) -> bool;
    /// Whether the connection is gone, and may come back.
    fn is_interrupted(&self) -> bool {
        false
    }
    /// Whether nothing is in flight, and nothing more will be.
    fn is_over(&self) -> bool;
    /// Nothing more will be sent.
    fn close(&self);
}
