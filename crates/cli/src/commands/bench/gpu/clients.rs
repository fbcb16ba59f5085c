//! One to ten clients that wait for their answers (figure 4.11 of the BlockFlow thesis).

use serde::Serialize;
use tessera_core::Result;

use super::latency::Arm;
use super::{Setup, crowd};
use crate::output;

/// A pipeline that is asked by more and more clients.
#[derive(Serialize)]
pub(super) struct Clients {
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
}

/// So many clients.
#[derive(Serialize)]
pub(super) struct Step {
    pub(super) clients: usize,
    pub(super) mean_ms: f64,
    pub(super) median_ms: f64,
    pub(super) answers_per_second: f64,
}

pub(super) fn measure(setup: &Setup, arm: &Arm, most: usize, seconds: f64) -> Result<Clients> {
    let bar = output::progress(most as u64, &format!("clients, {}", arm.name));
    let inputs = crowd::inputs(setup, &arm.pipeline)?;
    let mut steps = Vec::new();
    for clients in 1..=most {
        let seen = crowd::closed(&arm.pipeline, &inputs, clients, seconds)?;
        steps.push(Step {
            clients,
            mean_ms: seen.mean_ms(),
            median_ms: seen.median_ms(),
            answers_per_second: seen.per_second,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Clients { name: arm.name.to_owned(), steps })
}

pub(super) fn table(all: &[Clients]) -> output::Table {
    let heads = ["how", ">clients", ">mean", ">median", ">answers per second"];
    let mut table = output::Table::new(&heads);
    for Clients { name, steps } in all {
        for step in steps {
            table.row([
                name.clone(),
                step.clients.to_string(),
                output::milliseconds(step.mean_ms),
                output::milliseconds(step.median_ms),
                format!("{:.1}", step.answers_per_second),
            ]);
        }
    }
    table
}
