//! Early sends: messages that go out before a GPU has computed what they carry.

use super::Message;

impl Message {
    /// The same, sent before the work was launched that writes those of its tensors that are on a
    /// GPU. Whoever sends it says with [`crate::Endpoint::signal_write_fence`] when they are.
    #[must_use]
    pub fn with_early_send(mut self) -> Self {
        self.is_early_send = true;
        self
    }
}
