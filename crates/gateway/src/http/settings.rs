//! What is logged and traced, read and written.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use tessera_core::{Error, Result};
use tessera_http::json_response;

use super::FrontEndState;
use super::failure::HttpResult;
use super::models::read_body;
use super::path_target::PathTarget;
use crate::front_end::FrontEnd;
use crate::settings::LogValue;

pub(super) async fn get_log_settings(State(front): FrontEndState) -> Response {
    log_response(&front)
}

pub(super) async fn set_log_settings(
    State(front): FrontEndState,
    request: Request,
) -> HttpResult<Response> {
    let body: Map<String, Value> = read_body(&front, request).await?;
    let changes: Result<Vec<_>> =
        body.into_iter().map(|(name, value)| Ok((name.clone(), read_log(&name, value)?))).collect();
    front.options.settings.log.change_values(changes?)?;
    Ok(log_response(&front))
}

pub(super) async fn get_trace_settings(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    check_task(&front, &target)?;
    Ok(trace_response(&front, &target))
}

pub(super) async fn set_trace_settings(
    State(front): FrontEndState,
    target: PathTarget,
    request: Request,
) -> HttpResult<Response> {
    check_task(&front, &target)?;
    let body: Map<String, Value> = read_body(&front, request).await?;
    let changes: Result<Vec<_>> = body
        .into_iter()
        .map(|(name, value)| Ok((name.clone(), read_trace(&name, value)?)))
        .collect();
    front.options.settings.trace.change_values(&target.name, changes?)?;
    Ok(trace_response(&front, &target))
}

/// Refuses a task that is not there; the path may name none.
fn check_task(front: &FrontEnd, target: &PathTarget) -> Result<()> {
    if target.name.is_empty() {
        return Ok(());
    }
    front.find_task(&target.name, &target.version).map(drop)
}

fn log_response(front: &FrontEnd) -> Response {
    let values = front.options.settings.log.current_values().into_iter();
    let values = values.map(|(name, value)| {
        let value = match value {
            LogValue::Flag(on) => on.into(),
            LogValue::Number(number) => number.into(),
            LogValue::Text(text) => text.into(),
        };
        (name.to_owned(), value)
    });
    json_response(StatusCode::OK, &values.collect::<Map<String, Value>>())
}

fn trace_response(front: &FrontEnd, target: &PathTarget) -> Response {
    let values = front.options.settings.trace.current_values(&target.name).into_iter();
    let values = values.map(|(name, value)| {
        // As Triton has it: levels are a list, all else is one string.
        let value = match name {
            "trace_level" => value.into(),
            _ => value.join(",").into(),
        };
        (name.to_owned(), value)
    });
    json_response(StatusCode::OK, &values.collect::<Map<String, Value>>())
}

fn read_log(name: &str, value: Value) -> Result<LogValue> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    match (value, number) {
        (Value::Bool(on), _) => Ok(LogValue::Flag(on)),
        (Value::String(text), _) => Ok(LogValue::Text(text)),
        (_, Some(number)) => Ok(LogValue::Number(number)),
        (value, None) => Err(Error::invalid(format!("log setting \"{name}\" can't be {value}"))),
    }
}

/// A setting is text, a number or several of them; null takes a change back.
fn read_trace(name: &str, value: Value) -> Result<Option<Vec<String>>> {
    let one = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        value => Err(Error::invalid(format!("trace setting \"{name}\" can't be {value}"))),
    };
    match value {
        Value::Null => Ok(None),
        Value::Array(values) => values.into_iter().map(one).collect::<Result<_>>().map(Some),
        value => Ok(Some(vec![one(value)?])),
    }
}
