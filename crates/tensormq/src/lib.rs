//! The transport between blocks: a tensor is handed to the next block without being copied.
//!
//! One interface over four transports. Which one a channel uses follows from where its ends are:
//! a pointer between threads, shared memory between processes, ZeroMQ between hosts; ZeroMQ within a
//! host is there as the baseline. Nothing above this crate knows.
//!
//! A [`Courier`] is a process' part in it. It makes [`Inbox`]es, where a block receives from any
//! number of senders; [`Sender`]s to inboxes anywhere; and [`Pool`]s of buffers. A buffer's life is a
//! chain of types: borrowed from a pool it is a [`tessera_core::Buffer`] that an engine writes its
//! output to (as a [`tessera_core::TensorMut`]); frozen it is a [`tessera_core::Tensor`], which nobody
//! can write any more; that goes into a [`Message`], is sent, received, and given back to its pool when
//! the last one who has it drops it, in whichever process.

mod address;
mod asynchronous;
mod bell;
mod channel;
mod courier;
mod device;
mod driver;
#[cfg(test)]
mod flagged_tests;
mod flight;
mod handover;
mod inbox;
pub mod layout;
#[cfg(test)]
mod layout_tests;
mod message;
mod neighbours;
mod payload;
mod peers;
mod pool;
mod protocol;
mod ring;
mod segment;
mod sender;
mod shm;
mod sync;
mod thread;
mod unix;
mod wait;
mod zeromq;

pub use address::{Address, Transport, host};
pub use channel::{NotSent, Peer, Received};
pub use courier::{ConnectOptions, Courier, CourierOptions, FreeWaiters, InboxOptions};
pub use flight::{Failed, Fate};
pub use inbox::Inbox;
pub use message::{Message, RequestId, TraceContext};
pub use peers::Peers;
pub use pool::{Buffers, MOST_HOLDERS, Pool};
pub use sender::Sender;
pub use wait::{Deadline, Wait};
pub use zeromq::{Keys, Listen, Security};

/// Most messages of one sender that an inbox can let wait.
pub const MOST_DEPTH: u32 = 512;
