//! What is told of the server and of tasks, and the repository they come from.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tessera_core::Error;
use tessera_dispatch::{DurationTotal, TaskStatistics};
use tessera_http::json_response;

use super::FrontEndState;
use super::body::BodyReader;
use super::failure::HttpResult;
use super::path_target::PathTarget;
use crate::front_end::FrontEnd;
use crate::protocol::{
    ModelConfig, PLATFORM, SERVER_NAME, SERVER_VERSION, collect_statistics, is_task_ready,
    list_repository, model_config, model_metadata, protocol_extensions,
};
use crate::service::TaskInfo;

pub(super) async fn server_metadata() -> Response {
    let metadata = json!({"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": protocol_extensions()});
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
    let task = front.service.find_task(&target.name, &target.version)?;
    Ok(json_response(StatusCode::OK, &model_metadata(task)?))
}

pub(super) async fn get_config(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    let task = front.service.find_task(&target.name, &target.version)?;
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
    let names = body.parameters.unwrap_or_default();
    if let Some(name) = names.keys().find(|name| *name == "config" || name.starts_with("file:")) {
        return Err(Error::unsupported(format!(
            "model \"{}\" can't be loaded with \"{name}\": put it into the repository",
            target.name
        ))
        .into());
    }
    front.service.load_task(&target.name).await?;
    Ok(Response::new(Body::empty()))
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
    let mut reader = BodyReader::new(body, &parts.headers, front.options.largest_body)?;
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
    let statistics = collect_statistics(front.service.as_ref(), name, version)?;
    let statistics: Vec<Value> =
        statistics.iter().map(|(task, done)| statistics_json(task, done)).collect();
    Ok(json_response(StatusCode::OK, &json!({"model_stats": statistics})))
}

fn statistics_json(task: &TaskInfo, done: &TaskStatistics) -> Value {
    let total = |total: DurationTotal| json!({"count": total.count, "ns": total.nanoseconds});
    json!({
        "name": task.name,
        "version": task.version,
        "last_inference": done.last_inference_ms,
        "inference_count": done.inferences,
        "execution_count": done.executions,
        "inference_stats": {
            "success": total(done.success),
            "fail": total(done.fail),
            "queue": total(done.queue),
            "compute_input": total(done.compute_input),
            "compute_infer": total(done.compute_infer),
            "compute_output": total(done.compute_output),
            // There is no cache; clients read the numbers all the same.
            "cache_hit": total(DurationTotal::default()),
            "cache_miss": total(DurationTotal::default()),
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    })
}

fn config_json(config: &ModelConfig) -> Value {
    let inputs: Vec<Value> = config
        .input
        .iter()
        .map(|input| {
            json!({
                "name": input.name,
                "data_type": input.data_type.1,
                "format": "FORMAT_NONE",
                "dims": input.dims,
                "is_shape_tensor": false,
                "allow_ragged_batch": false,
                "optional": input.optional,
                "is_non_linear_format_io": false,
            })
        })
        .collect();
    let outputs: Vec<Value> = config
        .output
        .iter()
        .map(|output| {
            json!({
                "name": output.name,
                "data_type": output.data_type.1,
                "dims": output.dims,
                "label_filename": "",
                "is_shape_tensor": false,
                "is_non_linear_format_io": false,
            })
        })
        .collect();
    let mut json = json!({
        "name": config.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": config.max_batch_size,
        "input": inputs,
        "output": outputs,
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": false},
    });
    // Whether the key is there is what clients look at.
    if let (Some((rows, delay)), Some(fields)) = (config.batching, json.as_object_mut()) {
        fields.insert(
            "dynamic_batching".into(),
            json!({
                "preferred_batch_size": [rows],
                "max_queue_delay_microseconds": delay,
                "preserve_ordering": false,
                "priority_levels": 0,
                "default_priority_level": 0,
                "priority_queue_policy": {},
            }),
        );
    }
    json
}
