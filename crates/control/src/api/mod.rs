//! The REST interface of the control plane. `GET /openapi.json` describes it.

mod blocks;
mod body;
mod events;
mod failure;
mod named;
mod system;
mod tasks;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post, put};

use crate::manager::Manager;
use crate::names::shown;
use crate::openapi::openapi;
use body::answer;
use failure::Failure;

/// Bodies of up to 1 MiB: thousands of tasks.
pub(crate) const LARGEST_BODY: usize = 1 << 20;

/// The routes of the interface, and nothing for all other paths: to be merged with other routes.
pub fn routes(manager: &Manager) -> Router {
    let mut router = Router::new();
    for (path, methods) in table() {
        router = router.route(path, methods);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(manager.clone())
}

/// The whole interface; other paths are answered with 404.
pub fn router(manager: &Manager) -> Router {
    routes(manager).fallback(unknown_route)
}

/// Every path, with what answers there.
pub(crate) fn table() -> Vec<(&'static str, MethodRouter<Manager>)> {
    vec![
        ("/v1/system", get(system::get).put(system::put).post(system::put)),
        ("/v1/tasks", get(tasks::list)),
        ("/v1/tasks/{task}", get(tasks::get).put(tasks::put).delete(tasks::delete)),
        ("/v1/tasks/{task}/exits", get(tasks::exits)),
        ("/v1/tasks/{task}/exits/{exit}", put(tasks::put_exit)),
        ("/v1/blocks", get(blocks::list)),
        ("/v1/blocks/{block}", get(blocks::get)),
        ("/v1/blocks/{block}/ping", post(blocks::ping)),
        ("/v1/blocks/{block}/stop", post(blocks::stop)),
        ("/v1/blocks/{block}/start", post(blocks::start)),
        ("/v1/events", get(events::events)),
        ("/openapi.json", get(document)),
    ]
}

async fn document() -> Response {
    answer(&openapi())
}

async fn unknown_route(uri: Uri) -> Failure {
    let message = format!("there is nothing at {}", shown(uri.path()));
    Failure::new(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let message = format!("{} does not take {method}", shown(uri.path()));
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
