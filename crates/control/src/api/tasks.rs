//! Tasks one by one, and their exits.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::body::{Document, answer};
use super::failure::Outcome;
use super::named::Named;
use crate::intent::Task;
use crate::manager::Manager;
use crate::read;
use crate::site::{ExitStatus, TaskStatus};

#[derive(Serialize)]
struct Tasks {
    tasks: Vec<TaskStatus>,
}

#[derive(Serialize)]
struct TaskDetail {
    #[serde(flatten)]
    status: TaskStatus,
    definition: Option<Task>,
}

#[derive(Serialize)]
struct Exits {
    exits: Vec<ExitStatus>,
}

pub(super) async fn list(State(manager): State<Manager>) -> Response {
    answer(&Tasks { tasks: manager.tasks() })
}

pub(super) async fn get(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    let status = manager.task(&named.task)?;
    let definition = manager.definition(&named.task);
    Ok(answer(&TaskDetail { status, definition }))
}

pub(super) async fn put(
    State(manager): State<Manager>,
    named: Named,
    Document(document): Document,
) -> Outcome<Response> {
    let task = Task::from_json(&document)?;
    Ok(answer(&manager.put_task(&named.task, task).await?))
}

pub(super) async fn delete(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    Ok(answer(&manager.remove_task(&named.task).await?))
}

pub(super) async fn exits(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    Ok(answer(&Exits { exits: manager.task(&named.task)?.exits }))
}

pub(super) async fn put_exit(
    State(manager): State<Manager>,
    named: Named,
    Document(document): Document,
) -> Outcome<Response> {
    let threshold = read::threshold(&document)?;
    manager.set_threshold(&named.task, &named.exit, threshold).await?;
    let mut exits = manager.task(&named.task)?.exits.into_iter();
    let exit = exits.find(|exit| exit.name == named.exit);
    let exit = exit.unwrap_or(ExitStatus { name: named.exit, threshold, taken: 0 });
    Ok(answer(&exit))
}
