//! The transport between units: a tensor is handed to the next unit without being copied.
//!
//! One interface over four transports. Which one a channel uses follows from where its ends are: a
//! pointer between threads, shared memory between processes, ZeroMQ between hosts; ZeroMQ within a
//! host is there as the baseline. Nothing above this crate knows.
//!
//! An [`Endpoint`] is a process' end of it. It makes [`Inbox`]es, where a unit receives from any
//! number of senders; [`Sender`]s to inboxes anywhere; and [`Pool`]s of buffers. A buffer's life is
//! a chain of types: borrowed from a pool it is a [`tessera_core::Buffer`] that an engine writes
//! its output to (as a [`tessera_core::TensorMut`]); frozen it is a [`tessera_core::Tensor`], which
//! nobody can write any more; that goes into a [`Message`], is sent, received, and given back to
//! its pool when the last one who has it drops it, in whichever process.

mod address;
mod alarm;
mod async_notifier;
mod channel;
mod endpoint;
mod error_code;
#[cfg(test)]
mod flagged_tests;
mod ids;
mod in_flight;
mod inbox;
mod inbox_registry;
mod keep_alive;
pub mod layout;
#[cfg(test)]
mod layout_tests;
mod message;
mod notifier;
mod options;
mod outgoing_channels;
mod payload;
mod peer_credentials;
mod peers;
mod pool;
mod random;
mod reactor;
mod segment;
mod sender;
mod sync;
mod transport;
mod wait;

pub use address::{Address, ListenAddress, host_identity};
pub use channel::{ChannelPeer, NotSent, Received};
pub use endpoint::Endpoint;
pub use ids::{RequestId, TraceContext};
pub use in_flight::{FailedMessage, MessageFate};
pub use inbox::Inbox;
pub use inbox_registry::InboxInterrupter;
pub use message::Message;
pub use options::{
    ConnectOptions, EndpointOptions, InboxOptions, Listen, MAX_INBOX_DEPTH, Security,
};
pub use peers::Peers;
pub use pool::{Buffers, MAX_HOLDERS, Pool, ReleaseFenceWaiters};
pub use sender::Sender;
pub use transport::id::Transport;
pub use transport::network::tcp_info::ConnectionTraffic;
pub use transport::tcp::identity_pem::IdentityPem;
pub use transport::tcp::peer_verifier::certificate_names;
pub use transport::tcp::tls_identity::{TlsIdentity, WatchedSocket};
pub use transport::zeromq::curve_keys::CurveKeys;
pub use wait::{Deadline, Wait};
