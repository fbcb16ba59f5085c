//! Between hosts over ZeroMQ over TCP, unencrypted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "network/addresses.rs"]
mod addresses;
mod common;
#[path = "network/cuts.rs"]
mod cuts;
#[path = "network/ends.rs"]
mod ends;
#[path = "network/garbage.rs"]
mod garbage;
#[path = "network/hosts.rs"]
mod hosts;
#[path = "network/slow.rs"]
mod slow;

use common::network::Network;

const NETWORK: Network = Network::ZeroMq;
