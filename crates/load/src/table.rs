//! Reports as tables for people.

use std::collections::BTreeMap;

use crate::gpu_table::{self, GPU_HEADS, STEP_GPU_HEADS};
use crate::latency::Latency;
use crate::recorder::Outcomes;
use crate::report::{Extra, Report, TargetSummary};
use crate::sweep::{Step, SweepReport};

/// The heads of a table of latencies.
pub(crate) const LATENCY_HEADS: [&str; 8] =
    ["latency", "p50", "p90", "p95", "p99", "p99.9", "max", "mean"];

/// The heads of a table of steps.
pub(crate) const STEP_HEADS: [&str; 8] =
    ["offered/s", "throughput/s", "goodput/s", "p50", "p99", "p99.9", "errors", "sustained"];

/// A run as a table.
pub(crate) fn of_run(report: &Report) -> String {
    let mut text = pairs(&facts(report));
    let rows = latencies(report);
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&columns(&LATENCY_HEADS, &rows));
    }
    let gpus = gpu_table::of_run(report);
    if !gpus.is_empty() {
        text.push('\n');
        text.push_str(&columns(&GPU_HEADS, &gpus));
    }
    text
}

/// A sweep as a table.
pub(crate) fn of_sweep(report: &SweepReport) -> String {
    let mut text = pairs(&sweep_facts(report));
    text.push('\n');
    let mut steps: Vec<&Step> = report.steps.iter().collect();
    steps.sort_by(|a, b| a.rate_per_second.total_cmp(&b.rate_per_second));
    let rows: Vec<Vec<String>> = steps.iter().map(|one| step(one)).collect();
    text.push_str(&columns(&STEP_HEADS, &rows));
    let gpus = gpu_table::of_steps(&steps);
    if !gpus.is_empty() {
        text.push('\n');
        text.push_str(&columns(&STEP_GPU_HEADS, &gpus));
    }
    text
}

/// What there is to say of a run, one line each.
pub(crate) fn facts(report: &Report) -> Vec<(String, String)> {
    let mut facts = target_facts(&report.target);
    let mut add = |key: &str, value: String| facts.push((key.to_owned(), value));
    add("load", load(report));
    let note = if report.stopped_early { ", stopped early" } else { "" };
    let (duration, warm_up) = (report.duration_s, report.warm_up_s);
    add("time", format!("{duration:.1} s after {warm_up:.1} s of warm-up{note}"));
    add("requests", format!("{}: {}", report.requests, outcomes(&report.outcomes)));
    if let Some(offered) = report.offered_per_second {
        add("offered", format!("{}/s", rate(offered)));
    }
    add("throughput", format!("{}/s", rate(report.throughput_per_second)));
    if let (Some(goodput), Some(deadline)) = (report.goodput_per_second, report.deadline_ms) {
        add("goodput", format!("{}/s within {}", rate(goodput), milliseconds(deadline)));
    }
    let (sent, received) = (bytes(report.bytes_sent), bytes(report.bytes_received));
    add("bodies", format!("{sent} sent, {received} received"));
    add("connections", report.connections.to_string());
    if let Some(lag) = report.generator_lag_p99_ms {
        add("generator lag", format!("{} (p99; part of the latency)", milliseconds(lag)));
    }
    if !report.exits.is_empty() {
        add("exits", counts(&report.exits));
    }
    if !report.degraded.is_empty() {
        add("degraded", counts(&report.degraded));
    }
    for (kind, message) in &report.messages {
        add("first error", format!("{kind}: {message}"));
    }
    facts.extend(gpu_table::notes([report].into_iter()));
    append(&mut facts, &report.extra);
    facts
}

