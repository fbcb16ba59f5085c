//! Between hosts over TCP through TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "network/addresses.rs"]
mod addresses;
#[path = "network/certificates.rs"]
mod certificates;
mod common;
#[path = "network/cuts.rs"]
mod cuts;
#[path = "network/ends.rs"]
mod ends;
#[path = "network/hosts.rs"]
mod hosts;
#[path = "network/slow.rs"]
mod slow;

use common::network::Network;

const NETWORK: Network = Network::Tls;
