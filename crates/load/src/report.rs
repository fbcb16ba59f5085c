//! The report of a run.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use crate::arrivals::Arrivals;
use crate::gpu_usage::{self, GpuUsageSummary, MeasuredWork};
use crate::latency::{self, LatencyBin, LatencyPercentile, LoadLatency};
use crate::metrics_scraper::ScrapedMetrics;
use crate::options::{LoadMode, LoadTestOptions};
use crate::outcome_collector::{OutcomeCollector, OutcomeCounts};
use crate::series::Second;
use crate::target::LoadTarget;
use crate::workload::Workload;

/// What was put under load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetSummary {
    /// The server's address.
    pub url: String,
    /// The server's name and version, where it tells.
    pub server: Option<String>,
    /// The model's name.
    pub model: String,
    /// The version that was asked for.
    pub version: Option<String>,
    /// The inputs: `x FP32[1,3,224,224]`.
    pub inputs: Vec<String>,
}

impl TargetSummary {
    pub(crate) fn new(target: &LoadTarget, workload: &Workload) -> Self {
        Self {
            url: target.url.clone(),
            server: workload.server.clone(),
            model: target.model.clone(),
            version: target.version.clone(),
            inputs: workload.inputs.clone(),
        }
    }
}

/// A line that the caller adds to a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExtraFact {
    /// What it is about.
    pub key: String,
    /// What there is to say.
    pub value: String,
}

/// The report of a run.
///
/// Latencies and outcomes are of the requests that were due in the measured time; throughput and
/// goodput are of the answers that came in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// What was put under load.
    pub target: TargetSummary,
    /// `closed` or `open`.
    pub mode: &'static str,
    /// Clients, in the closed loop.
    pub clients: Option<usize>,
    /// The rate that was asked for, in the open loop.
    pub rate_per_second: Option<f64>,
    /// How requests followed each other, in the open loop.
    pub arrivals: Option<Arrivals>,
    /// Time at the start that was not counted.
    pub warm_up_s: f64,
    /// Time that was measured.
    pub duration_s: f64,
    /// Whether it was stopped before its end.
    pub stopped_early: bool,
    /// Requests that count.
    pub requests: u64,
    /// How they ended.
    pub outcomes: OutcomeCounts,
    /// Requests that were due per second, in the open loop.
    pub offered_per_second: Option<f64>,
    /// Answers that were OK per second.
    pub throughput_per_second: f64,
    /// The deadline that goodput is about.
    pub deadline_ms: Option<f64>,
    /// Answers that were OK and within the deadline, per second.
    pub goodput_per_second: Option<f64>,
    /// Latency of answers that were OK: in the open loop from when a request was due, in the
    /// closed loop from when it was sent.
    pub latency: Option<LoadLatency>,
    /// In the closed loop, with what clients would have seen had a stall not kept them from
    /// sending (HdrHistogram's correction, with the median as the expected interval).
    pub latency_corrected: Option<LoadLatency>,
    /// How late requests were handed out, 99 of 100 of them at most, in the open loop. It is part
    /// of their latency, and the generator's fault.
    pub generator_lag_p99_ms: Option<f64>,
    /// Connections that were opened.
    pub connections: u64,
    /// Bytes of the bodies of requests that were answered.
    pub bytes_sent: u64,
    /// Bytes of the bodies of answers.
    pub bytes_received: u64,
    /// Answers by the exit that they were taken from, where the server tells.
    pub exits: BTreeMap<String, u64>,
    /// Answers that were degraded, by reason, where the server tells.
    pub degraded: BTreeMap<String, u64>,
    /// The first message of every kind of failure, those of the warm-up included.
    pub messages: BTreeMap<String, String>,
    /// The run second by second.
    pub series: Vec<Second>,
    /// The latencies in bars.
    pub histogram: Vec<LatencyBin>,
    /// The curve of their percentiles; in the closed loop, of the corrected ones.
    pub percentiles: Vec<LatencyPercentile>,
    /// What GPUs drew and did, where there was a page of metrics to read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUsageSummary>,
    /// Why nothing is known of GPUs, where there was a page of metrics to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_note: Option<String>,
    /// What the caller added.
    pub extra: Vec<ExtraFact>,
}

