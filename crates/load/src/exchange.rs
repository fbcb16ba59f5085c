//! How a request went, as a client saw it.

use crate::response::ResponseRemarks;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeOutcome {
    Ok,
    /// An HTTP status other than 200.
    Status(u16),
    /// HTTP 200, but not an answer of the protocol.
    Invalid,
    /// No connection, or one that broke.
    Connection,
    /// No answer in time.
    Timeout,
}

/// How a request went.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) outcome: ExchangeOutcome,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) remarks: ResponseRemarks,
    /// What the server, or the system, said went wrong.
    pub(crate) message: Option<String>,
}

impl Exchange {
    /// A request that got no answer.
    pub(crate) fn unanswered(outcome: ExchangeOutcome, message: Option<String>) -> Self {
        Self { outcome, sent: 0, received: 0, remarks: ResponseRemarks::default(), message }
    }
}
