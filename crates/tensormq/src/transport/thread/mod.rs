//! Between threads of a process: a message changes hands as a pointer.

mod channel;
mod handover;

use std::sync::Arc;

use tessera_core::{Error, Result};

use super::driver::{TransportContext, TransportDriver, TransportEntry};
use super::id::Transport;
use crate::address::Address;
use crate::channel::{ChannelPeer, OutgoingChannel};
use crate::options::ConnectOptions;
use channel::{ThreadChannel, ThreadIncoming};

impl Transport {
    /// Within a process: a pointer.
    pub const THREAD: Self = Self::with_name("thread");
}

/// How it is started.
pub(super) const ENTRY: TransportEntry = TransportEntry {
    transports: &[Transport::THREAD],
    start: Ok(|context| Ok(vec![Box::new(ThreadTransport(Arc::clone(context)))])),
};

/// Inboxes of this endpoint, reached from within.
struct ThreadTransport(Arc<TransportContext>);

impl TransportDriver for ThreadTransport {
    fn id(&self) -> Transport {
        Transport::THREAD
    }

    fn is_preferred_for(&self, address: &Address) -> bool {
        address.endpoint_id == self.0.endpoint_id
    }

    fn open_channel(
        &self,
        address: &Address,
        _: &ConnectOptions,
    ) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)> {
        if address.endpoint_id != self.0.endpoint_id {
            return Err(Error::usage("it is in another process"));
        }
        let inbox = self.0.inboxes.find_inbox(&address.inbox)?;
        let process = Some(std::process::id());
        let peer = ChannelPeer { transport: self.id(), endpoint_id: self.0.endpoint_id, process };
        let channel = ThreadChannel::new(inbox.depth, peer.clone(), Arc::clone(&inbox.notifier))?;
        inbox.add_channel(Arc::new(ThreadIncoming(Arc::clone(&channel))))?;
        Ok((channel, peer))
    }
}
