//! The REST interface of the control plane. `GET /openapi.json` describes it.

mod body;
pub(crate) mod cluster_routes;
mod events;
mod failure;
mod history;
mod models;
mod nodes;
mod path_names;
mod requests;
mod system;
mod tasks;
mod tokens;
mod units;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post, put};
use serde_json::Value;

use crate::cluster::ClusterAdmin;
use crate::manager::Manager;
use crate::names::shorten_name;
use crate::openapi::{host_openapi_document, openapi_document};
use body::ok_response;
use cluster_routes::cluster_route_table;
use failure::ApiFailure;

/// Where the OpenAPI document is.
pub(crate) const DOCUMENT_PATH: &str = "/openapi.json";
/// Bodies of up to 1 MiB: thousands of tasks.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// The routes of the interface, and nothing for all other paths: to be merged with other routes.
pub fn control_routes(manager: &Manager) -> Router {
    documented_routes(manager, host_openapi_document)
}

fn documented_routes(manager: &Manager, document: fn() -> Value) -> Router {
    let get_document = move || async move { ok_response(&document()) };
    let mut router = Router::new().route(DOCUMENT_PATH, get(get_document));
    for (path, methods) in route_table() {
        router = router.route(path, methods);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(manager.clone())
}

/// The whole interface; other paths are answered with 404.
pub fn control_router(manager: &Manager) -> Router {
    control_routes(manager).fallback(unknown_route)
}

/// The whole interface of a controller: that of the control plane, and its cluster's.
pub fn controller_router(manager: &Manager, cluster: &ClusterAdmin) -> Router {
    let mut router = Router::new();
    for (path, methods) in cluster_route_table() {
        router = router.route(path, methods);
    }
    let router = router
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(cluster.clone());
    documented_routes(manager, openapi_document).merge(router).fallback(unknown_route)
}

/// Every path but that of the document, with what answers there.
pub(crate) fn route_table() -> Vec<(&'static str, MethodRouter<Manager>)> {
    vec![
        ("/v1/system", get(system::get_system).put(system::put_system).post(system::put_system)),
        ("/v1/models", get(models::list_models)),
        (
            "/v1/models/{model}",
            get(models::get_model)
                // As large as models are.
                .put(models::put_model)
                .layer(DefaultBodyLimit::disable())
                .delete(models::delete_model),
        ),
        ("/v1/tasks", get(tasks::list_tasks)),
        ("/v1/tasks/{task}", get(tasks::get_task).put(tasks::put_task).delete(tasks::delete_task)),
        ("/v1/tasks/{task}/exits", get(tasks::list_exits)),
        ("/v1/tasks/{task}/exits/{exit}", put(tasks::put_exit)),
        ("/v1/units", get(units::list_units)),
        ("/v1/units/{unit}", get(units::get_unit)),
        ("/v1/units/{unit}/ping", post(units::ping_unit)),
        ("/v1/units/{unit}/stop", post(units::stop_unit)),
        ("/v1/units/{unit}/start", post(units::start_unit)),
        ("/v1/events", get(events::stream_events)),
        ("/v1/live", get(requests::stream_live)),
        ("/v1/requests", get(requests::list_requests)),
        ("/v1/tasks/{task}/requests", get(requests::list_task_requests)),
        ("/v1/history", get(history::list_history)),
        ("/v1/history/{number}/undo", post(history::undo_change)),
    ]
}

async fn unknown_route(uri: Uri) -> ApiFailure {
    let message = format!("there is nothing at {}", shorten_name(uri.path()));
    ApiFailure::new(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiFailure {
    let message = format!("{} does not take {method}", shorten_name(uri.path()));
    ApiFailure::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
