//! Rows per second at most: a pipeline with many clients beside the whole model in its best batch.

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Result, Tensor};

use super::super::super::verify::Whole;
use super::latency::{Arm, middle};
use super::{Setup, WHOLE, crowd};
use crate::arguments::bench::BenchGpu;
use crate::output;

/// Runs of the whole model before the measured ones.
const WARM_UP: usize = 3;

/// Medians over all rounds.
#[derive(Serialize)]
pub(super) struct Throughput {
    /// The whole model in one session, run after run, by the rows of a run.
    pub(super) whole: Vec<WholeRate>,
    pub(super) best_whole_rows_per_second: f64,
    pub(super) pipelines: Vec<Rate>,
}

/// The whole model with batches of one size.
#[derive(Serialize)]
pub(super) struct WholeRate {
    pub(super) rows: usize,
    pub(super) rows_per_second: f64,
}

/// A pipeline with the number of clients that gave more.
#[derive(Serialize)]
pub(super) struct Rate {
    pub(super) name: String,
    pub(super) clients: usize,
    pub(super) rows_per_second: f64,
    pub(super) over_best_whole: f64,
}

pub(super) fn measure(setup: &Setup, arms: &[Arm], arguments: &BenchGpu) -> Result<Throughput> {
    let (rounds, seconds) = (arguments.rounds.max(1), arguments.seconds);
    let sizes = setup.batches.iter().filter(|&&rows| rows <= arguments.most_rows);
    let mut wholes: Vec<(usize, Tensor, Whole)> =
        sizes.map(|&rows| Ok((rows, setup.input(rows)?, setup.whole()?))).collect::<Result<_>>()?;
    let mut crowds: Vec<(&Arm, usize, Vec<Tensor>)> = Vec::new();
    for arm in arms {
        for &clients in &arguments.crowds {
            crowds.push((arm, clients, crowd::inputs(setup, &arm.pipeline)?));
        }
    }
    let steps = rounds * (wholes.len() + crowds.len());
    let bar = output::progress(steps as u64, "throughput");
    let mut whole_rates: Vec<Vec<f64>> = vec![Vec::new(); wholes.len()];
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); crowds.len()];
    for _ in 0..rounds {
        for ((rows, given, whole), rates) in wholes.iter_mut().zip(&mut whole_rates) {
            // Half as long: runs that follow each other differ little.
            rates.push(back_to_back(*rows, given, whole, seconds / 2.0)?);
            bar.inc(1);
        }
        for ((arm, clients, inputs), rates) in crowds.iter().zip(&mut rates) {
            rates.push(crowd::closed(&arm.pipeline, inputs, *clients, seconds)?.per_second);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let whole: Vec<WholeRate> = wholes
        .iter()
        .zip(whole_rates)
        .map(|((rows, ..), rates)| WholeRate {
            rows: *rows,
            rows_per_second: middle(rates.into_iter()),
        })
        .collect();
    let best = whole.iter().map(|rate| rate.rows_per_second).fold(0.0, f64::max);
    let all = crowds.iter().zip(rates);
    let all: Vec<Rate> = all
        .map(|((arm, clients, _), rates)| {
            let rows_per_second = middle(rates.into_iter());
            Rate {
                name: arm.name.to_owned(),
                clients: *clients,
                rows_per_second,
                over_best_whole: rows_per_second / best,
            }
        })
        .collect();
    let mut pipelines: Vec<Rate> = Vec::new();
    for rate in all {
        match pipelines.iter_mut().find(|known| known.name == rate.name) {
            Some(known) if known.rows_per_second >= rate.rows_per_second => {}
            Some(known) => *known = rate,
            None => pipelines.push(rate),
        }
    }
    Ok(Throughput { whole, best_whole_rows_per_second: best, pipelines })
}

/// Rows per second of runs that follow each other.
fn back_to_back(rows: usize, given: &Tensor, whole: &mut Whole, seconds: f64) -> Result<f64> {
    for _ in 0..WARM_UP {
        whole.run(std::slice::from_ref(given))?;
    }
    let length = Duration::from_secs_f64(seconds);
    let start = Instant::now();
    let mut runs = 0;
    while runs == 0 || start.elapsed() < length {
        whole.run(std::slice::from_ref(given))?;
        runs += 1;
    }
    Ok((runs * rows) as f64 / start.elapsed().as_secs_f64())
}

pub(super) fn table(throughput: &Throughput) -> output::Table {
    let mut table = output::Table::new(&[
        "how",
        ">rows",
        ">clients",
        ">rows per second",
        ">over the best whole",
    ]);
    let best = throughput.best_whole_rows_per_second;
    let dash = || "–".to_owned();
    for WholeRate { rows, rows_per_second } in &throughput.whole {
        table.row([
            WHOLE.to_owned(),
            rows.to_string(),
            dash(),
            format!("{rows_per_second:.1}"),
            format!("{:.3}", rows_per_second / best),
        ]);
    }
    for Rate { name, clients, rows_per_second, over_best_whole } in &throughput.pipelines {
        table.row([
            name.clone(),
            dash(),
            clients.to_string(),
            format!("{rows_per_second:.1}"),
            format!("{over_best_whole:.3}"),
        ]);
    }
    table
}
