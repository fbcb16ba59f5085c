//! `GET` and `PUT /v1/system`: which tasks there should be, as a whole.

use axum::extract::State;
use axum::response::Response;

use super::body::{JsonDocument, ok_response};
use super::failure::ApiResult;
use crate::intent::System;
use crate::manager::Manager;

pub(super) async fn get_system(State(manager): State<Manager>) -> Response {
    ok_response(&manager.system())
}

pub(super) async fn put_system(
    State(manager): State<Manager>,
    JsonDocument(document): JsonDocument,
) -> ApiResult<Response> {
    let system = System::from_json(&document)?;
    Ok(ok_response(&manager.put_system(system).await?))
}
