//! A sweep: one run after the other at different rates, to find where the server saturates.

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::options::{Mode, Options};
use crate::progress::Progress;
use crate::report::{Extra, Report, TargetSummary};
use crate::run::run;
use crate::search::{Rates, Search};
use crate::stop::Stop;
use crate::target::Target;
use crate::workload::Workload;
use crate::{html, table};

/// The share of what is offered that must come back, for a rate to be sustained.
const SUSTAINED: f64 = 0.95;

/// One rate of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The rate that was asked for.
    pub rate_per_second: f64,
    /// Whether throughput, and goodput where there is a deadline, were at least 95 % of what was
    /// offered.
    pub sustained: bool,
    /// The run.
    pub report: Report,
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
    pub steps: Vec<Step>,
    /// Whether it was stopped before its end; the last step is then a part of one.
    pub stopped_early: bool,
    /// What the caller added.
    pub extra: Vec<Extra>,
}

/// Runs the open loop of `options` at one rate after the other; their own rate does not count.
///
/// Every step has the warm-up and the duration of the options.
pub async fn sweep(
    target: &Target,
    workload: &Workload,
    options: &Options,
    rates: &Rates,
    stop: &Stop,
    mut progress: impl FnMut(&Progress),
) -> Result<SweepReport> {
    rates.check()?;
    let Mode::Open { arrivals, duration, seed, .. } = options.mode else {
        return Err(Error::usage("a sweep is of the open loop, expected a duration and rates"));
    };
    let mut search = Search::new(rates);
    let mut steps = Vec::new();
    while let Some(rate) = search.next_rate() {
        let mode = Mode::Open { rate, arrivals, duration, seed };
        let step = Options { mode, ..options.clone() };
        let report = run(target, workload, &step, stop, &mut progress).await?;
        let sustained = is_sustained(&report);
        search.observe(rate, sustained);
        steps.push(Step { rate_per_second: rate, sustained, report });
        if stop.is_stopped() {
            break;
        }
    }
    Ok(SweepReport {
        target: TargetSummary::new(target, workload),
        saturation: saturation(&steps),
        stopped_early: steps.iter().any(|step| step.report.stopped_early),
        steps,
        extra: Vec::new(),
    })
}

/// A step that was stopped early tells too little to be called sustained.
fn is_sustained(report: &Report) -> bool {
    let Some(offered) = report.offered_per_second.filter(|&offered| offered > 0.0) else {
        return false;
    };
    let enough = |rate: f64| rate >= SUSTAINED * offered;
    !report.stopped_early
        && enough(report.throughput_per_second)
        && report.goodput_per_second.is_none_or(enough)
}

fn saturation(steps: &[Step]) -> Option<Saturation> {
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
    pub fn add(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.extra.push(Extra { key: key.into(), value: value.into() });
    }

    /// The report as a table for people.
    pub fn table(&self) -> String {
        table::of_sweep(self)
    }

    /// The report as one HTML file with plots, which needs nothing from elsewhere.
    pub fn html(&self) -> String {
        html::of_sweep(self)
    }
}
