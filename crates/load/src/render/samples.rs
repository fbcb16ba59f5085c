//! Reports with made-up figures.

use std::collections::BTreeMap;

use crate::gpu_usage::GpuUsageSummary;
use crate::latency::{LatencyBin, LatencyPercentile, LoadLatency};
use crate::outcome_collector::OutcomeCounts;
use crate::report::{LoadReport, TargetSummary};
use crate::series::Second;
use crate::sweep::{Saturation, SweepReport, SweepStep};

/// A report with something of everything, of a model with this name.
pub(super) fn sample_run(model: &str) -> LoadReport {
    let latency = LoadLatency {
        count: 900,
        mean_ms: 2.5,
        p50_ms: 2.0,
        p90_ms: 4.0,
        p95_ms: 5.0,
        p99_ms: 9.0,
        p99_9_ms: 12.0,
        max_ms: 15.0,
    };
    let second = |at_s| Second {
        at_s,
        throughput_per_second: 300.0 + at_s as f64,
        p50_ms: (at_s != 1).then_some(2.0),
        p99_ms: (at_s != 1).then_some(9.0),
        errors: at_s,
    };
    LoadReport {
        target: TargetSummary {
            url: "http://localhost:8000".to_owned(),
            server: Some("triton 2.50".to_owned()),
            model: model.to_owned(),
            version: None,
            inputs: vec!["x FP32[1,3]".to_owned()],
        },
        mode: "closed",
        clients: Some(8),
        rate_per_second: None,
        arrivals: None,
        warm_up_s: 1.0,
        duration_s: 3.0,
        stopped_early: false,
        requests: 910,
        outcomes: OutcomeCounts { ok: 900, status: [(503, 10)].into(), ..OutcomeCounts::default() },
        offered_per_second: None,
        throughput_per_second: 300.0,
        deadline_ms: Some(50.0),
        goodput_per_second: Some(290.0),
        latency: Some(latency),
        latency_corrected: Some(latency),
        generator_lag_p99_ms: None,
        connections: 8,
        bytes_sent: 1_500_000,
        bytes_received: 12,
        exits: [("exit_15".to_owned(), 7)].into(),
        degraded: BTreeMap::new(),
        messages: [("HTTP 503".to_owned(), "queue full".to_owned())].into(),
        series: (0..3).map(second).collect(),
        histogram: vec![
            LatencyBin { from_ms: 1.0, to_ms: 2.0, count: 500 },
            LatencyBin { from_ms: 2.0, to_ms: 15.0, count: 400 },
        ],
        percentiles: vec![
            LatencyPercentile { percentile: 0.0, latency_ms: 1.0 },
            LatencyPercentile { percentile: 50.0, latency_ms: 2.0 },
            LatencyPercentile { percentile: 99.0, latency_ms: 9.0 },
        ],
        gpus: Vec::new(),
        gpu_note: None,
        extra: Vec::new(),
    }
}

/// A sweep of two rates, the first of which is sustained.
pub(super) fn sample_sweep(model: &str) -> SweepReport {
    let step = |rate: f64, sustained| {
        let mut report = sample_run(model);
        (report.mode, report.clients) = ("open", None);
        (report.rate_per_second, report.offered_per_second) = (Some(rate), Some(rate));
        SweepStep { rate_per_second: rate, sustained, report }
    };
    let saturation = Saturation {
        rate_per_second: 300.0,
        throughput_per_second: 300.0,
        p50_ms: 2.0,
        p99_ms: 9.0,
        exceeded: true,
    };
    SweepReport {
        target: sample_run(model).target,
        saturation: Some(saturation),
        steps: vec![step(300.0, true), step(600.0, false)],
        stopped_early: false,
        extra: Vec::new(),
    }
}

/// A GPU of which all is known.
pub(super) fn sample_gpu(uuid: &str) -> GpuUsageSummary {
    GpuUsageSummary {
        uuid: uuid.to_owned(),
        device: None,
        joules: Some(1200.0),
        mean_watts: Some(400.0),
        joules_per_answer: Some(4.0 / 3.0),
        rows_per_answer: Some(4),
        joules_per_row: Some(1.0 / 3.0),
        mean_utilisation: Some(0.87),
        highest_memory_bytes: Some(2_500_000_000),
        note: None,
    }
}
