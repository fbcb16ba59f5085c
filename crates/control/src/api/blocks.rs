//! Blocks: how they are, and stopping and starting them by hand.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tessera_core::{Error, Result};

use super::body::answer;
use super::failure::Outcome;
use super::named::Named;
use crate::manager::Manager;
use crate::names::{is_unit, shown};
use crate::site::{BlockStatus, PingAnswer};

#[derive(Serialize)]
struct Blocks {
    blocks: Vec<BlockStatus>,
}

#[derive(Serialize)]
struct Pinged {
    answers: Vec<PingAnswer>,
}

pub(super) async fn list(State(manager): State<Manager>) -> Response {
    answer(&Blocks { blocks: manager.site().blocks() })
}

pub(super) async fn get(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    Ok(answer(&find(&manager, &named.block)?))
}

pub(super) async fn ping(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    let block = find(&manager, &named.block)?.name;
    let answers = manager.site().ping(&block).await?;
    Ok(answer(&Pinged { answers }))
}

pub(super) async fn stop(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    let block = find(&manager, &named.block)?.name;
    manager.site().stop(&block).await?;
    Ok(answer(&find(&manager, &block)?))
}

pub(super) async fn start(State(manager): State<Manager>, named: Named) -> Outcome<Response> {
    let block = find(&manager, &named.block)?.name;
    manager.site().start(&block).await?;
    Ok(answer(&find(&manager, &block)?))
}

/// The block of this name, or the only one whose name or a hash of which begins with it.
fn find(manager: &Manager, name: &str) -> Result<BlockStatus> {
    let mut found = if is_unit(name) { manager.site().blocks() } else { Vec::new() };
    if let Some(exact) = found.iter().position(|block| block.name == name) {
        return Ok(found.swap_remove(exact));
    }
    let begins = |block: &BlockStatus| {
        block.name.starts_with(name) || block.blocks.iter().any(|hash| hash.starts_with(name))
    };
    found.retain(begins);
    if found.len() > 1 {
        let names: Vec<String> = found.into_iter().map(|block| block.name).collect();
        return Err(Error::usage(format!(
            "block \"{}\" could be any of {}",
            shown(name),
            names.join(", ")
        )));
    }
    found.pop().ok_or_else(|| Error::not_found(format!("there is no block \"{}\"", shown(name))))
}
