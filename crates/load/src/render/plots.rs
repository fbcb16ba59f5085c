//! Plots of reports.

use tessera_report::format_rate;
use tessera_report::picture::histogram::{HistogramBar, HistogramChart};
use tessera_report::picture::lines::{LineChart, LineSeries};
use tessera_report::picture::{AxisKind, ChartAxis, InlineSvg};

use crate::latency::LatencyBin;
use crate::report::LoadReport;
use crate::series::Second;
use crate::sweep::{SweepReport, SweepStep};

/// The plots of a run.
pub(super) fn run_plots(report: &LoadReport) -> [InlineSvg; 4] {
    [
        histogram_plot(report).to_inline_svg(),
        percentile_plot(report).to_inline_svg(),
        throughput_plot(report).to_inline_svg(),
        latency_plot(report).to_inline_svg(),
    ]
}

/// The plots of a sweep, whose steps are in the order of their rates.
pub(super) fn sweep_plots(report: &SweepReport, steps: &[&SweepStep]) -> [InlineSvg; 2] {
    [
        achieved_plot(report, steps).to_inline_svg(),
        latency_by_rate_plot(report, steps).to_inline_svg(),
    ]
}

fn histogram_plot(report: &LoadReport) -> HistogramChart {
    let total: u64 = report.histogram.iter().map(|bin| bin.count).sum();
    let bar = |bin: &LatencyBin| HistogramBar {
        from: bin.from_ms,
        to: bin.to_ms,
        height: bin.count as f64 * 100.0 / total.max(1) as f64,
    };
    HistogramChart {
        title: "Latency of answers".to_owned(),
        x: latency_axis(),
        y_label: "answers (%)".to_owned(),
        bars: report.histogram.iter().map(bar).collect(),
    }
}

fn percentile_plot(report: &LoadReport) -> LineChart {
    let title = match report.latency_corrected {
        Some(_) => "Latency by percentile, corrected",
        None => "Latency by percentile",
    };
    let points = report.percentiles.iter().map(|point| (point.percentile, point.latency_ms));
    LineChart {
        title: title.to_owned(),
        x: ChartAxis::new(AxisKind::Nines, "percentile (%)"),
        y: latency_axis(),
        series: vec![LineSeries { name: "latency".to_owned(), points: points.collect() }],
        mark: None,
    }
}

fn throughput_plot(report: &LoadReport) -> LineChart {
    let series = vec![
        line_over_time(report, "answers", |second| Some(second.throughput_per_second)),
        line_over_time(report, "errors", |second| Some(second.errors as f64)),
    ];
    plot_over_time("Throughput over time", "per second", series)
}

fn latency_plot(report: &LoadReport) -> LineChart {
    let series = vec![
        line_over_time(report, "p50", |second| second.p50_ms),
        line_over_time(report, "p99", |second| second.p99_ms),
    ];
    plot_over_time("Latency over time", "latency (ms)", series)
}

fn plot_over_time(title: &str, y_label: &str, series: Vec<LineSeries>) -> LineChart {
    LineChart {
        title: title.to_owned(),
        x: ChartAxis::new(AxisKind::FromZero, "time (s)"),
        y: ChartAxis::new(AxisKind::FromZero, y_label),
        series,
        mark: None,
    }
}

fn line_over_time(
    report: &LoadReport,
    name: &str,
    value: fn(&Second) -> Option<f64>,
) -> LineSeries {
    let point = |second: &Second| (second.at_s as f64, value(second).unwrap_or(f64::NAN));
    LineSeries { name: name.to_owned(), points: report.series.iter().map(point).collect() }
}

fn achieved_plot(report: &SweepReport, steps: &[&SweepStep]) -> LineChart {
    let mut series = vec![
        line_by_rate("offered", steps, |step| Some(offered_rate(step))),
        line_by_rate("throughput", steps, |step| Some(step.report.throughput_per_second)),
    ];
    if steps.iter().any(|step| step.report.goodput_per_second.is_some()) {
        series.push(line_by_rate("goodput", steps, |step| step.report.goodput_per_second));
    }
    let axis = ChartAxis::new(AxisKind::FromZero, "answers (per second)");
    plot_by_rate("Offered and achieved", axis, report, series)
}

fn latency_by_rate_plot(report: &SweepReport, steps: &[&SweepStep]) -> LineChart {
    let series = vec![
        line_by_rate("p50", steps, |step| step.report.latency.map(|latency| latency.p50_ms)),
        line_by_rate("p99", steps, |step| step.report.latency.map(|latency| latency.p99_ms)),
    ];
    plot_by_rate("Latency by rate", latency_axis(), report, series)
}

fn plot_by_rate(
    title: &str,
    y: ChartAxis,
    report: &SweepReport,
    series: Vec<LineSeries>,
) -> LineChart {
    // At what was offered in fact, as the points are.
    let best = report.saturation.and_then(|saturation| {
        let rate = saturation.rate_per_second;
        report.steps.iter().find(|step| step.sustained && step.rate_per_second == rate)
    });
    let mark = best.map(|step| {
        (offered_rate(step), format!("saturation: {}/s", format_rate(step.rate_per_second)))
    });
    let x = ChartAxis::new(AxisKind::FromZero, "offered (per second)");
    LineChart { title: title.to_owned(), x, y, series, mark }
}

fn line_by_rate(
    name: &str,
    steps: &[&SweepStep],
    value: fn(&SweepStep) -> Option<f64>,
) -> LineSeries {
    let point = |step: &&SweepStep| (offered_rate(step), value(step).unwrap_or(f64::NAN));
    LineSeries { name: name.to_owned(), points: steps.iter().map(point).collect() }
}

fn latency_axis() -> ChartAxis {
    ChartAxis::new(AxisKind::Logarithmic, "latency (ms, logarithmic)")
}

fn offered_rate(step: &SweepStep) -> f64 {
    step.report.offered_per_second.unwrap_or(step.rate_per_second)
}
