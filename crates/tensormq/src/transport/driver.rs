//! What a transport provides, and what the endpoint gives it to do so.

use std::sync::Arc;

use tessera_core::Result;

use super::id::Transport;
use super::tcp::tls_identity::TlsIdentity;
use super::zeromq::curve_keys::CurveKeys;
use crate::address::{Address, ListenAddress};
use crate::channel::{ChannelPeer, OutgoingChannel};
use crate::inbox_registry::{InboxListener, InboxRegistry, InboxShared};
use crate::options::{ConnectOptions, InboxOptions, Listen};
use crate::outgoing_channels::OutgoingChannels;
use crate::pool::{DeviceHooks, PoolRegistry};
use crate::reactor::ReactorHandle;

/// One way for a hop, in one endpoint. It owns what its channels and listeners share.
pub(crate) trait TransportDriver: Send + Sync {
    /// Which it is.
    fn id(&self) -> Transport;

    /// Whether it is to be taken where nobody asks for another and none before it in the registry
    /// leads there.
    fn is_preferred_for(&self, address: &Address) -> bool;

    /// Opens a channel to an inbox; an error where it does not lead there.
    fn open_channel(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)>;

    /// Opens what an inbox listens on, as `listen` says and within the limits of `options`; `None`
    /// where the inbox is found without.
    fn open_listener(
        &self,
        inbox: &Arc<InboxShared>,
        listen: &Listen,
        options: &InboxOptions,
    ) -> Result<Option<OpenedListener>> {
        let _ = (inbox, listen, options);
        Ok(None)
    }
}

/// What an inbox listens on, and where others find it.
pub(crate) struct OpenedListener {
    pub(crate) listener: Arc<dyn InboxListener>,
    pub(crate) address: ListenAddress,
}

/// What an endpoint's transports have in common. It outlives none of them and knows none.
pub(crate) struct TransportContext {
    /// Number of the endpoint.
    pub(crate) endpoint_id: u64,
    /// The host, as [`crate::host_identity`] has it.
    pub(crate) host: String,
    pub(crate) reactor: ReactorHandle,
    pub(crate) inboxes: Arc<InboxRegistry>,
    pub(crate) pools: Arc<PoolRegistry>,
    /// Channels that are sent on, until nothing is in flight on them.
    pub(crate) outgoing: Arc<OutgoingChannels>,
    #[cfg_attr(not(feature = "zeromq"), allow(dead_code, reason = "for transports between hosts"))]
    /// For connections between hosts that are encrypted: our key pair.
    pub(crate) keys: Option<CurveKeys>,
    /// The same for TLS: who we are, and whom we believe.
    pub(crate) tls: Option<TlsIdentity>,
    pub(crate) devices: Arc<DeviceHooks>,
}

/// Starts the transports of one folder in an endpoint.
pub(crate) type StartTransports =
    fn(&Arc<TransportContext>) -> Result<Vec<Box<dyn TransportDriver>>>;

/// What the registry knows of the transports of one folder.
pub(crate) struct TransportEntry {
    /// Those that it starts.
    pub(crate) transports: &'static [Transport],
    /// How; or the cargo feature that this build is without.
    pub(crate) start: Result<StartTransports, &'static str>,
}
