//! Numbers that a request carries: they are data, and know of no message.

use std::fmt;

/// Number of a request, unique for as long as it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Where a request is in a distributed trace, as the W3C's `traceparent` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace: [u8; 16],
    /// The span that the message was sent from.
    pub span: [u8; 8],
    /// Flags of the trace; 1: sampled.
    pub flags: u8,
}
