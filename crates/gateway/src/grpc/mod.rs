//! The Open Inference Protocol v2 over gRPC, with Triton's extensions.

mod call;
mod convert;
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rust_2018_idioms,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::let_underscore_must_use,
    clippy::semicolon_if_nothing_returned,
    clippy::uninlined_format_args,
    reason = "generated from proto/inference.proto"
)]
#[rustfmt::skip]
pub mod generated;
mod infer;
mod service;
mod typed;

use std::sync::Arc;

use tonic::codec::CompressionEncoding;

use crate::front_end::{FrontEnd, FrontEndOptions};
use crate::service::InferenceService;
use generated::grpc_inference_service_server::GrpcInferenceServiceServer;
pub use service::GrpcFrontEnd;

/// The protocol's service, to be added to a tonic server.
///
/// Compressed requests are read; responses are not compressed, since every gRPC client says that
/// it could read them and tensors hardly shrink.
pub fn grpc_service(
    service: Arc<dyn InferenceService>,
    options: FrontEndOptions,
) -> GrpcInferenceServiceServer<GrpcFrontEnd> {
    let largest = options.largest_body;
    GrpcInferenceServiceServer::new(GrpcFrontEnd::new(FrontEnd::new(service, options)))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(largest)
        .max_encoding_message_size(largest)
}
