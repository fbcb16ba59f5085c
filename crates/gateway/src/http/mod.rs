//! The Open Inference Protocol v2 over HTTP, with Triton's extensions.

mod body;
mod data;
mod describe_json;
mod failure;
mod infer;
mod infer_request;
mod models;
mod path_target;
mod raw_request;
mod regions;
mod response;
mod settings;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};

use crate::front_end::{FrontEnd, FrontEndOptions};
use crate::service::InferenceService;
use failure::HttpFailure;

/// Who handles a request: the service, its options and the registered regions.
type FrontEndState = axum::extract::State<Arc<FrontEnd>>;

/// The routes of the protocol.
///
/// A handler is dropped when its client goes away, and the request with it.
pub fn http_router(service: Arc<dyn InferenceService>, options: FrontEndOptions) -> Router {
    let trace_setting = get(settings::get_trace_settings).post(settings::set_trace_settings);
    let mut router = Router::new()
        .route("/v2", get(models::server_metadata))
        .route("/v2/", get(models::server_metadata))
        .route("/v2/health/live", get(models::server_live))
        .route("/v2/health/ready", get(models::server_ready))
        .route("/v2/models/stats", get(models::get_all_statistics))
        .route("/v2/repository/index", post(models::repository_index))
        .route("/v2/repository/models/{name}/load", post(models::load_model))
        .route("/v2/repository/models/{name}/unload", post(models::unload_model))
        .merge(regions::region_routes())
        .route("/v2/logging", get(settings::get_log_settings).post(settings::set_log_settings))
        .route("/v2/trace/setting", trace_setting.clone());
    // Everything about a task can be asked of it or of one of its versions.
    for task in ["/v2/models/{name}", "/v2/models/{name}/versions/{version}"] {
        router = router
            .route(task, get(models::get_metadata))
            .route(&format!("{task}/ready"), get(models::get_ready))
            .route(&format!("{task}/config"), get(models::get_config))
            .route(&format!("{task}/stats"), get(models::get_statistics))
            .route(&format!("{task}/infer"), post(infer::infer_model))
            .route(&format!("{task}/trace/setting"), trace_setting.clone());
    }
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(FrontEnd::new(service, options))
}

async fn unknown_route(uri: Uri) -> HttpFailure {
    HttpFailure::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> HttpFailure {
    let message = format!("{} does not take {method}", uri.path());
    HttpFailure::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
