//! Tasks one by one, and their exits.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::body::{JsonDocument, ok_response};
use super::failure::ApiResult;
use super::path_names::PathNames;
use crate::intent::TaskDefinition;
use crate::intent_reader;
use crate::manager::Manager;
use crate::site::{ExitStatus, TaskStatus};

#[derive(Serialize)]
struct TaskList {
    tasks: Vec<TaskStatus>,
}

#[derive(Serialize)]
struct TaskDetail {
    #[serde(flatten)]
    status: TaskStatus,
    definition: Option<TaskDefinition>,
}

#[derive(Serialize)]
struct ExitList {
    exits: Vec<ExitStatus>,
}

pub(super) async fn list_tasks(State(manager): State<Manager>) -> Response {
    ok_response(&TaskList { tasks: manager.task_statuses() })
}

pub(super) async fn get_task(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    let status = manager.task_status(&path_names.task)?;
    let definition = manager.task_definition(&path_names.task);
    Ok(ok_response(&TaskDetail { status, definition }))
}

pub(super) async fn put_task(
    State(manager): State<Manager>,
    path_names: PathNames,
    JsonDocument(document): JsonDocument,
) -> ApiResult<Response> {
    let task = TaskDefinition::from_json(&document)?;
    Ok(ok_response(&manager.put_task(&path_names.task, task).await?))
}

pub(super) async fn delete_task(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&manager.remove_task(&path_names.task).await?))
}

pub(super) async fn list_exits(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&ExitList { exits: manager.task_status(&path_names.task)?.exits }))
}

pub(super) async fn put_exit(
    State(manager): State<Manager>,
    path_names: PathNames,
    JsonDocument(document): JsonDocument,
) -> ApiResult<Response> {
    let threshold = intent_reader::read_threshold(&document)?;
    manager.set_threshold(&path_names.task, &path_names.exit, threshold).await?;
    let mut exits = manager.task_status(&path_names.task)?.exits.into_iter();
    let exit = exits.find(|exit| exit.name == path_names.exit);
    let exit = exit.unwrap_or(ExitStatus { name: path_names.exit, threshold, taken: 0 });
    Ok(ok_response(&exit))
}
