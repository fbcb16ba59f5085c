//! The Open Inference Protocol v2 over HTTP, with Triton's extensions.

mod answer;
mod body;
mod cuda_regions;
mod data;
mod encoding;
mod failure;
mod infer;
mod infer_request;
mod models;
mod raw_request;
mod regions;
mod target;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};

use crate::front_end::{FrontEnd, FrontEndOptions};
use crate::service::Service;
use failure::Failure;

/// Who handles a request: the service, its options and the registered regions.
type FrontEndState = axum::extract::State<Arc<FrontEnd>>;

/// The routes of the protocol.
///
/// A handler is dropped when its client goes away, and the request with it.
pub fn router(service: Arc<dyn Service>, options: FrontEndOptions) -> Router {
    let mut router = Router::new()
        .route("/v2", get(models::server_metadata))
        .route("/v2/", get(models::server_metadata))
        .route("/v2/health/live", get(models::server_live))
        .route("/v2/health/ready", get(models::server_ready))
        .route("/v2/models/stats", get(models::all_statistics))
        .route("/v2/repository/index", post(models::repository_index))
        .route("/v2/repository/models/{name}/load", post(models::load))
        .route("/v2/repository/models/{name}/unload", post(models::unload))
        .route("/v2/systemsharedmemory/status", get(regions::status))
        .route("/v2/systemsharedmemory/region/{name}/status", get(regions::status))
        .route("/v2/systemsharedmemory/region/{name}/register", post(regions::register))
        .route("/v2/systemsharedmemory/region/{name}/unregister", post(regions::unregister))
        .route("/v2/systemsharedmemory/unregister", post(regions::unregister))
        .route("/v2/cudasharedmemory/status", get(cuda_regions::status))
        .route("/v2/cudasharedmemory/region/{name}/status", get(cuda_regions::status))
        .route("/v2/cudasharedmemory/region/{name}/register", post(cuda_regions::register))
        .route("/v2/cudasharedmemory/region/{name}/unregister", post(cuda_regions::unregister))
        .route("/v2/cudasharedmemory/unregister", post(cuda_regions::unregister))
        .route("/v2/logging", get(unsupported).post(unsupported))
        .route("/v2/trace/setting", get(unsupported).post(unsupported));
    // Everything about a task can be asked of it or of one of its versions.
    for task in ["/v2/models/{name}", "/v2/models/{name}/versions/{version}"] {
        router = router
            .route(task, get(models::metadata))
            .route(&format!("{task}/ready"), get(models::ready))
            .route(&format!("{task}/config"), get(models::config))
            .route(&format!("{task}/stats"), get(models::statistics))
            .route(&format!("{task}/infer"), post(infer::infer))
            .route(&format!("{task}/trace/setting"), get(unsupported).post(unsupported));
    }
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(FrontEnd::new(service, options))
}

async fn unknown_route(uri: Uri) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let message = format!("{} does not take {method}", uri.path());
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn unsupported(uri: Uri) -> Failure {
    let message = format!("{} is not supported: set it where the server is started", uri.path());
    Failure::new(StatusCode::NOT_IMPLEMENTED, message)
}
