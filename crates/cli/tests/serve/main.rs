//! `tessera serve` as its users see it: real processes, real sockets, real signals.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod batching;
mod bounds;
mod cluster;
mod cluster_alone;
mod cluster_content;
mod cluster_processes;
mod deadlines;
mod ends;
mod exits;
mod faults;
mod fusing;
mod hostile_host;
mod http;
mod load;
mod models;
mod monitoring;
mod names;
mod object_store;
mod pages;
mod putting;
mod repository;
mod residency;
mod runs;
mod server;
mod starting;
mod system;
mod thresholds;
mod watching;
