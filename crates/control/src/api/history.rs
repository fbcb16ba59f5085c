//! What was changed and what happened to units, and changes that are undone.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::body::{BodilessChange, ok_response};
use super::failure::{ApiFailure, ApiResult};
use crate::history::HistoryEntry;
use crate::manager::Manager;

#[derive(Serialize)]
struct HistoryLists {
    /// The newest first.
    changes: Vec<HistoryEntry>,
    /// Instances that came and went, the newest first.
    instances: Vec<Value>,
}

pub(super) async fn list_history(State(manager): State<Manager>) -> Response {
    let instances = manager.site().list_instance_events();
    ok_response(&HistoryLists { changes: manager.list_changes(), instances })
}

pub(super) async fn undo_change(
    State(manager): State<Manager>,
    Path(number): Path<String>,
    _: BodilessChange,
) -> ApiResult<Response> {
    let number = number.parse().map_err(|_| {
        ApiFailure::new(StatusCode::BAD_REQUEST, "the number of a change is a whole number")
    })?;
    Ok(ok_response(&manager.undo_change(number).await?))
}
