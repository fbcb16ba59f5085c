//! What is told of the server and of tasks, and the repository they come from.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tessera_core::{Error, Result};
use tessera_http::json_response;

use super::FrontEndState;
use super::body::BodyReader;
use super::describe_json::{config_json, statistics_json};
use super::failure::HttpResult;
use super::path_target::PathTarget;
use crate::byte_budget::ConnectionBytes;
use crate::front_end::FrontEnd;
use crate::protocol::{
    SERVER_VERSION, collect_statistics, is_task_ready, list_repository, model_config,
    model_metadata, protocol_extensions,
};
use crate::service::LoadOverrides;

pub(super) async fn server_metadata(State(front): FrontEndState) -> Response {
    let metadata = json!({
        "name": front.server_name(),
        "version": SERVER_VERSION,
        "extensions": protocol_extensions(),
    });
    json_response(StatusCode::OK, &metadata)
}

pub(super) async fn server_live() -> Response {
    json_response(StatusCode::OK, &json!({"live": true}))
}

pub(super) async fn server_ready(State(front): FrontEndState) -> Response {
    let ready = front.service.is_ready();
    json_response(readiness_status(ready), &json!({"ready": ready}))
}

pub(super) async fn get_ready(State(front): FrontEndState, target: PathTarget) -> Response {
    let ready = is_task_ready(front.service.as_ref(), &target.name, &target.version);
    json_response(readiness_status(ready), &json!({"name": target.name, "ready": ready}))
}

pub(super) async fn get_metadata(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    let task = front.find_task(&target.name, &target.version)?;
    Ok(json_response(StatusCode::OK, &model_metadata(task)?))
}

pub(super) async fn get_config(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    let task = front.find_task(&target.name, &target.version)?;
    Ok(json_response(StatusCode::OK, &config_json(&model_config(task)?)))
}

pub(super) async fn get_statistics(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    statistics_response(&front, &target.name, &target.version)
}

pub(super) async fn get_all_statistics(State(front): FrontEndState) -> HttpResult<Response> {
    statistics_response(&front, "", "")
}

/// What a client may restrict the index to.
#[derive(Debug, Default, Deserialize)]
struct IndexBody {
    ready: Option<bool>,
}

pub(super) async fn repository_index(
    State(front): FrontEndState,
    request: Request,
) -> HttpResult<Response> {
    let body: IndexBody = read_body(&front, request).await?;
    let index = list_repository(front.service.as_ref(), body.ready.unwrap_or(false));
    Ok(json_response(StatusCode::OK, &index))
}

/// What a client may say of a model that it loads or unloads.
#[derive(Debug, Default, Deserialize)]
struct RepositoryBody {
    parameters: Option<Map<String, Value>>,
}

pub(super) async fn load_model(
    State(front): FrontEndState,
    target: PathTarget,
    request: Request,
) -> HttpResult<Response> {
    let body: RepositoryBody = read_body(&front, request).await?;
    let overrides = read_overrides(body.parameters.unwrap_or_default())
        .map_err(|error| error.with_context(format_args!("model \"{}\"", target.name)))?;
    front.load_task(&target.name, overrides).await?;
    Ok(Response::new(Body::empty()))
}

/// What a model is loaded with: files are in base64, as JSON has no bytes.
fn read_overrides(parameters: Map<String, Value>) -> Result<LoadOverrides> {
    let mut overrides = LoadOverrides::default();
    for (name, value) in parameters {
        let file = name.strip_prefix("file:");
        if name != "config" && file.is_none() {
            continue;
        }
        let Value::String(text) = value else {
            return Err(Error::invalid(format!("parameter \"{name}\" must be a string")));
        };
        match file {
            None => overrides.config = Some(text),
            Some(file) => {
                let content = STANDARD.decode(text.as_bytes()).map_err(|error| {
                    Error::invalid(format!("parameter \"{name}\" must be base64: {error}"))
                })?;
                overrides.files.insert(file.to_owned(), content.into());
            }
        }
    }
    Ok(overrides)
}

pub(super) async fn unload_model(
    State(front): FrontEndState,
    target: PathTarget,
    request: Request,
) -> HttpResult<Response> {
    // Nothing depends on a task, so that "unload_dependents" changes nothing.
    let RepositoryBody { .. } = read_body(&front, request).await?;
    front.service.unload_task(&target.name).await?;
    Ok(Response::new(Body::empty()))
}

/// The JSON of a request; one without a body says nothing.
pub(super) async fn read_body<T: DeserializeOwned + Default>(
    front: &FrontEnd,
    request: Request,
) -> HttpResult<T> {
    let (parts, body) = request.into_parts();
    let lease = front.options.budget.lease(parts.extensions.get::<ConnectionBytes>());
    let mut reader = BodyReader::new(body, &parts.headers, front.options.largest_body, lease)?;
    let bytes = reader.read_rest().await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    Ok(serde_json::from_slice(&bytes).map_err(|error| {
        Error::invalid(format!("the request is not the JSON it must be: {error}"))
    })?)
}

fn readiness_status(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::BAD_REQUEST }
}

fn statistics_response(front: &FrontEnd, name: &str, version: &str) -> HttpResult<Response> {
    if !name.is_empty() {
        front.find_task(name, version)?;
    }
    let statistics = collect_statistics(front.service.as_ref(), name, version)?;
    let statistics: Vec<Value> =
        statistics.iter().map(|(task, done)| statistics_json(task, done)).collect();
    Ok(json_response(StatusCode::OK, &json!({"model_stats": statistics})))
}