/// What there is to say of a sweep, one line each.
pub(crate) fn sweep_facts(report: &SweepReport) -> Vec<(String, String)> {
    let mut facts = target_facts(&report.target);
    let mut add = |key: &str, value: String| facts.push((key.to_owned(), value));
    if let Some(first) = report.steps.first() {
        let (duration, warm_up) = (first.report.duration_s, first.report.warm_up_s);
        add("each rate", format!("{duration:.1} s after {warm_up:.1} s of warm-up"));
        if let Some(deadline) = first.report.deadline_ms {
            add("deadline", milliseconds(deadline));
        }
    }
    add(
        "saturation",
        match &report.saturation {
            None => "no rate was sustained".to_owned(),
            Some(saturation) => {
                let more = if saturation.exceeded { "" } else { ", and no higher rate was tried" };
                format!(
                    "{}/s (p50 {}, p99 {}{more})",
                    rate(saturation.rate_per_second),
                    milliseconds(saturation.p50_ms),
                    milliseconds(saturation.p99_ms)
                )
            }
        },
    );
    if report.stopped_early {
        add("note", "stopped early".to_owned());
    }
    facts.extend(gpu_table::notes(report.steps.iter().map(|step| &step.report)));
    append(&mut facts, &report.extra);
    facts
}

/// The rows of the table of latencies.
pub(crate) fn latencies(report: &Report) -> Vec<Vec<String>> {
    let row = |name: &str, latency: &Latency| {
        let values = [
            latency.p50_ms,
            latency.p90_ms,
            latency.p95_ms,
            latency.p99_ms,
            latency.p99_9_ms,
            latency.max_ms,
            latency.mean_ms,
        ];
        let cells = [name.to_owned()].into_iter();
        cells.chain(values.into_iter().map(milliseconds)).collect::<Vec<String>>()
    };
    let measured = report.latency.as_ref().map(|latency| row("measured", latency));
    let corrected = report.latency_corrected.as_ref().map(|latency| row("corrected", latency));
    measured.into_iter().chain(corrected).collect()
}

/// The row of a step.
pub(crate) fn step(step: &Step) -> Vec<String> {
    let report = &step.report;
    let latency = |value: fn(&Latency) -> f64| {
        report.latency.as_ref().map_or("-".to_owned(), |latency| milliseconds(value(latency)))
    };
    let sustained = match step.sustained {
        true => "yes",
        false if report.stopped_early => "stopped",
        false => "no",
    };
    vec![
        rate(report.offered_per_second.unwrap_or(step.rate_per_second)),
        rate(report.throughput_per_second),
        report.goodput_per_second.map_or("-".to_owned(), rate),
        latency(|latency| latency.p50_ms),
        latency(|latency| latency.p99_ms),
        latency(|latency| latency.p99_9_ms),
        report.outcomes.errors().to_string(),
        sustained.to_owned(),
    ]
}

fn target_facts(target: &TargetSummary) -> Vec<(String, String)> {
    let version = target.version.as_ref().map_or(String::new(), |text| format!(", version {text}"));
    let server = target.server.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    vec![
        ("model".to_owned(), format!("{}{version}", target.model)),
        ("server".to_owned(), format!("{}{server}", target.url)),
        ("inputs".to_owned(), target.inputs.join(", ")),
    ]
}

fn append(facts: &mut Vec<(String, String)>, extra: &[Extra]) {
    facts.extend(extra.iter().map(|line| (line.key.clone(), line.value.clone())));
}

fn load(report: &Report) -> String {
    match (report.clients, report.rate_per_second, report.arrivals) {
        (Some(1), ..) => "closed loop, 1 client".to_owned(),
        (Some(clients), ..) => format!("closed loop, {clients} clients"),
        (None, Some(per_second), Some(arrivals)) => {
            format!("open loop, {}/s, {arrivals} arrivals", rate(per_second))
        }
        _ => report.mode.to_owned(),
    }
}

