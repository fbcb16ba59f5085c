//! The front ends as clients see them, over a service that answers by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod bad_input;
mod compression;
mod cuda_memory;
mod fake;
mod grpc;
mod health;
mod http;
mod reflection;
mod region_rules;
mod settings;
mod shared_memory;
mod triton_names;
