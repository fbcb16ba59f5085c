//! The figures of reports as tables.

use tessera_report::{Table, format_milliseconds, format_rate};

use crate::latency::LoadLatency;
use crate::report::LoadReport;
use crate::sweep::SweepStep;

/// The latencies of a run; none where there was no answer.
pub(super) fn latency_table(report: &LoadReport) -> Option<Table> {
    let mut table =
        Table::new(&[">latency", ">p50", ">p90", ">p95", ">p99", ">p99.9", ">max", ">mean"]);
    let latencies = [("measured", report.latency), ("corrected", report.latency_corrected)];
    for (name, latency) in latencies {
        let Some(latency) = latency else { continue };
        let values = [
            latency.p50_ms,
            latency.p90_ms,
            latency.p95_ms,
            latency.p99_ms,
            latency.p99_9_ms,
            latency.max_ms,
            latency.mean_ms,
        ];
        table.add_row([name.to_owned()].into_iter().chain(values.map(format_milliseconds)));
    }
    latencies.iter().any(|(_, latency)| latency.is_some()).then_some(table)
}

/// The steps of a sweep, a row each.
pub(super) fn steps_table(steps: &[&SweepStep]) -> Table {
    let mut table = Table::new(&[
        ">offered/s",
        ">throughput/s",
        ">goodput/s",
        ">p50",
        ">p99",
        ">p99.9",
        ">errors",
        ">sustained",
    ]);
    for step in steps {
        table.add_row(step_cells(step));
    }
    table
}

fn step_cells(step: &SweepStep) -> Vec<String> {
    let report = &step.report;
    let latency = |value: fn(&LoadLatency) -> f64| {
        report
            .latency
            .as_ref()
            .map_or("-".to_owned(), |latency| format_milliseconds(value(latency)))
    };
    let sustained = if step.sustained {
        "yes"
    } else if report.stopped_early {
        "stopped"
    } else {
        "no"
    };
    vec![
        format_rate(report.offered_per_second.unwrap_or(step.rate_per_second)),
        format_rate(report.throughput_per_second),
        report.goodput_per_second.map_or("-".to_owned(), format_rate),
        latency(|latency| latency.p50_ms),
        latency(|latency| latency.p99_ms),
        latency(|latency| latency.p99_9_ms),
        report.outcomes.errors().to_string(),
        sustained.to_owned(),
    ]
}