fn outcomes(outcomes: &Outcomes) -> String {
    let mut parts = vec![format!("{} ok", outcomes.ok)];
    parts.extend(outcomes.status.iter().map(|(status, count)| format!("{count} HTTP {status}")));
    let others = [
        (outcomes.invalid, "invalid"),
        (outcomes.connection, "connection errors"),
        (outcomes.timeout, "timeouts"),
        (outcomes.abandoned, "abandoned"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0);
    parts.extend(others.map(|(count, name)| format!("{count} {name}")));
    parts.join(", ")
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let parts = counts.iter().map(|(value, count)| format!("{value} {count}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// A rate as people write it.
pub(crate) fn rate(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Milliseconds as people write them.
pub(crate) fn milliseconds(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{:.1} s", value / 1e3),
        value if value >= 100.0 => format!("{value:.0} ms"),
        value if value >= 1.0 => format!("{value:.2} ms"),
        value => format!("{:.1} µs", value * 1e3),
    }
}

/// Bytes as people write them.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}

/// Two columns, the second as long as it needs.
fn pairs(pairs: &[(String, String)]) -> String {
    let width = pairs.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in pairs {
        text.push_str(&format!("{key:<width$}  {value}\n"));
    }
    text
}

/// Columns of numbers, aligned to the right.
fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let heads: Vec<String> = heads.iter().map(|&head| head.to_owned()).collect();
    let all = || [&heads].into_iter().chain(rows);
    let width = |column: usize| {
        all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    for row in all() {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}"));
        text.push_str(&cells.collect::<Vec<_>>().join("  "));
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::latency::{Bin, Percentile};
    use crate::series::Second;
    use crate::sweep::Saturation;

    use super::*;

    /// A report with something of everything, of a model with this name.
    pub(crate) fn sample(model: &str) -> Report {
        let latency = Latency {
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
        Report {
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
            outcomes: Outcomes { ok: 900, status: [(503, 10)].into(), ..Outcomes::default() },
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
                Bin { from_ms: 1.0, to_ms: 2.0, count: 500 },
                Bin { from_ms: 2.0, to_ms: 15.0, count: 400 },
            ],
            percentiles: vec![
                Percentile { percentile: 0.0, latency_ms: 1.0 },
                Percentile { percentile: 50.0, latency_ms: 2.0 },
                Percentile { percentile: 99.0, latency_ms: 9.0 },
            ],
            gpus: Vec::new(),
            gpu_note: None,
            extra: Vec::new(),
        }
    }

    /// A sweep of two rates, the first of which is sustained.
    pub(crate) fn sample_sweep(model: &str) -> SweepReport {
        let step = |rate: f64, sustained| {
            let mut report = sample(model);
            (report.mode, report.clients) = ("open", None);
            (report.rate_per_second, report.offered_per_second) = (Some(rate), Some(rate));
            Step { rate_per_second: rate, sustained, report }
        };
        let saturation = Saturation {
            rate_per_second: 300.0,
            throughput_per_second: 300.0,
            p50_ms: 2.0,
            p99_ms: 9.0,
            exceeded: true,
        };
        SweepReport {
            target: sample(model).target,
            saturation: Some(saturation),
            steps: vec![step(300.0, true), step(600.0, false)],
            stopped_early: false,
            extra: Vec::new(),
        }
    }

    #[test]
    fn the_table_of_a_run_says_what_came_of_it() {
        let mut report = sample("resnet50");
        report.add("cpu", "93 %");
        let table = report.table();
        for part in [
            "resnet50",
            "910: 900 ok, 10 HTTP 503",
            "300/s",
            "290/s within 50.00 ms",
            "1.50 MB sent, 12 B received",
            "exit_15 7",
            "HTTP 503: queue full",
            "93 %",
            "corrected  2.00 ms",
        ] {
            assert!(table.contains(part), "no \"{part}\" in:\n{table}");
        }
    }

    #[test]
    fn the_table_of_a_sweep_has_a_row_for_every_rate() {
        let table = sample_sweep("m").table();
        assert!(table.contains("saturation  300/s"), "{table}");
        let last: Vec<&str> = table.lines().rev().take(2).collect();
        assert!(last[0].ends_with("no") && last[1].ends_with("yes"), "{table}");
    }

    #[test]
    fn names_in_json_are_stable_and_have_their_units() {
        let json = serde_json::to_value(sample("m")).unwrap();
        assert_eq!(json["latency"]["p99_9_ms"], 12.0);
        assert_eq!(json["outcomes"]["status"]["503"], 10);
        assert_eq!(json["goodput_per_second"], 290.0);
        assert_eq!(json["series"][1]["p50_ms"], serde_json::Value::Null);
        let sweep = serde_json::to_value(sample_sweep("m")).unwrap();
        assert_eq!(sweep["saturation"]["rate_per_second"], 300.0);
        assert_eq!(sweep["steps"][1]["sustained"], false);
    }
}
