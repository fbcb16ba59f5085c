//! What every interface over HTTP answers alike: JSON, and the status of an error.
//!
//! A crate of its own, as the gateway and the control plane have nothing else in common.

#![forbid(unsafe_code)]

mod json_response;
mod status;

pub use json_response::{JSON_MEDIA_TYPE, json_response};
pub use status::{grpc_code, http_status, retry_after_seconds};
