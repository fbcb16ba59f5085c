//! Between hosts over ZeroMQ over TCP, encrypted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
#[path = "network/hosts.rs"]
mod hosts;

use common::network::Network;

const NETWORK: Network = Network::Curve;
