//! What a transport provides: the two ends of a channel.

use tessera_core::{Error, Result};

use crate::ids::RequestId;
use crate::in_flight::InFlightMessages;
use crate::message::Message;
use crate::notifier::Notifier;
use crate::transport::id::Transport;

/// Who is at the other end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelPeer {
    /// How it is reached.
    pub transport: Transport,
    /// The number of its endpoint, unique over all processes and restarts.
    pub endpoint_id: u64,
    /// Its process, where it is on this host.
    pub process: Option<u32>,
}

/// What an inbox received.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A message that can't be read: its sender died and its memory is in use for something else,
    /// or it breaks the rules. The channel goes on.
    Failed {
        /// Who sent it.
        peer: ChannelPeer,
        /// The request that it belonged to, where that much could be read.
        request: Option<RequestId>,
        /// What is wrong with it.
        error: Error,
    },
    /// A sender closed its channel, after everything that it sent was received.
    Closed(ChannelPeer),
    /// A sender died, after everything of it that could be received was.
    Lost(ChannelPeer, Error),
    /// The connection to a sender is gone. It may come back.
    Interrupted(ChannelPeer),
    /// The connection to a sender is back, and nothing was lost.
    Resumed(ChannelPeer),
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

/// What is told to those who send to an inbox that is closed.
pub(crate) fn inbox_closed() -> Error {
    Error::lost("the receiver closed its inbox")
}

/// The receiving end of a channel.
pub(crate) trait IncomingChannel: Send + Sync {
    /// What is there now.
    fn take_next(&self) -> Option<Received>;
    /// The receiver is about to sleep: it wants to be notified.
    fn arm_wakeup(&self);
    /// The receiver is awake.
    fn disarm_wakeup(&self);
    /// The receiver will take nothing more.
    fn close_receiving(&self);
}

/// What came of trying to send.
pub(crate) enum SendAttempt {
    /// Sent, under this number.
    Sent(u64),
    /// No room now.
    Full(Message),
}

/// The sending end of a channel.
pub(crate) trait OutgoingChannel: Send + Sync {
    /// Sends if there is room.
    fn try_send(&self, message: Message) -> Result<SendAttempt, Box<NotSent>>;
    /// The sender is about to sleep: it wants to be notified when something changes.
    fn arm_wakeup(&self);
    /// The sender is awake.
    fn disarm_wakeup(&self);
    /// What is notified when there is room, or the receiver is gone.
    fn notifier(&self) -> &Notifier;
    /// What is in flight, as known now.
    fn in_flight(&self) -> &InFlightMessages;
    /// Learns what the receiver took and is done with.
    fn collect_receipts(&self);
    /// Whether the receiver is gone for good.
    fn is_lost(&self) -> bool;
    /// Whether the connection is gone, and may come back.
    fn is_interrupted(&self) -> bool {
        false
    }
    /// Whether nothing is in flight, and nothing more will be.
    fn is_over(&self) -> bool;
    /// Whether all is done but that the receiver says that it heard our goodbye.
    fn awaits_farewell(&self) -> bool {
        false
    }
    /// Nothing more will be sent.
    fn close_sending(&self);
}
