//! Messages: what goes from a unit to the next.

mod early_send;

use std::fmt;

use tessera_core::{Result, Tensor};

use crate::ids::{RequestId, TraceContext};
use crate::in_flight::Receipt;
use crate::layout::Envelope;
use crate::wait::Deadline;

/// A request on its way: who asked for what until when, where it goes from here, and its tensors.
///
/// Tensors are references: sending a message hands over where they are, and their memory goes back
/// to its pool once the last message with them is dropped, in whichever process that is. A message
/// that was received counts as in flight until it is dropped: a unit forwards its result before it
/// drops what it was made from, so that a request is never nowhere.
pub struct Message {
    pub(crate) envelope: Envelope,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) receipt: Option<Receipt>,
    /// Whether it goes out before its tensors are written.
    pub(crate) is_early_send: bool,
}

impl Message {
    /// A message of `request` to `task` with this source route, accepted now.
    pub fn new(request: RequestId, task: &str, route: &[u8]) -> Result<Self> {
        let mut envelope = Envelope::new(request.0, task, route)?;
        let now = Deadline::now().nanoseconds();
        envelope.set_times(now, now);
        Ok(Self { envelope, tensors: Vec::new(), receipt: None, is_early_send: false })
    }

    /// A message of the same request with another source route and without tensors: to the next
    /// unit, or the reply.
    pub fn with_route(&self, route: &[u8]) -> Result<Self> {
        let mut envelope = self.envelope.with_route(route)?;
        envelope.set_times(self.accepted(), Deadline::now().nanoseconds());
        Ok(Self { envelope, tensors: Vec::new(), receipt: None, is_early_send: false })
    }

    /// The same, of a request that was accepted then, by the host's clock, in nanoseconds.
    #[must_use]
    pub fn with_accepted(mut self, accepted: u64) -> Self {
        self.envelope.set_times(accepted, self.made());
        self
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

    /// The same message with these tensors, to be sent on.
    #[must_use]
    pub fn forward_with(&self, tensors: Vec<Tensor>) -> Self {
        let mut envelope = self.envelope.clone();
        envelope.set_times(self.accepted(), Deadline::now().nanoseconds());
        Self { envelope, tensors, receipt: None, is_early_send: false }
    }

    /// The request that it belongs to.
    pub fn request(&self) -> RequestId {
        RequestId(self.envelope.view().request())
    }

    /// The task that the client called.
    pub fn task(&self) -> &str {
        self.envelope.view().task()
    }

    /// The source route, which means nothing to the transport.
    pub fn route(&self) -> &[u8] {
        self.envelope.view().route()
    }

    /// When the request was accepted, by this host's clock, in nanoseconds. Where it came from
    /// another host, the time on the way between them is not counted.
    pub fn accepted(&self) -> u64 {
        self.envelope.view().accepted()
    }

    /// When the message was made, by this host's clock, in nanoseconds; with the same restriction.
    pub fn made(&self) -> u64 {
        self.envelope.view().made()
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
            .field("route_bytes", &self.route().len())
            .field("tensors", &self.tensors)
            .finish()
    }
}
