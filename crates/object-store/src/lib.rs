//! Models, blocks and weights in an object store: a folder that hosts share, or a bucket of S3.
//!
//! ```text
//! blocks/ab/abcd…     as in a repository, and under the same names
//! weights/12/1234…
//! models/9f/9f00…
//! names/resnet50
//! descriptions/…
//! trees/12/1234…      what the ranges of content are checked with that has more than one
//! ```
//!
//! Content never changes, so it is put where there is nothing, once, and by whoever comes first.
//! Whoever fetches believes nothing of what a store says ([`ObjectStore`] is a
//! [`ContentSource`](tessera_repository::ContentSource)).

#![forbid(unsafe_code)]

mod blob_store;
mod folder_store;
mod model_transfer;
mod object_store;
#[cfg(feature = "s3")]
mod s3_http;
#[cfg(feature = "s3")]
mod s3_store;
mod store_address;

pub use crate::object_store::ObjectStore;
pub use model_transfer::{PulledModel, PushedModel};
pub use store_address::StoreAddress;
