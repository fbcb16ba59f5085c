//! Pictures of plans: what the devices do when, and how long the plans take.

use tessera_plan::overflow::{Copied, Device, Problem};

use super::{Compared, Report, micros};
use crate::picture::bars::Bars;
use crate::picture::gantt::{Bar, Gantt, Kind, Row, Style};

/// Most rows for copies of one direction in the picture.
const LANES: usize = 6;

/// How long the plan of each strategy takes.
pub(super) fn makespans(compared: &[Compared]) -> Bars {
    let planned = compared.iter().filter_map(|compared| match compared {
        Compared::Planned(report) => Some((report.strategy.clone(), report.makespan_us)),
        Compared::Failed { .. } => None,
    });
    let (groups, times) = planned.unzip();
    Bars {
        title: "Overflow to the CPU: makespan by strategy".to_owned(),
        y_label: "makespan (µs)".to_owned(),
        groups,
        series: vec![("makespan".to_owned(), times)],
    }
}

/// What the devices do when.
pub(super) fn gantt(problem: &Problem, report: &Report) -> Gantt {
    let (unit, scale) = if report.makespan_us >= 10_000.0 { ("ms", 1e-3) } else { ("µs", 1.0) };
    let bar = |start: f64, end: f64, label: String, kind: usize| Bar {
        start: start * scale,
        end: end * scale,
        label,
        kind,
    };
    let mut rows: Vec<Row> = Vec::new();
    for device in Device::ALL {
        let blocks = problem.blocks.iter().zip(&report.run.blocks);
        let here = blocks.filter(|(_, executed)| executed.device == device);
        let bars = here.map(|(block, executed)| {
            bar(executed.start_us, executed.end_us, block.name.clone(), 0)
        });
        rows.push(Row { name: device.to_string(), bars: bars.collect() });
    }
    for device in [Device::Gpu, Device::Cpu] {
        let copies = report.run.copies.iter().filter(|copy| copy.device == device);
        for (lane, copies) in lanes(copies).into_iter().enumerate() {
            let bars = copies
                .into_iter()
                .map(|copy| bar(copy.start_us, copy.end_us, copy_label(problem, copy), 1));
            let name = if lane == 0 { format!("copies to {device}") } else { String::new() };
            rows.push(Row { name, bars: bars.collect() });
        }
    }
    let kind = |name: &str, style| Kind { name: name.to_owned(), style };
    Gantt {
        title: format!("{}: {}", report.strategy, micros(report.makespan_us)),
        unit,
        rows,
        kinds: vec![kind("block", Style::First), kind("copy", Style::Second)],
    }
}

/// Copies, by when they begin, in rows in which none covers another; at least one row.
fn lanes<'a>(copies: impl Iterator<Item = &'a Copied>) -> Vec<Vec<&'a Copied>> {
    let mut lanes: Vec<Vec<&Copied>> = vec![Vec::new()];
    for copy in copies {
        let is_free =
            |lane: &Vec<&Copied>| lane.last().is_none_or(|last| last.end_us <= copy.start_us);
        match lanes.iter().position(is_free) {
            Some(lane) => lanes[lane].push(copy),
            None if lanes.len() < LANES => lanes.push(vec![copy]),
            // So many at once that they can't be told apart anyway.
            None => lanes[LANES - 1].push(copy),
        }
    }
    lanes
}

fn copy_label(problem: &Problem, copy: &Copied) -> String {
    let name = |block: Option<usize>, none: &str| {
        let block = block.and_then(|block| problem.blocks.get(block));
        block.map_or(none.to_owned(), |block| block.name.clone())
    };
    format!("{} → {}", name(copy.from, "input"), name(copy.to, "result"))
}
