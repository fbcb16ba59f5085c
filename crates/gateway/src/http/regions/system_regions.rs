//! Regions of system shared memory: registered, forgotten and listed.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tessera_core::Error;
use tessera_http::json_response;

use crate::http::FrontEndState;
use crate::http::failure::HttpResult;
use crate::http::models::read_body;
use crate::http::path_target::PathTarget;
use crate::regions::SystemRegionStatus;

/// What a client says of a region.
#[derive(Debug, Default, Deserialize)]
struct RegisterSystemBody {
    key: Option<String>,
    offset: Option<u64>,
    byte_size: Option<u64>,
}

pub(super) async fn system_region_status(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    let regions = front.options.shared_memory.system_status(&target.name)?;
    Ok(json_response(StatusCode::OK, &regions))
}

pub(super) async fn register_system_region(
    State(front): FrontEndState,
    target: PathTarget,
    request: Request,
) -> HttpResult<Response> {
    let body: RegisterSystemBody = read_body(&front, request).await?;
    let missing = |what: &str| {
        Error::invalid(format!("shared memory region '{}' has no {what}", target.name))
    };
    let region = SystemRegionStatus {
        key: body.key.ok_or_else(|| missing("key"))?,
        byte_size: body.byte_size.ok_or_else(|| missing("byte_size"))?,
        offset: body.offset.unwrap_or(0),
        name: target.name.clone(),
    };
    front.options.shared_memory.register_system(region)?;
    Ok(Response::new(Body::empty()))
}

pub(super) async fn unregister_system_region(
    State(front): FrontEndState,
    target: PathTarget,
) -> Response {
    front.options.shared_memory.unregister_system(&target.name);
    Response::new(Body::empty())
}
