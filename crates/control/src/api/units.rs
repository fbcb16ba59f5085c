//! Units: how they are, and stopping and starting them by hand.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tessera_core::{Error, Result};

use super::body::{BodilessChange, ok_response};
use super::failure::ApiResult;
use super::path_names::PathNames;
use crate::manager::Manager;
use crate::names::{is_unit_name, shorten_name};
use crate::site::{PingAnswer, UnitStatus};

#[derive(Serialize)]
struct UnitList {
    units: Vec<UnitStatus>,
}

#[derive(Serialize)]
struct PingAnswers {
    answers: Vec<PingAnswer>,
}

pub(super) async fn list_units(State(manager): State<Manager>) -> Response {
    ok_response(&UnitList { units: manager.site().unit_statuses() })
}

pub(super) async fn get_unit(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&find_unit(&manager, &path_names.unit)?))
}

pub(super) async fn ping_unit(
    State(manager): State<Manager>,
    path_names: PathNames,
    _: BodilessChange,
) -> ApiResult<Response> {
    let unit = find_unit(&manager, &path_names.unit)?.name;
    let answers = manager.site().ping_unit(&unit).await?;
    Ok(ok_response(&PingAnswers { answers }))
}

pub(super) async fn stop_unit(
    State(manager): State<Manager>,
    path_names: PathNames,
    _: BodilessChange,
) -> ApiResult<Response> {
    let unit = find_unit(&manager, &path_names.unit)?.name;
    manager.site().stop_unit(&unit).await?;
    Ok(ok_response(&find_unit(&manager, &unit)?))
}

pub(super) async fn start_unit(
    State(manager): State<Manager>,
    path_names: PathNames,
    _: BodilessChange,
) -> ApiResult<Response> {
    let unit = find_unit(&manager, &path_names.unit)?.name;
    manager.site().start_unit(&unit).await?;
    Ok(ok_response(&find_unit(&manager, &unit)?))
}

/// The unit of this name, or the only one whose name or a hash of which begins with it.
fn find_unit(manager: &Manager, name: &str) -> Result<UnitStatus> {
    let mut found = if is_unit_name(name) { manager.site().unit_statuses() } else { Vec::new() };
    if let Some(exact) = found.iter().position(|unit| unit.name == name) {
        return Ok(found.swap_remove(exact));
    }
    let begins = |unit: &UnitStatus| {
        unit.name.starts_with(name) || unit.blocks.iter().any(|hash| hash.starts_with(name))
    };
    found.retain(begins);
    if found.len() > 1 {
        let names: Vec<String> = found.into_iter().map(|unit| unit.name).collect();
        return Err(Error::usage(format!(
            "unit \"{}\" could be any of {}",
            shorten_name(name),
            names.join(", ")
        )));
    }
    found
        .pop()
        .ok_or_else(|| Error::not_found(format!("there is no unit \"{}\"", shorten_name(name))))
}
