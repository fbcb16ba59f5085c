//! A sweep: one run after the other at different rates, to find where the server saturates.

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::options::{LoadMode, LoadTestOptions};
use crate::progress::LoadProgress;
use crate::report::{ExtraFact, LoadReport, TargetSummary};
use crate::run::run_load_test;
use crate::search::{RateSearch, SweepRates};
use crate::stop_token::StopToken;
use crate::target::LoadTarget;
use crate::workload::Workload;

/// The share of what is offered that must come back, for a rate to be sustained.
const SUSTAINED_SHARE: f64 = 0.95;

/// One rate of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepStep {
    /// The rate that was asked for.
    pub rate_per_second: f64,
    /// Whether throughput, and goodput where there is a deadline, were at least 95 % of what was
    /// offered.
    pub sustained: bool,
    /// The run.
    pub report: LoadReport,
}

/// The highest rate that was sustained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saturation {
    /// The rate.
    pub rate_per_second: f64,
    /// Answers that were OK per second.
    pub throughput_per_second: f64,
    /// The latency that half of them are below.
    pub p50_ms: f64,
    /// The latency that 99 of 100 of them are below.
    pub p99_ms: f64,
    /// Whether a higher rate was tried and not sustained; the server may do more where not.
    pub exceeded: bool,
}

/// The report of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepReport {
    /// What was put under load.
    pub target: TargetSummary,
    /// The highest rate that was sustained; none where none was.
    pub saturation: Option<Saturation>,
    /// The rates, in the order in which they were tried.
    pub steps: Vec<SweepStep>,
    /// Whether it was stopped before its end; the last step is then a part of one.
    pub stopped_early: bool,
    /// What the caller added.
    pub extra: Vec<ExtraFact>,
}

/// Runs the open loop of `options` at one rate after the other; their own rate does not count.
///
/// Every step has the warm-up and the duration of the options.
pub async fn run_sweep(
    target: &LoadTarget,
    workload: &Workload,
    options: &LoadTestOptions,
    rates: &SweepRates,
    stop: &StopToken,
    mut progress: impl FnMut(&LoadProgress),
) -> Result<SweepReport> {
    rates.check_rates()?;
    let LoadMode::Open { arrivals, duration, seed, .. } = options.mode else {
        return Err(Error::usage("a sweep is of the open loop, expected a duration and rates"));
    };
    let mut search = RateSearch::new(rates);
    let mut steps = Vec::new();
    while let Some(rate) = search.next_rate() {
        let mode = LoadMode::Open { rate, arrivals, duration, seed };
        let step = LoadTestOptions { mode, ..options.clone() };
        let report = run_load_test(target, workload, &step, stop, &mut progress).await?;
        let sustained = is_sustained(&report);
        search.observe_rate(rate, sustained);
        steps.push(SweepStep { rate_per_second: rate, sustained, report });
        if stop.is_stopped() {
            break;
        }
    }
    Ok(SweepReport {
        target: TargetSummary::new(target, workload),
        saturation: highest_sustained(&steps),
        stopped_early: steps.iter().any(|step| step.report.stopped_early),
        steps,
        extra: Vec::new(),
    })
}

/// A step that was stopped early tells too little to be called sustained.
fn is_sustained(report: &LoadReport) -> bool {
    let Some(offered) = report.offered_per_second.filter(|&offered| offered > 0.0) else {
        return false;
    };
    let enough = |rate: f64| rate >= SUSTAINED_SHARE * offered;
    !report.stopped_early
        && enough(report.throughput_per_second)
        && report.goodput_per_second.is_none_or(enough)
}

fn highest_sustained(steps: &[SweepStep]) -> Option<Saturation> {
    let sustained = steps.iter().filter(|step| step.sustained);
    let best = sustained.max_by(|a, b| a.rate_per_second.total_cmp(&b.rate_per_second))?;
    let latency = best.report.latency?;
    Some(Saturation {
        rate_per_second: best.rate_per_second,
        throughput_per_second: best.report.throughput_per_second,
        p50_ms: latency.p50_ms,
        p99_ms: latency.p99_ms,
        exceeded: steps
            .iter()
            .any(|step| step.rate_per_second > best.rate_per_second && !step.report.stopped_early),
    })
}

impl SweepReport {
    /// Adds a line, to be shown with the rest.
    pub fn add_extra(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.extra.push(ExtraFact { key: key.into(), value: value.into() });
    }
}