/// What a report is made of.
pub(crate) struct LoadReportParts<'a> {
    pub(crate) target: &'a LoadTarget,
    pub(crate) workload: &'a Workload,
    pub(crate) options: &'a LoadTestOptions,
    pub(crate) collector: OutcomeCollector,
    pub(crate) issued: u64,
    pub(crate) connections: u64,
    /// When it was stopped early.
    pub(crate) stopped: Option<Instant>,
    /// What a page of metrics said, where there was one.
    pub(crate) scraped: Option<ScrapedMetrics>,
}

impl LoadReport {
    pub(crate) fn new(parts: LoadReportParts<'_>) -> Self {
        let LoadReportParts {
            target,
            workload,
            options,
            collector,
            issued,
            connections,
            stopped,
            scraped,
        } = parts;
        let OutcomeCollector { window, latencies, mut outcomes, .. } = collector;
        outcomes.abandoned = issued.saturating_sub(outcomes.total());
        let used_up = matches!(
            options.mode,
            LoadMode::Closed { requests: Some(requests), .. } if issued >= requests
        );
        let planned = match (window.end, collector.last) {
            (Some(end), Some(last)) if used_up => end.min(last),
            (Some(end), _) => end,
            (None, last) => last.unwrap_or(window.start),
        };
        // A stop after the end of the window, while answers were waited for, changes nothing.
        let end = match stopped {
            Some(stopped) if window.end.is_none_or(|end| stopped < end) => stopped,
            _ => planned,
        };
        let duration = end.saturating_duration_since(window.start);
        let seconds = duration.as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let (mode, clients, rate_per_second, arrivals) = match options.mode {
            LoadMode::Closed { clients, .. } => ("closed", Some(clients), None, None),
            LoadMode::Open { rate, arrivals, .. } => ("open", None, Some(rate), Some(arrivals)),
        };
        let open = rate_per_second.is_some();
        let work =
            MeasuredWork { duration, answers: collector.answers_in_window, rows: workload.rows };
        let (gpus, gpu_note) =
            scraped.map_or_else(Default::default, |scraped| gpu_usage::sum_up_gpus(&scraped, work));
        let corrected = (!open).then(|| latency::correct_for_stalls(&latencies));
        Self {
            target: TargetSummary::new(target, workload),
            mode,
            clients,
            rate_per_second,
            arrivals,
            warm_up_s: options.warm_up.as_secs_f64(),
            duration_s: seconds,
            stopped_early: stopped.is_some(),
            requests: issued,
            offered_per_second: open.then(|| per_second(issued)),
            throughput_per_second: per_second(collector.answers_in_window),
            deadline_ms: options.deadline.map(|deadline| deadline.as_secs_f64() * 1e3),
            goodput_per_second: options.deadline.map(|_| per_second(collector.answers_in_deadline)),
            latency: LoadLatency::from_histogram(&latencies),
            latency_corrected: corrected.as_ref().and_then(LoadLatency::from_histogram),
            generator_lag_p99_ms: (open && !collector.lags.is_empty())
                .then(|| latency::quantile_ms(&collector.lags, 0.99)),
            connections,
            bytes_sent: collector.sent,
            bytes_received: collector.received,
            exits: collector.exits,
            degraded: collector.degraded,
            messages: collector.messages,
            series: collector.series.into_seconds(duration),
            histogram: latency::histogram_bins(&latencies),
            percentiles: latency::percentile_curve(corrected.as_ref().unwrap_or(&latencies)),
            outcomes,
            gpus,
            gpu_note,
            extra: Vec::new(),
        }
    }

    /// Adds a line, to be shown with the rest.
    pub fn add_extra(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.extra.push(ExtraFact { key: key.into(), value: value.into() });
    }
}
