//! Requests that come at random, at rising rates (figures 4.12 and 4.13 of the BlockFlow thesis).

use std::time::Duration;
use tessera_report::{Table, format_bytes, format_milliseconds, output};

use serde::Serialize;
use tessera_core::Result;

use super::gpu_meter::VideoMemoryUsage;
use super::latency::{Arm, median_of_values};
use super::{GpuBenchSetup, client_loops, or_dash};

/// The rates, in parts of what the pipeline can do.
const CAPACITY_PARTS: [f64; 9] = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0];
/// How long a request may take: this, or so many times what one takes that is alone.
const DEADLINE: Duration = Duration::from_millis(500);
const TIMES_ALONE: u32 = 20;
/// Seed of the first rate; each has its own.
const SEED: u64 = 412;

/// A pipeline at rising rates.
#[derive(Serialize)]
pub(crate) struct ArrivalSweep {
    pub(crate) name: String,
    /// Answers per second of many clients that wait for theirs.
    pub(crate) capacity_per_second: f64,
    pub(crate) deadline_ms: f64,
    /// Video memory in use before the pipeline was started.
    pub(crate) used_before_bytes: Option<u64>,
    pub(crate) steps: Vec<ArrivalStep>,
    /// The most answers per second at any rate.
    pub(crate) saturation_per_second: f64,
}

/// One rate.
#[derive(Serialize)]
pub(crate) struct ArrivalStep {
    /// In parts of the capacity.
    pub(crate) part_of_capacity: f64,
    /// Requests per second that came.
    pub(crate) offered_per_second: f64,
    pub(crate) answers_per_second: f64,
    /// Those that were refused at once, and those that were too late.
    pub(crate) refused_per_second: f64,
    pub(crate) late_per_second: f64,
    /// Of those that were answered.
    pub(crate) median_ms: Option<f64>,
    /// Video memory in use meanwhile, by all.
    pub(crate) used: Option<VideoMemoryUsage>,
}

pub(crate) fn measure_arrivals(
    setup: &GpuBenchSetup,
    arm: &Arm,
    used_before_bytes: Option<u64>,
    clients: usize,
    seconds: f64,
) -> Result<ArrivalSweep> {
    let bar =
        output::progress_bar(CAPACITY_PARTS.len() as u64 + 1, &format!("arrivals, {}", arm.name));
    let inputs = client_loops::one_row_inputs(setup, &arm.pipeline)?;
    let mut alone = Duration::ZERO;
    for _ in 0..3 {
        alone = arm.pipeline.infer_once(&inputs[0])?.0;
    }
    let deadline = DEADLINE.max(alone * TIMES_ALONE);
    let capacity =
        client_loops::run_closed_loop(&arm.pipeline, &inputs, clients, seconds)?.per_second;
    bar.inc(1);
    let mut steps = Vec::new();
    for (seed, part) in (SEED..).zip(CAPACITY_PARTS) {
        let work = || {
            client_loops::run_open_loop(
                &arm.pipeline,
                &inputs,
                part * capacity,
                seconds,
                deadline,
                seed,
            )
        };
        let (offered, used) = setup.meter.watch_memory(work);
        let offered = offered?;
        let per_second = |count: usize| count as f64 / seconds;
        let median = median_of_values(offered.times.iter().map(|time| time.as_secs_f64() * 1e3));
        steps.push(ArrivalStep {
            part_of_capacity: part,
            offered_per_second: per_second(offered.came),
            answers_per_second: per_second(offered.answered),
            refused_per_second: per_second(offered.refused),
            late_per_second: per_second(offered.late),
            median_ms: median.is_finite().then_some(median),
            used,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let saturation_per_second =
        steps.iter().map(|step| step.answers_per_second).fold(0.0, f64::max);
    Ok(ArrivalSweep {
        name: arm.name.to_owned(),
        capacity_per_second: capacity,
        deadline_ms: deadline.as_secs_f64() * 1e3,
        used_before_bytes,
        steps,
        saturation_per_second,
    })
}

pub(crate) fn arrivals_table(all: &[ArrivalSweep]) -> Table {
    let mut table = Table::new(&[
        "how",
        ">of capacity",
        ">offered/s",
        ">answered/s",
        ">refused/s",
        ">late/s",
        ">median",
        ">memory, mean",
        ">memory, most",
    ]);
    for arrivals in all {
        for step in &arrivals.steps {
            let rates = [
                step.offered_per_second,
                step.answers_per_second,
                step.refused_per_second,
                step.late_per_second,
            ];
            let used =
                [step.used.map(|used| used.mean_bytes), step.used.map(|used| used.most_bytes)];
            table.add_row(
                [arrivals.name.clone(), format!("{:.1}", step.part_of_capacity)]
                    .into_iter()
                    .chain(rates.map(|rate| format!("{rate:.1}")))
                    .chain([or_dash(step.median_ms, format_milliseconds)])
                    .chain(used.map(|used| or_dash(used, |bytes| format_bytes(bytes as u64)))),
            );
        }
    }
    table
}
