//! What is done at the moment, and which requests are worth a look.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::body::ok_response;
use super::events::stream_messages;
use super::failure::{ApiFailure, ApiResult};
use super::path_names::PathNames;
use crate::manager::Manager;

pub(super) async fn stream_live(State(manager): State<Manager>) -> ApiResult<Response> {
    let reports = manager.site().subscribe_reports().ok_or_else(answered_elsewhere)?;
    Ok(stream_messages(reports))
}

pub(super) async fn list_requests(State(manager): State<Manager>) -> ApiResult<Response> {
    list_notable(&manager, None)
}

pub(super) async fn list_task_requests(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    manager.task_status(&path_names.task)?;
    list_notable(&manager, Some(&path_names.task))
}

fn list_notable(manager: &Manager, task: Option<&str>) -> ApiResult<Response> {
    let listed = manager.site().list_notable_requests(task);
    Ok(ok_response(&listed.ok_or_else(answered_elsewhere)?))
}

/// A controller sees no requests.
fn answered_elsewhere() -> ApiFailure {
    let message = "requests are answered at nodes with a gateway, not here; \
                   tessera nodes lists them, and their /metrics tell what they do";
    ApiFailure::new(StatusCode::NOT_FOUND, message)
}
