//! What there is to say of a report beside its figures, one line each.

use std::collections::BTreeMap;

use tessera_report::{format_bytes, format_milliseconds, format_rate};

use super::gpu_tables::gpu_notes;
use crate::outcome_collector::OutcomeCounts;
use crate::report::{ExtraFact, LoadReport, TargetSummary};
use crate::sweep::SweepReport;

/// What there is to say of a run, one line each.
pub(super) fn run_facts(report: &LoadReport) -> Vec<(String, String)> {
    let mut facts = target_facts(&report.target);
    let mut add = |key: &str, value: String| facts.push((key.to_owned(), value));
    add("load", describe_load(report));
    let note = if report.stopped_early { ", stopped early" } else { "" };
    let (duration, warm_up) = (report.duration_s, report.warm_up_s);
    add("time", format!("{duration:.1} s after {warm_up:.1} s of warm-up{note}"));
    add("requests", format!("{}: {}", report.requests, describe_outcomes(&report.outcomes)));
    if let Some(offered) = report.offered_per_second {
        add("offered", format!("{}/s", format_rate(offered)));
    }
    add("throughput", format!("{}/s", format_rate(report.throughput_per_second)));
    if let (Some(goodput), Some(deadline)) = (report.goodput_per_second, report.deadline_ms) {
        add(
            "goodput",
            format!("{}/s within {}", format_rate(goodput), format_milliseconds(deadline)),
        );
    }
    let (sent, received) = (format_bytes(report.bytes_sent), format_bytes(report.bytes_received));
    add("bodies", format!("{sent} sent, {received} received"));
    add("connections", report.connections.to_string());
    if let Some(lag) = report.generator_lag_p99_ms {
        add("generator lag", format!("{} (p99; part of the latency)", format_milliseconds(lag)));
    }
    if !report.exits.is_empty() {
        add("exits", join_counts(&report.exits));
    }
    if !report.degraded.is_empty() {
        add("degraded", join_counts(&report.degraded));
    }
    for (kind, message) in &report.messages {
        add("first error", format!("{kind}: {message}"));
    }
    facts.extend(gpu_notes([report].into_iter()));
    append_extra(&mut facts, &report.extra);
    facts
}

/// What there is to say of a sweep, one line each.
pub(super) fn sweep_facts(report: &SweepReport) -> Vec<(String, String)> {
    let mut facts = target_facts(&report.target);
    let mut add = |key: &str, value: String| facts.push((key.to_owned(), value));
    if let Some(first) = report.steps.first() {
        let (duration, warm_up) = (first.report.duration_s, first.report.warm_up_s);
        add("each rate", format!("{duration:.1} s after {warm_up:.1} s of warm-up"));
        if let Some(deadline) = first.report.deadline_ms {
            add("deadline", format_milliseconds(deadline));
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
                    format_rate(saturation.rate_per_second),
                    format_milliseconds(saturation.p50_ms),
                    format_milliseconds(saturation.p99_ms)
                )
            }
        },
    );
    if report.stopped_early {
        add("note", "stopped early".to_owned());
    }
    facts.extend(gpu_notes(report.steps.iter().map(|step| &step.report)));
    append_extra(&mut facts, &report.extra);
    facts
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

fn append_extra(facts: &mut Vec<(String, String)>, extra: &[ExtraFact]) {
    facts.extend(extra.iter().map(|line| (line.key.clone(), line.value.clone())));
}

fn describe_load(report: &LoadReport) -> String {
    match (report.clients, report.rate_per_second, report.arrivals) {
        (Some(1), ..) => "closed loop, 1 client".to_owned(),
        (Some(clients), ..) => format!("closed loop, {clients} clients"),
        (None, Some(per_second), Some(arrivals)) => {
            format!("open loop, {}/s, {arrivals} arrivals", format_rate(per_second))
        }
        _ => report.mode.to_owned(),
    }
}

fn describe_outcomes(outcomes: &OutcomeCounts) -> String {
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

fn join_counts(counts: &BTreeMap<String, u64>) -> String {
    let parts = counts.iter().map(|(value, count)| format!("{value} {count}"));
    parts.collect::<Vec<_>>().join(", ")
}
