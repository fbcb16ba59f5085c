//! What a row costs in energy (figure 4.10 of the BlockFlow thesis).

use std::time::{Duration, Instant};
use tessera_report::{Table, output};

use serde::Serialize;
use tessera_core::Result;

use super::latency::Arm;
use super::{GpuBenchSetup, WHOLE_MODEL, or_dash};

/// NVML's counter is slow: less than this says nothing.
const MIN_DURATION: Duration = Duration::from_millis(500);
/// Requests before the measured ones.
const WARM_UP: usize = 3;

/// All batches.
#[derive(Serialize)]
pub(crate) struct EnergyReport {
    /// What the GPU draws while nobody asks.
    pub(crate) idle_watts: Option<f64>,
    pub(crate) batches: Vec<EnergyBatch>,
}

/// Requests of so many rows.
#[derive(Serialize)]
pub(crate) struct EnergyBatch {
    pub(crate) rows: usize,
    /// The whole model, and the pipelines.
    pub(crate) arms: Vec<ArmEnergy>,
}

/// What one client made the GPU draw.
#[derive(Serialize)]
pub(crate) struct ArmEnergy {
    pub(crate) name: String,
    pub(crate) requests: usize,
    pub(crate) rows_per_second: f64,
    pub(crate) joules_per_row: Option<f64>,
    pub(crate) watts: Option<f64>,
}

pub(crate) fn measure_energy(
    setup: &GpuBenchSetup,
    arms: &[Arm],
    seconds: f64,
) -> Result<EnergyReport> {
    let steps = setup.batches.len() * (arms.len() + 1);
    let bar = output::progress_bar(steps as u64, "energy");
    let ((), idle) = setup.meter.watch_energy(|| std::thread::sleep(MIN_DURATION));
    let length = Duration::from_secs_f64(seconds).max(MIN_DURATION);
    let mut batches = Vec::new();
    for &rows in &setup.batches {
        let given = setup.random_input(rows)?;
        let mut drawn = Vec::new();
        let mut whole = setup.load_whole_model()?;
        let ask = || whole.infer_outputs(std::slice::from_ref(&given)).map(drop);
        drawn.push(measure_arm(setup, WHOLE_MODEL, rows, length, ask)?);
        drop(whole);
        bar.inc(1);
        for arm in arms {
            let input = arm.pipeline.copy_input(&given)?;
            let ask = || arm.pipeline.infer_once(&input).map(drop);
            drawn.push(measure_arm(setup, arm.name, rows, length, ask)?);
            arm.pipeline.take_hop_timings();
            bar.inc(1);
        }
        batches.push(EnergyBatch { rows, arms: drawn });
    }
    bar.finish_and_clear();
    Ok(EnergyReport { idle_watts: idle.map(|idle| idle.watts), batches })
}

/// Asks again and again for so long.
fn measure_arm(
    setup: &GpuBenchSetup,
    name: &str,
    rows: usize,
    length: Duration,
    mut ask: impl FnMut() -> Result<()>,
) -> Result<ArmEnergy> {
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
    Ok(ArmEnergy {
        name: name.to_owned(),
        requests,
        rows_per_second: asked / took.as_secs_f64(),
        joules_per_row: drawn.map(|drawn| drawn.joules / asked),
        watts: drawn.map(|drawn| drawn.watts),
    })
}

pub(crate) fn energy_table(energy: &EnergyReport) -> Table {
    let heads = [">rows", "how", ">mJ per row", ">watts", ">rows per second"];
    let mut table = Table::new(&heads);
    for batch in &energy.batches {
        for drawn in &batch.arms {
            table.add_row([
                batch.rows.to_string(),
                drawn.name.clone(),
                or_dash(drawn.joules_per_row, |joules| format!("{:.1}", joules * 1e3)),
                or_dash(drawn.watts, |watts| format!("{watts:.0}")),
                format!("{:.1}", drawn.rows_per_second),
            ]);
        }
    }
    table
}
