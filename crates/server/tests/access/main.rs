//! TLS, tokens, certificates and the audit trail, on every port of a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod asking;
mod calls;
mod certificates;
mod pages;
mod reloading;
mod roles;
mod trail;
