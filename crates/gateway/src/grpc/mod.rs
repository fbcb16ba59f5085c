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
mod health;
mod infer;
mod long_codec;
mod message_body;
mod plain_http;
mod service;
mod settings;
mod typed;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use tessera_core::{Error, Result};
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::front_end::{FrontEnd, FrontEndOptions};
use crate::service::InferenceService;
use generated::grpc_inference_service_server::{GrpcInferenceServiceServer, SERVICE_NAME};
use health::HealthFrontEnd;
pub use health::{IsReady, health_router};
use message_body::{MessageBounds, bound_messages};
use plain_http::refuse_plain_http;
use service::GrpcFrontEnd;

/// The messages and services of `proto/inference.proto`, for clients that ask for them.
const DESCRIPTORS: &[u8] = include_bytes!("inference.binpb");

/// The services of the gRPC port: the protocol, health (`grpc.health.v1`) and server reflection.
///
/// Compressed requests are read; responses are not compressed, since every gRPC client says that
/// it could read them and tensors hardly shrink.
pub fn grpc_router(service: Arc<dyn InferenceService>, options: FrontEndOptions) -> Result<Router> {
    let largest = options.largest_body;
    let bounds = MessageBounds { budget: Arc::clone(&options.budget), largest };
    let probed = Arc::clone(&service);
    let is_ready: IsReady = Arc::new(move || probed.is_ready());
    let health = HealthServer::new(HealthFrontEnd::new(is_ready, Some(SERVICE_NAME)));
    let front_end = GrpcFrontEnd::new(FrontEnd::new(service, options));
    let protocol = GrpcInferenceServiceServer::new(front_end)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(largest)
        .max_encoding_message_size(largest);
    let wrong = |error| Error::engine(format!("server reflection: {error}"));
    // Clients of before 2023 know the alpha alone.
    let reflection = describe_services().build_v1().map_err(wrong)?;
    let reflection_alpha = describe_services().build_v1alpha().map_err(wrong)?;
    let routes = Routes::new(protocol)
        .add_service(health)
        .add_service(reflection)
        .add_service(reflection_alpha);
    let bounded = routes.into_axum_router().layer(from_fn_with_state(bounds, bound_messages));
    Ok(bounded.layer(from_fn(refuse_plain_http)))
}

/// What server reflection says that there is.
fn describe_services() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
