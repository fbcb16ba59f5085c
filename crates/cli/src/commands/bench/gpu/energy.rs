//! What a row costs in energy (figure 4.10 of the BlockFlow thesis).

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::Result;

use super::latency::Arm;
use super::{Setup, WHOLE, shown};
use crate::output;

/// NVML's counter is slow: less than this says nothing.
const LEAST: Duration = Duration::from_millis(500);
/// Requests before the measured ones.
const WARM_UP: usize = 3;

/// All batches.
#[derive(Serialize)]
pub(super) struct Energy {
    /// What the GPU draws while nobody asks.
    pub(super) idle_watts: Option<f64>,
    pub(super) batches: Vec<Batch>,
}

/// Requests of so many rows.
#[derive(Serialize)]
pub(super) struct Batch {
    pub(super) rows: usize,
    /// The whole model, and the pipelines.
    pub(super) arms: Vec<Drawn>,
}

/// What one client made the GPU draw.
#[derive(Serialize)]
pub(super) struct Drawn {
    pub(super) name: String,
    pub(super) requests: usize,
    pub(super) rows_per_second: f64,
    pub(super) joules_per_row: Option<f64>,
    pub(super) watts: Option<f64>,
}

pub(super) fn measure(setup: &Setup, arms: &[Arm], seconds: f64) -> Result<Energy> {
    let steps = setup.batches.len() * (arms.len() + 1);
    let bar = output::progress(steps as u64, "energy");
    let ((), idle) = setup.meter.watch_energy(|| std::thread::sleep(LEAST));
    let length = Duration::from_secs_f64(seconds).max(LEAST);
    let mut batches = Vec::new();
    for &rows in &setup.batches {
        let given = setup.input(rows)?;
        let mut drawn = Vec::new();
        let mut whole = setup.whole()?;
        let ask = || whole.run(std::slice::from_ref(&given)).map(drop);
        drawn.push(one(setup, WHOLE, rows, length, ask)?);
        drop(whole);
        bar.inc(1);
        for arm in arms {
            let input = arm.pipeline.input(&given)?;
            let ask = || arm.pipeline.ask(&input).map(drop);
            drawn.push(one(setup, arm.name, rows, length, ask)?);
            arm.pipeline.records();
            bar.inc(1);
        }
        batches.push(Batch { rows, arms: drawn });
    }
    bar.finish_and_clear();
    Ok(Energy { idle_watts: idle.map(|idle| idle.watts), batches })
}

/// Asks again and again for so long.
fn one(
    setup: &Setup,
    name: &str,
    rows: usize,
    length: Duration,
    mut ask: impl FnMut() -> Result<()>,
) -> Result<Drawn> {
    for _ in 0..WARM_UP {
        ask()?;
    }
    let work = || -> Result<(usize, Duration)> {
        let start = Instant::now();
        let mut requests = 0;
        while start.elapsed() < length {
            ask()?;
            requests += 1;
        }
        Ok((requests, start.elapsed()))
    };
    let (done, drawn) = setup.meter.watch_energy(work);
    let (requests, took) = done?;
    let asked = (requests * rows) as f64;
    Ok(Drawn {
        name: name.to_owned(),
        requests,
        rows_per_second: asked / took.as_secs_f64(),
        joules_per_row: drawn.map(|drawn| drawn.joules / asked),
        watts: drawn.map(|drawn| drawn.watts),
    })
}

pub(super) fn table(energy: &Energy) -> output::Table {
    let heads = [">rows", "how", ">mJ per row", ">watts", ">rows per second"];
    let mut table = output::Table::new(&heads);
    for batch in &energy.batches {
        for drawn in &batch.arms {
            table.row([
                batch.rows.to_string(),
                drawn.name.clone(),
                shown(drawn.joules_per_row, |joules| format!("{:.1}", joules * 1e3)),
                shown(drawn.watts, |watts| format!("{watts:.0}")),
                format!("{:.1}", drawn.rows_per_second),
            ]);
        }
    }
    table
}
