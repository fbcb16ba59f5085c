//! etcd, as far as controllers need it: keys and transactions, and which of several controllers
//! leads.
//!
//! Several controllers keep what they know in etcd, and one of them changes it: the one that leads
//! ([`Leadership`]). Each change is a [`Transaction`] that is carried out only for as long as that
//! is so ([`LeaderGuard`]), whatever a controller that was stopped for a while believes.
//!
//! This is a client of its own on tonic, for the part of etcd's API in `proto/etcd.proto`. The
//! crate `etcd-client` has all of it, and needs `protoc` at every build; what is generated here is
//! checked in (`scripts/generate-grpc`).

#![forbid(unsafe_code)]

mod client;
mod config;
mod election;
mod leader_guard;
mod lease;
mod lease_clock;
mod lease_term;
mod member;
mod tls;
mod transaction;
#[allow(
    missing_docs,
    clippy::all,
    dead_code,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
#[path = "generated.rs"]
mod wire;

pub use client::EtcdClient;
pub use config::{EtcdConfig, EtcdIdentityFiles, EtcdTlsFiles};
pub use election::{Candidate, LeaderRecord, Leadership};
pub use leader_guard::LeaderGuard;
pub use transaction::{KeyPage, KeyRecord, Transaction, TransactionOutcome};
