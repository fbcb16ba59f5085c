//! One to ten clients that wait for their answers (figure 4.11 of the BlockFlow thesis).

use serde::Serialize;
use tessera_core::Result;
use tessera_report::{Table, format_milliseconds, output};

use super::latency::Arm;
use super::{GpuBenchSetup, client_loops};

/// A pipeline that is asked by more and more clients.
#[derive(Serialize)]
pub(crate) struct ClientSweep {
    pub(crate) name: String,
    pub(crate) steps: Vec<ClientStep>,
}

/// So many clients.
#[derive(Serialize)]
pub(crate) struct ClientStep {
    pub(crate) clients: usize,
    pub(crate) mean_ms: f64,
    pub(crate) median_ms: f64,
    pub(crate) answers_per_second: f64,
}

pub(crate) fn measure_clients(
    setup: &GpuBenchSetup,
    arm: &Arm,
    most: usize,
    seconds: f64,
) -> Result<ClientSweep> {
    let bar = output::progress_bar(most as u64, &format!("clients, {}", arm.name));
    let inputs = client_loops::one_row_inputs(setup, &arm.pipeline)?;
    let mut steps = Vec::new();
    for clients in 1..=most {
        let seen = client_loops::run_closed_loop(&arm.pipeline, &inputs, clients, seconds)?;
        steps.push(ClientStep {
            clients,
            mean_ms: seen.mean_ms(),
            median_ms: seen.median_ms(),
            answers_per_second: seen.per_second,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(ClientSweep { name: arm.name.to_owned(), steps })
}

pub(crate) fn clients_table(all: &[ClientSweep]) -> Table {
    let heads = ["how", ">clients", ">mean", ">median", ">answers per second"];
    let mut table = Table::new(&heads);
    for ClientSweep { name, steps } in all {
        for step in steps {
            table.add_row([
                name.clone(),
                step.clients.to_string(),
                format_milliseconds(step.mean_ms),
                format_milliseconds(step.median_ms),
                format!("{:.1}", step.answers_per_second),
            ]);
        }
    }
    table
}
