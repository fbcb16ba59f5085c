//! Messages: what goes from a block to the next.

use std::fmt;

use tessera_core::{Result, Tensor};

use crate::flight::Receipt;
use crate::layout::Envelope;
use crate::wait::Deadline;

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

/// A request on its way: who asked for what until when, where it goes from here, and its tensors.
///
/// Tensors are references: sending a message hands over where they are, and their memory goes back
/// to its pool once the last message with them is dropped, in whichever process that is. A message
/// that was received counts as in flight until it is dropped: a block sends its result on before it
/// drops what it was made from, so that a request is never nowhere.
pub struct Message {
    pub(crate) envelope: Envelope,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) receipt: Option<Receipt>,
    /// Whether it goes out before the GPU was told to write its tensors.
    pub(crate) is_ahead: bool,
}

impl Message {
    /// A message of `request` to `task`, which has `path` before it.
    pub fn new(request: RequestId, task: &str, path: &[&str]) -> Result<Self> {
        let envelope = Envelope::new(request.0, task, path)?;
        Ok(Self { envelope, tensors: Vec::new(), receipt: None, is_ahead: false })
    }

    /// The same with a deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.envelope.set_deadline(Some(deadline));
        self
    }

    /// The same as part of a trace.
    #[must_use]
    pub fn with_trace(mut self, trace: TraceContext) -> Self {
        self.envelope.set_trace(trace);
        self
    }

    /// The same with these tensors.
    #[must_use]
    pub fn with_tensors(mut self, tensors: Vec<Tensor>) -> Self {
        self.tensors = tensors;
        self
    }

    /// The same, sent before a GPU was told to write those of its tensors that are on one. Whoever sends it says
    /// with [`crate::Courier::written`] when they are.
    #[must_use]
    pub fn ahead(mut self) -> Self {
        self.is_ahead = true;
        self
    }

    /// The message to the next block: the same request with the first step done and these tensors.
    #[must_use]
    pub fn onward(&self, tensors: Vec<Tensor>) -> Self {
        let mut envelope = self.envelope.clone();
        envelope.advance();
        Self { envelope, tensors, receipt: None, is_ahead: false }
    }

    /// The request that it belongs to.
    pub fn request(&self) -> RequestId {
        RequestId(self.envelope.view().request())
    }

    /// The task that the client called.
    pub fn task(&self) -> &str {
        self.envelope.view().task()
    }

    /// The steps that remain, the receiver's own first.
    pub fn path(&self) -> impl Iterator<Item = &str> {
        self.envelope.view().path()
    }

    /// When the request must be answered.
    pub fn deadline(&self) -> Option<Deadline> {
        self.envelope.view().deadline()
    }

    /// Where the request is in a trace.
    pub fn trace(&self) -> TraceContext {
        self.envelope.view().trace()
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors, taken out; the message counts as in flight on.
    pub fn take_tensors(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.tensors)
    }

    /// The number that the message had in its channel; 0 for one that was not received.
    pub fn sequence(&self) -> u64 {
        self.receipt.as_ref().map_or(0, Receipt::sequence)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("request", &self.request())
            .field("task", &self.task())
            .field("path", &self.path().collect::<Vec<_>>())
            .field("tensors", &self.tensors)
            .finish()
    }
}
