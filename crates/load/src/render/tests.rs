//! What people see of made-up reports.

use super::samples::{sample_gpu, sample_run, sample_sweep};
use super::*;

#[test]
fn the_table_of_a_run_says_what_came_of_it() {
    let mut report = sample_run("resnet50");
    report.add_extra("cpu", "93 %");
    let table = render_load_table(&report);
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
    let table = render_sweep_table(&sample_sweep("m"));
    assert!(table.contains("saturation  300/s"), "{table}");
    let last: Vec<&str> = table.lines().rev().take(2).collect();
    assert!(last[0].ends_with("no") && last[1].ends_with("yes"), "{table}");
}

#[test]
fn names_in_json_are_stable_and_have_their_units() {
    let json = serde_json::to_value(sample_run("m")).unwrap();
    assert_eq!(json["latency"]["p99_9_ms"], 12.0);
    assert_eq!(json["outcomes"]["status"]["503"], 10);
    assert_eq!(json["goodput_per_second"], 290.0);
    assert_eq!(json["series"][1]["p50_ms"], serde_json::Value::Null);
    let sweep = serde_json::to_value(sample_sweep("m")).unwrap();
    assert_eq!(sweep["saturation"]["rate_per_second"], 300.0);
    assert_eq!(sweep["steps"][1]["sustained"], false);
}

#[test]
fn the_tables_have_a_row_for_every_gpu() {
    let mut report = sample_run("m");
    report.gpus = vec![sample_gpu("GPU-1"), sample_gpu("GPU-2")];
    report.gpus[1].device = Some("cuda:1".to_owned());
    report.gpus[1].joules = None;
    report.gpus[1].rows_per_answer = None;
    report.gpus[1].note = Some("its counter of energy went backwards".to_owned());
    for text in [render_load_table(&report), render_load_page(&report)] {
        for part in ["GPU-1", "1200.00 J", "400.0 W", "1.33 J", "333.33 mJ", "87 %", "2.50 GB"] {
            assert!(text.contains(part), "no \"{part}\" in:\n{text}");
        }
        for part in ["cuda:1", "energy unknown: its counter of energy went backwards"] {
            assert!(text.contains(part), "no \"{part}\" in:\n{text}");
        }
    }
    let mut sweep = sample_sweep("m");
    sweep.steps[1].report.gpus = vec![sample_gpu("GPU-1")];
    for text in [render_sweep_table(&sweep), render_sweep_page(&sweep)] {
        assert!(text.contains("energy/row") && text.contains("333.33 mJ"), "{text}");
    }
}

#[test]
fn without_a_page_of_metrics_nothing_is_said_of_gpus() {
    let report = sample_run("m");
    assert!(
        !render_load_table(&report).contains("gpu")
            && !render_load_page(&report).contains("energy")
    );
    let sweep = sample_sweep("m");
    assert!(
        !render_sweep_table(&sweep).contains("gpu")
            && !render_sweep_page(&sweep).contains("energy")
    );
    let json = serde_json::to_value(report).unwrap();
    assert!(json.get("gpus").is_none() && json.get("gpu_note").is_none());
}

#[test]
fn a_page_without_gpus_is_a_line_of_the_report() {
    let note = "unknown: http://a/metrics has no metrics of GPUs";
    let mut sweep = sample_sweep("m");
    for step in &mut sweep.steps {
        step.report.gpu_note = Some(note.to_owned());
    }
    for text in [
        render_load_table(&sweep.steps[0].report),
        render_sweep_table(&sweep),
        render_sweep_page(&sweep),
    ] {
        assert_eq!(text.matches(note).count(), 1, "{text}");
    }
}

#[test]
fn names_in_json_have_their_units() {
    let mut report = sample_run("m");
    report.gpus = vec![sample_gpu("GPU-1")];
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["gpus"][0]["joules"], 1200.0);
    assert_eq!(json["gpus"][0]["highest_memory_bytes"], 2_500_000_000_u64);
}

/// Every element that is opened is closed, in order, and attributes are quoted.
fn assert_well_formed(html: &str) {
    let mut rest = html.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut open: Vec<&str> = Vec::new();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!html.contains("NaN") && !html.contains("inf\""), "a number that is none");
}

/// Nothing is fetched.
fn assert_self_contained(html: &str) {
    for part in ["src=", "href=", "url(", "@import", "<script"] {
        assert!(!html.contains(part), "{part}");
    }
}

#[test]
fn a_run_is_a_page_with_four_plots() {
    let html = render_load_page(&sample_run("resnet50"));
    assert_well_formed(&html);
    assert_self_contained(&html);
    assert_eq!(html.matches("<svg").count(), 4);
    for part in ["latency (ms, logarithmic)", "time (s)", "p99.9", "resnet50"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn a_sweep_is_a_page_with_the_saturation_marked() {
    let html = render_sweep_page(&sample_sweep("m"));
    assert_well_formed(&html);
    assert_self_contained(&html);
    assert!(html.contains("class=\"mark\"") && html.contains("saturation: 300/s"));
}

#[test]
fn names_are_escaped_wherever_they_come_from() {
    let evil = "</title><script>alert('x')</script>&\"";
    let mut report = sample_run(evil);
    report.target.url = evil.to_owned();
    report.messages = [(evil.to_owned(), evil.to_owned())].into();
    report.exits = [(evil.to_owned(), 1)].into();
    report.gpus = vec![sample_gpu(evil)];
    report.gpu_note = Some(evil.to_owned());
    report.add_extra(evil, evil);
    assert_well_formed(&render_load_page(&report));
    assert_self_contained(&render_load_page(&report));
    assert_self_contained(&render_sweep_page(&sample_sweep(evil)));
    assert!(render_load_page(&report).contains("&lt;/title&gt;&lt;script&gt;"));
}

#[test]
fn a_run_without_answers_is_a_page_too() {
    let mut report = sample_run("m");
    report.latency = None;
    report.latency_corrected = None;
    report.series.clear();
    report.histogram.clear();
    report.percentiles.clear();
    let html = render_load_page(&report);
    assert_well_formed(&html);
    assert!(html.contains("nothing to show"));
}
