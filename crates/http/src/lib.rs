//! What every interface over HTTP has in common: JSON, the status of an error, and who may ask.
//!
//! A crate of its own, as the gateway and the control plane have nothing else in common.

#![forbid(unsafe_code)]

mod json_response;
mod status;
mod tokens;
mod web_access;

pub use json_response::{JSON_MEDIA_TYPE, json_response};
pub use status::{grpc_code, http_status, http_status_of_code, retry_after_seconds};
pub use tokens::{Role, RoleHolder, Tokens};
pub use web_access::WebAccess;
