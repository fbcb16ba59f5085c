//! Pictures of plans: what the GPUs do when, and how long the plans take.

use tessera_plan::residency::{Residency, ResidencyProblem};
use tessera_report::format_microseconds;
use tessera_report::picture::bars::BarChart;
use tessera_report::picture::gantt::{GanttBar, GanttChart, GanttKind, GanttRow, GanttStyle};

use super::ResidencyReport;

/// The kinds of bars, by their places in the legend.
const LOADED: usize = 0;
const DIRECT: usize = 1;
const LOAD: usize = 2;
const FORWARD: usize = 3;
const STALL: usize = 4;

/// How long the plan of each strategy takes.
pub(super) fn total_time_chart(reports: &[ResidencyReport]) -> BarChart {
    let part =
        |time: fn(&ResidencyReport) -> f64| reports.iter().map(|one| time(one) / 1e3).collect();
    BarChart {
        title: "Residency: time to the result by strategy".to_owned(),
        y_label: "time (ms)".to_owned(),
        groups: reports.iter().map(|report| report.strategy.clone()).collect(),
        series: vec![
            ("time to result".to_owned(), part(|report| report.total_us)),
            ("of it stalled".to_owned(), part(|report| report.stall_us)),
        ],
    }
}

/// What the GPUs load, forward and run when.
pub(super) fn residency_gantt(problem: &ResidencyProblem, report: &ResidencyReport) -> GanttChart {
    let (unit, scale) = if report.total_us >= 10_000.0 { ("ms", 1e-3) } else { ("µs", 1.0) };
    let bar = |start: f64, end: f64, label: &str, kind: usize| GanttBar {
        start: start * scale,
        end: end * scale,
        label: label.to_owned(),
        kind,
    };
    let layers = || problem.layers.iter().zip(&report.plan.layers).zip(&report.run.layers);
    let target = problem.target_index();
    let mut rows: Vec<GanttRow> = Vec::new();
    for (number, gpu) in problem.gpus.iter().enumerate() {
        let here = Residency::Loaded { through: number };
        let coming = || layers().filter(move |((_, residency), _)| **residency == here);
        let loads: Vec<GanttBar> = coming()
            .filter_map(|((layer, _), executed)| {
                let span = executed.load?;
                Some(bar(span.start_us, span.end_us, &layer.name, LOAD))
            })
            .collect();
        if loads.is_empty() {
            continue;
        }
        rows.push(GanttRow { name: format!("load to {}", gpu.name), bars: loads });
        if number == target {
            continue;
        }
        let forwards = coming().filter_map(|((layer, _), executed)| {
            let span = executed.forward?;
            Some(bar(span.start_us, span.end_us, &layer.name, FORWARD))
        });
        rows.push(GanttRow { name: format!("NVLink from {}", gpu.name), bars: forwards.collect() });
    }
    let mut running = Vec::with_capacity(problem.layers.len());
    for ((layer, residency), executed) in layers() {
        if executed.stall_us > 0.0 {
            let since = executed.start_us - executed.stall_us;
            let label = format!("waits for {}", layer.name);
            running.push(bar(since, executed.start_us, &label, STALL));
        }
        let kind = if *residency == Residency::Direct { DIRECT } else { LOADED };
        running.push(bar(executed.start_us, executed.end_us, &layer.name, kind));
    }
    let runs_on = problem.gpus.get(target).map_or("", |gpu| gpu.name.as_str());
    rows.push(GanttRow { name: format!("run on {runs_on}"), bars: running });
    let kind = |name: &str, style| GanttKind { name: name.to_owned(), style };
    GanttChart {
        title: format!("{}: {}", report.strategy, format_microseconds(report.total_us)),
        unit,
        rows,
        kinds: vec![
            kind("run from GPU memory", GanttStyle::First),
            kind("run from host memory", GanttStyle::Second),
            kind("load", GanttStyle::Third),
            kind("forward", GanttStyle::Fourth),
            kind("stall", GanttStyle::Waiting),
        ],
    }
}
