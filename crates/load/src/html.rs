//! Reports as HTML with plots.

use crate::gpu_table::{self, GPU_HEADS, STEP_GPU_HEADS};
use crate::page;
use crate::plot::{Axis, Bar, Line, Plot};
use crate::report::Report;
use crate::scale::Kind;
use crate::sweep::{Step, SweepReport};
use crate::table;

/// A run as a page.
pub(crate) fn of_run(report: &Report) -> String {
    let mut content = page::facts(&table::facts(report));
    let rows = table::latencies(report);
    if !rows.is_empty() {
        content.push_str(&page::table(&table::LATENCY_HEADS, &rows));
    }
    let gpus = gpu_table::of_run(report);
    if !gpus.is_empty() {
        content.push_str(&page::table(&GPU_HEADS, &gpus));
    }
    for plot in plots(report) {
        content.push_str(&plot.svg());
    }
    page::page(&format!("Load on {}", report.target.model), &content)
}

/// A sweep as a page.
pub(crate) fn of_sweep(report: &SweepReport) -> String {
    let mut steps: Vec<&Step> = report.steps.iter().collect();
    steps.sort_by(|a, b| a.rate_per_second.total_cmp(&b.rate_per_second));
    let mut content = page::facts(&table::sweep_facts(report));
    for plot in [achieved(report, &steps), latency_by_rate(report, &steps)] {
        content.push_str(&plot.svg());
    }
    let rows: Vec<Vec<String>> = steps.iter().map(|step| table::step(step)).collect();
    content.push_str(&page::table(&table::STEP_HEADS, &rows));
    let gpus = gpu_table::of_steps(&steps);
    if !gpus.is_empty() {
        content.push_str(&page::table(&STEP_GPU_HEADS, &gpus));
    }
    // The highest rate that was sustained, in detail: it is the one that one would run at.
    let best = steps.iter().rev().find(|step| step.sustained);
    if let Some(best) = best {
        let rate = table::rate(best.rate_per_second);
        content.push_str(&format!("<h2>At {}/s</h2>\n", page::escape(&rate)));
        for plot in plots(&best.report) {
            content.push_str(&plot.svg());
        }
    }
    page::page(&format!("Sweep of {}", report.target.model), &content)
}

fn plots(report: &Report) -> [Plot; 4] {
    [histogram(report), percentiles(report), throughput(report), latency(report)]
}

fn histogram(report: &Report) -> Plot {
    let total: u64 = report.histogram.iter().map(|bin| bin.count).sum();
    let mut plot = Plot::new(
        "Latency of answers",
        Axis { label: "latency (ms, logarithmic)", kind: Kind::Logarithmic },
        Axis { label: "answers (%)", kind: Kind::Linear },
    );
    let height = |count: u64| count as f64 * 100.0 / total.max(1) as f64;
    let bar = |bin: &crate::latency::Bin| Bar {
        from: bin.from_ms,
        to: bin.to_ms,
        height: height(bin.count),
    };
    plot.bars = report.histogram.iter().map(bar).collect();
    plot
}

fn percentiles(report: &Report) -> Plot {
    let title = match report.latency_corrected {
        Some(_) => "Latency by percentile, corrected",
        None => "Latency by percentile",
    };
    let mut plot = Plot::new(
        title,
        Axis { label: "percentile (%)", kind: Kind::Nines },
        Axis { label: "latency (ms, logarithmic)", kind: Kind::Logarithmic },
    );
    let point = |point: &crate::latency::Percentile| (point.percentile, Some(point.latency_ms));
    let points = report.percentiles.iter().map(point).collect();
    plot.lines = vec![Line { name: "latency", points, dots: false }];
    plot
}

fn throughput(report: &Report) -> Plot {
    let mut plot = Plot::new(
        "Throughput over time",
        Axis { label: "time (s)", kind: Kind::Linear },
        Axis { label: "per second", kind: Kind::Linear },
    );
    plot.lines = vec![
        over_time(report, "answers", |second| Some(second.throughput_per_second)),
        over_time(report, "errors", |second| Some(second.errors as f64)),
    ];
    plot
}

