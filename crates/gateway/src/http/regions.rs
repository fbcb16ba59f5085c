//! Regions of system shared memory: registered, forgotten and listed.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tessera_core::Error;

use super::FrontEndState;
use super::failure::{Outcome, json_response};
use super::models::read_body;
use super::target::Target;
use crate::shared_memory::RegionStatus;

/// What a client says of a region.
#[derive(Debug, Default, Deserialize)]
struct RegisterBody {
    key: Option<String>,
    offset: Option<u64>,
    byte_size: Option<u64>,
}

pub(super) async fn status(State(front): FrontEndState, target: Target) -> Outcome<Response> {
    let regions = front.options.shared_memory.status(&target.name)?;
    Ok(json_response(StatusCode::OK, &regions))
}

pub(super) async fn register(
    State(front): FrontEndState,
    target: Target,
    request: Request,
) -> Outcome<Response> {
    let body: RegisterBody = read_body(&front, request).await?;
    let missing = |what: &str| {
        Error::invalid(format!("shared memory region '{}' has no {what}", target.name))
    };
    let region = RegionStatus {
        key: body.key.ok_or_else(|| missing("key"))?,
        byte_size: body.byte_size.ok_or_else(|| missing("byte_size"))?,
        offset: body.offset.unwrap_or(0),
        name: target.name.clone(),
    };
    front.options.shared_memory.register(region)?;
    Ok(Response::new(Body::empty()))
}

pub(super) async fn unregister(State(front): FrontEndState, target: Target) -> Response {
    front.options.shared_memory.unregister(&target.name);
    Response::new(Body::empty())
}
