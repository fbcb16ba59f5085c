//! The system as a whole: which tasks there should be.

use axum::extract::State;
use axum::response::Response;

use super::body::{Document, answer};
use super::failure::Outcome;
use crate::intent::System;
use crate::manager::Manager;

pub(super) async fn get(State(manager): State<Manager>) -> Response {
    answer(&manager.system())
}

pub(super) async fn put(
    State(manager): State<Manager>,
    Document(document): Document,
) -> Outcome<Response> {
    let system = System::from_json(&document)?;
    Ok(answer(&manager.put_system(system).await?))
}