fn latency(report: &Report) -> Plot {
    let mut plot = Plot::new(
        "Latency over time",
        Axis { label: "time (s)", kind: Kind::Linear },
        Axis { label: "latency (ms)", kind: Kind::Linear },
    );
    plot.lines = vec![
        over_time(report, "p50", |second| second.p50_ms),
        over_time(report, "p99", |second| second.p99_ms),
    ];
    plot
}

fn over_time(
    report: &Report,
    name: &'static str,
    value: fn(&crate::series::Second) -> Option<f64>,
) -> Line {
    let points = report.series.iter().map(|second| (second.at_s as f64, value(second)));
    Line { name, points: points.collect(), dots: false }
}

fn achieved(report: &SweepReport, steps: &[&Step]) -> Plot {
    let mut plot = by_rate(
        "Offered and achieved",
        Axis { label: "answers (per second)", kind: Kind::Linear },
        report,
    );
    plot.lines = vec![
        line("offered", steps, |step| Some(offered(step))),
        line("throughput", steps, |step| Some(step.report.throughput_per_second)),
    ];
    if steps.iter().any(|step| step.report.goodput_per_second.is_some()) {
        plot.lines.push(line("goodput", steps, |step| step.report.goodput_per_second));
    }
    plot
}

fn latency_by_rate(report: &SweepReport, steps: &[&Step]) -> Plot {
    let mut plot = by_rate(
        "Latency by rate",
        Axis { label: "latency (ms, logarithmic)", kind: Kind::Logarithmic },
        report,
    );
    plot.lines = vec![
        line("p50", steps, |step| step.report.latency.map(|latency| latency.p50_ms)),
        line("p99", steps, |step| step.report.latency.map(|latency| latency.p99_ms)),
    ];
    plot
}

fn by_rate(title: &'static str, y: Axis, report: &SweepReport) -> Plot {
    let mut plot = Plot::new(title, Axis { label: "offered (per second)", kind: Kind::Linear }, y);
    // At what was offered in fact, as the points are.
    let best = report.saturation.and_then(|saturation| {
        let rate = saturation.rate_per_second;
        report.steps.iter().find(|step| step.sustained && step.rate_per_second == rate)
    });
    plot.mark = best.map(|step| {
        (offered(step), format!("saturation: {}/s", table::rate(step.rate_per_second)))
    });
    plot
}

fn line(name: &'static str, steps: &[&Step], value: fn(&Step) -> Option<f64>) -> Line {
    let points = steps.iter().map(|step| (offered(step), value(step))).collect();
    Line { name, points, dots: true }
}

fn offered(step: &Step) -> f64 {
    step.report.offered_per_second.unwrap_or(step.rate_per_second)
}

#[cfg(test)]
mod tests {
    use crate::gpu_table::tests::gpu;
    use crate::table::tests::{sample, sample_sweep};

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
        let html = sample("resnet50").html();
        assert_well_formed(&html);
        assert_self_contained(&html);
        assert_eq!(html.matches("<svg").count(), 4);
        for part in ["latency (ms, logarithmic)", "time (s)", "p99.9", "resnet50"] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn a_sweep_is_a_page_with_the_saturation_marked() {
        let html = sample_sweep("m").html();
        assert_well_formed(&html);
        assert_self_contained(&html);
        assert!(html.contains("class=\"mark\"") && html.contains("saturation: 300/s"));
    }

    #[test]
    fn names_are_escaped_wherever_they_come_from() {
        let evil = "</title><script>alert('x')</script>&\"";
        let mut report = sample(evil);
        report.target.url = evil.to_owned();
        report.messages = [(evil.to_owned(), evil.to_owned())].into();
        report.exits = [(evil.to_owned(), 1)].into();
        report.gpus = vec![gpu(evil)];
        report.gpu_note = Some(evil.to_owned());
        report.add(evil, evil);
        assert_well_formed(&report.html());
        assert_self_contained(&report.html());
        assert_self_contained(&sample_sweep(evil).html());
        assert!(report.html().contains("&lt;/title&gt;&lt;script&gt;"));
    }

    #[test]
    fn a_run_without_answers_is_a_page_too() {
        let mut report = sample("m");
        report.latency = None;
        report.latency_corrected = None;
        report.series.clear();
        report.histogram.clear();
        report.percentiles.clear();
        let html = report.html();
        assert_well_formed(&html);
        assert!(html.contains("nothing to show"));
    }
}
