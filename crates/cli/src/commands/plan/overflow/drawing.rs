//! Pictures of plans: what the devices do when, and how long the plans take.

use tessera_plan::overflow::{ExecutedCopy, OverflowDevice, OverflowProblem};
use tessera_report::picture::bars::BarChart;
use tessera_report::picture::gantt::{GanttBar, GanttChart, GanttKind, GanttRow, GanttStyle};

use super::{ComparedOverflow, OverflowReport, format_block_time};

/// Most rows for copies of one direction in the picture.
const LANES: usize = 6;

/// How long the plan of each strategy takes.
pub(super) fn makespan_chart(compared: &[ComparedOverflow]) -> BarChart {
    let planned = compared.iter().filter_map(|compared| match compared {
        ComparedOverflow::Planned(report) => Some((report.strategy.clone(), report.makespan_us)),
        ComparedOverflow::Failed { .. } => None,
    });
    let (groups, times) = planned.unzip();
    BarChart {
        title: "Overflow to the CPU: makespan by strategy".to_owned(),
        y_label: "makespan (µs)".to_owned(),
        groups,
        series: vec![("makespan".to_owned(), times)],
    }
}

/// What the devices do when.
pub(super) fn overflow_gantt(problem: &OverflowProblem, report: &OverflowReport) -> GanttChart {
    let (unit, scale) = if report.makespan_us >= 10_000.0 { ("ms", 1e-3) } else { ("µs", 1.0) };
    let bar = |start: f64, end: f64, label: String, kind: usize| GanttBar {
        start: start * scale,
        end: end * scale,
        label,
        kind,
    };
    let mut rows: Vec<GanttRow> = Vec::new();
    for device in OverflowDevice::ALL {
        let blocks = problem.blocks.iter().zip(&report.run.blocks);
        let here = blocks.filter(|(_, executed)| executed.device == device);
        let bars = here.map(|(block, executed)| {
            bar(executed.start_us, executed.end_us, block.name.clone(), 0)
        });
        rows.push(GanttRow { name: device.to_string(), bars: bars.collect() });
    }
    for device in [OverflowDevice::Gpu, OverflowDevice::Cpu] {
        let copies = report.run.copies.iter().filter(|copy| copy.device == device);
        for (lane, copies) in copy_lanes(copies).into_iter().enumerate() {
            let bars = copies
                .into_iter()
                .map(|copy| bar(copy.start_us, copy.end_us, copy_label(problem, copy), 1));
            let name = if lane == 0 { format!("copies to {device}") } else { String::new() };
            rows.push(GanttRow { name, bars: bars.collect() });
        }
    }
    let kind = |name: &str, style| GanttKind { name: name.to_owned(), style };
    GanttChart {
        title: format!("{}: {}", report.strategy, format_block_time(report.makespan_us)),
        unit,
        rows,
        kinds: vec![kind("block", GanttStyle::First), kind("copy", GanttStyle::Second)],
    }
}

/// Copies, by when they begin, in rows in which none covers another; at least one row.
fn copy_lanes<'a>(copies: impl Iterator<Item = &'a ExecutedCopy>) -> Vec<Vec<&'a ExecutedCopy>> {
    let mut lanes: Vec<Vec<&ExecutedCopy>> = vec![Vec::new()];
    for copy in copies {
        let is_free =
            |lane: &Vec<&ExecutedCopy>| lane.last().is_none_or(|last| last.end_us <= copy.start_us);
        match lanes.iter().position(is_free) {
            Some(lane) => lanes[lane].push(copy),
            None if lanes.len() < LANES => lanes.push(vec![copy]),
            // So many at once that they can't be told apart anyway.
            None => lanes[LANES - 1].push(copy),
        }
    }
    lanes
}

fn copy_label(problem: &OverflowProblem, copy: &ExecutedCopy) -> String {
    let name = |block: Option<usize>, none: &str| {
        let block = block.and_then(|block| problem.blocks.get(block));
        block.map_or(none.to_owned(), |block| block.name.clone())
    };
    format!("{} → {}", name(copy.from, "input"), name(copy.to, "result"))
}
