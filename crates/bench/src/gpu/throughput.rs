//! Rows per second at most: a pipeline with many clients beside the whole model in its best batch.

use std::time::{Duration, Instant};
use tessera_report::{Table, output};

use serde::Serialize;
use tessera_core::{Result, Tensor};
use tessera_node::WholeModel;

use super::arguments::BenchGpu;
use super::latency::{Arm, median_of_values};
use super::{GpuBenchSetup, WHOLE_MODEL, client_loops};

/// Runs of the whole model before the measured ones.
const WARM_UP: usize = 3;

/// Medians over all rounds.
#[derive(Serialize)]
pub(crate) struct GpuThroughput {
    /// The whole model in one session, run after run, by the rows of a run.
    pub(crate) whole: Vec<WholeRate>,
    pub(crate) best_whole_rows_per_second: f64,
    pub(crate) pipelines: Vec<PipelineRate>,
}

/// The whole model with batches of one size.
#[derive(Serialize)]
pub(crate) struct WholeRate {
    pub(crate) rows: usize,
    pub(crate) rows_per_second: f64,
}

/// A pipeline with the number of clients that gave more.
#[derive(Serialize)]
pub(crate) struct PipelineRate {
    pub(crate) name: String,
    pub(crate) clients: usize,
    pub(crate) rows_per_second: f64,
    pub(crate) over_best_whole: f64,
}

pub(crate) fn measure_throughput(
    setup: &GpuBenchSetup,
    arms: &[Arm],
    arguments: &BenchGpu,
) -> Result<GpuThroughput> {
    let (rounds, seconds) = (arguments.rounds.max(1), arguments.seconds);
    let sizes = setup.batches.iter().filter(|&&rows| rows <= arguments.most_rows);
    let mut wholes: Vec<(usize, Tensor, WholeModel)> = sizes
        .map(|&rows| Ok((rows, setup.random_input(rows)?, setup.load_whole_model()?)))
        .collect::<Result<_>>()?;
    let mut loads: Vec<(&Arm, usize, Vec<Tensor>)> = Vec::new();
    for arm in arms {
        for &clients in &arguments.throughput_clients {
            loads.push((arm, clients, client_loops::one_row_inputs(setup, &arm.pipeline)?));
        }
    }
    let steps = rounds * (wholes.len() + loads.len());
    let bar = output::progress_bar(steps as u64, "throughput");
    let mut whole_rates: Vec<Vec<f64>> = vec![Vec::new(); wholes.len()];
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); loads.len()];
    for _ in 0..rounds {
        for ((rows, given, whole), rates) in wholes.iter_mut().zip(&mut whole_rates) {
            // Half as long: runs that follow each other differ little.
            rates.push(back_to_back(*rows, given, whole, seconds / 2.0)?);
            bar.inc(1);
        }
        for ((arm, clients, inputs), rates) in loads.iter().zip(&mut rates) {
            rates.push(
                client_loops::run_closed_loop(&arm.pipeline, inputs, *clients, seconds)?.per_second,
            );
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let whole: Vec<WholeRate> = wholes
        .iter()
        .zip(whole_rates)
        .map(|((rows, ..), rates)| WholeRate {
            rows: *rows,
            rows_per_second: median_of_values(rates.into_iter()),
        })
        .collect();
    let best = whole.iter().map(|rate| rate.rows_per_second).fold(0.0, f64::max);
    let all = loads.iter().zip(rates);
    let all: Vec<PipelineRate> = all
        .map(|((arm, clients, _), rates)| {
            let rows_per_second = median_of_values(rates.into_iter());
            PipelineRate {
                name: arm.name.to_owned(),
                clients: *clients,
                rows_per_second,
                over_best_whole: rows_per_second / best,
            }
        })
        .collect();
    let mut pipelines: Vec<PipelineRate> = Vec::new();
    for rate in all {
        match pipelines.iter_mut().find(|known| known.name == rate.name) {
            Some(known) if known.rows_per_second >= rate.rows_per_second => {}
            Some(known) => *known = rate,
            None => pipelines.push(rate),
        }
    }
    Ok(GpuThroughput { whole, best_whole_rows_per_second: best, pipelines })
}

/// Rows per second of runs that follow each other.
fn back_to_back(rows: usize, given: &Tensor, whole: &mut WholeModel, seconds: f64) -> Result<f64> {
    for _ in 0..WARM_UP {
        whole.infer_outputs(std::slice::from_ref(given))?;
    }
    let length = Duration::from_secs_f64(seconds);
    let start = Instant::now();
    let mut runs = 0;
    while runs == 0 || start.elapsed() < length {
        whole.infer_outputs(std::slice::from_ref(given))?;
        runs += 1;
    }
    Ok((runs * rows) as f64 / start.elapsed().as_secs_f64())
}

pub(crate) fn throughput_table(throughput: &GpuThroughput) -> Table {
    let mut table =
        Table::new(&["how", ">rows", ">clients", ">rows per second", ">over the best whole"]);
    let best = throughput.best_whole_rows_per_second;
    let dash = || "–".to_owned();
    for WholeRate { rows, rows_per_second } in &throughput.whole {
        table.add_row([
            WHOLE_MODEL.to_owned(),
            rows.to_string(),
            dash(),
            format!("{rows_per_second:.1}"),
            format!("{:.3}", rows_per_second / best),
        ]);
    }
    for PipelineRate { name, clients, rows_per_second, over_best_whole } in &throughput.pipelines {
        table.add_row([
            name.clone(),
            dash(),
            clients.to_string(),
            format!("{rows_per_second:.1}"),
            format!("{over_best_whole:.3}"),
        ]);
    }
    table
}
