//! Transports: one folder for each way that a hop can go, one trait over them, one registry.
//!
//! ```text
//! transport/
//!   id.rs             what a transport is called
//!   driver.rs         what a transport provides, and what it is given
//!   registry.rs       which there are, the fastest first
//!   thread/           a pointer, within a process
//!   shared_memory/    a ring of headers and buffers where they are, within a host
//!   network/          sessions over connections that break: for transports between hosts
//!   tcp/              header and tensors, in the clear or through TLS, between hosts
//!   zeromq/           the whole tensor in a message: the baseline
//! ```
//!
//! To add one: a folder with a [`driver::TransportDriver`] and a [`driver::TransportEntry`], and a
//! line in [`registry`]. The folder gives it its name too (`impl Transport { pub const … }`).
//! `tests/conformance.rs` runs over all that are registered.

pub(crate) mod driver;
pub(crate) mod id;
pub(crate) mod network;
pub(crate) mod registry;
mod shared_memory;
pub(crate) mod tcp;
mod thread;
pub(crate) mod zeromq;
