//! Section 7.2 of the addnn thesis: strategies on hierarchies of more and more nodes.

use std::process::Command;
use tessera_report::{Table, format_bytes, format_milliseconds, output};

use serde::{Deserialize, Serialize};
use tessera_command::problem_file;
use tessera_core::{Error, Result};
use tessera_plan::placement::{
    HierarchyScenario, PlacementPlan, PlacementProblem, iot_edge_cloud, resnet152_model,
    vgg13_model,
};
use tessera_report::picture::lines::{LineChart, LineSeries, combine_charts};
use tessera_report::picture::{AxisKind, ChartAxis};

use super::arguments::BenchPlacement;
use super::measure::{
    self, StrategySettings, TimeSpread, format_loss, mean_of, plan_in_turns, relative_loss,
    spread_of, worst_of,
};
use crate::process_memory;

/// What the thesis compares, and one that fills nodes one after the other.
const COMPARED_STRATEGIES: [&str; 4] = ["exact", "genetic", "first-fit", "cloud"];

/// In how many processes memory is measured.
const MEMORY_PROCESSES: usize = 5;

#[derive(Serialize)]
struct HierarchyReport<'a> {
    scenario: &'a str,
    model: &'a str,
    variant: u8,
    seed: u64,
    repetitions: usize,
    rows: Vec<HierarchyRow>,
}

/// A strategy on so many nodes.
#[derive(Serialize)]
struct HierarchyRow {
    nodes: usize,
    strategy: String,
    /// Problems for which it found no plan.
    failed: usize,
    /// Problems for which it proved that its plan is the best.
    proved: usize,
    plan_ms: Option<TimeSpread>,
    /// What planning one problem adds to a process' memory at its peak, where that can be measured.
    memory_bytes: Option<u64>,
    /// Mean of the predicted latencies.
    latency_seconds: Option<f64>,
    mean_loss: Option<f64>,
    worst_loss: Option<f64>,
    /// Mean number of split points.
    splits: Option<f64>,
}

/// What a process that plans one problem says.
#[derive(Serialize, Deserialize)]
struct PlanningMemory {
    memory_bytes: u64,
}

pub(crate) fn bench_hierarchies(arguments: &BenchPlacement) -> Result<()> {
    let names = super::chosen_strategies(arguments, &COMPARED_STRATEGIES)?;
    let repetitions = arguments.repetitions.get();
    let counts = arguments.nodes.clone();
    let bar = output::progress_bar((counts.clone().count() * repetitions) as u64, "planning");
    let mut rows = Vec::new();
    for nodes in counts {
        let mut of_all = Vec::with_capacity(repetitions);
        for repetition in 0..repetitions {
            let (problem, settings) = draw_hierarchy(arguments, nodes, repetition);
            let measured = plan_in_turns(&names, &problem, settings);
            let optimum = measure::proved_optimum(&names, &measured, &problem, settings);
            of_all.push((measured, optimum));
            bar.inc(1);
        }
        for (at, strategy) in names.iter().enumerate() {
            let results = || of_all.iter().map(|(measured, optimum)| (&measured[at], *optimum));
            let plans = || results().filter_map(|(result, _)| result.planned.as_ref().ok());
            let losses = || {
                results().filter_map(|(result, optimum)| relative_loss(result.latency(), optimum))
            };
            rows.push(HierarchyRow {
                nodes,
                strategy: strategy.clone(),
                failed: repetitions - plans().count(),
                proved: plans().filter(|planned| planned.proved).count(),
                plan_ms: spread_of(results().map(|(result, _)| result.plan_ms())),
                memory_bytes: least_planning_memory(arguments, nodes, strategy),
                latency_seconds: mean_of(plans().map(|planned| planned.latency_seconds)),
                mean_loss: mean_of(losses()),
                worst_loss: worst_of(losses()),
                splits: mean_of(plans().map(|planned| count_splits(&planned.plan) as f64)),
            });
        }
    }
    bar.finish_and_clear();
    let report = HierarchyReport {
        scenario: &arguments.scenario,
        model: &arguments.model,
        variant: arguments.variant,
        seed: arguments.seed,
        repetitions,
        rows,
    };
    if let Some(file) = &arguments.plot {
        problem_file::write_text(file, &plot_hierarchies(&report, &names))?;
    }
    if arguments.json {
        output::print_json(&report)
    } else if arguments.csv {
        print_hierarchy_csv(&report.rows)
    } else {
        print_hierarchy_table(&report)
    }
}

/// The problem with so many nodes of that number, and how strategies are asked about it.
fn draw_hierarchy(
    arguments: &BenchPlacement,
    nodes: usize,
    repetition: usize,
) -> (PlacementProblem, StrategySettings) {
    let variant = usize::from(arguments.variant);
    let model = match arguments.model.as_str() {
        "vgg13" => vgg13_model(variant),
        _ => resnet152_model(variant),
    };
    let seed = arguments.seed.wrapping_mul(1_000_003).wrapping_add(repetition as u64);
    let problem = iot_edge_cloud(nodes, &model, seed, &HierarchyScenario::default());
    (problem, StrategySettings { seed, time_limit: arguments.time_limit })
}

/// How often neighbouring layers are on different nodes.
pub(crate) fn count_splits(plan: &PlacementPlan) -> usize {
    let of = |nodes: &[usize]| nodes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    plan.models.iter().map(|model| of(&model.nodes)).sum()
}

/// Plans the first problem in this process, which has done nothing else, and prints what memory it
/// took.
pub(crate) fn measure_planning_memory(arguments: &BenchPlacement) -> Result<()> {
    let (problem, settings) = draw_hierarchy(arguments, *arguments.nodes.start(), 0);
    // The program itself is no part of what a plan takes: its pages are there after a plan of one
    // layer.
    let mut tiny = problem.clone();
    tiny.models.iter_mut().for_each(|model| model.layers.truncate(1));
    for name in super::chosen_strategies(arguments, &[])? {
        measure::plan_once(&name, &tiny, settings).0?;
        let file = "/proc/self/clear_refs";
        // From here on the peak counts anew.
        std::fs::write(file, "5").map_err(|error| Error::from_io(file, &error))?;
        let before = process_memory::resident_bytes("self")?;
        measure::plan_once(&name, &problem, settings).0?;
        let peak = process_memory::status_bytes("self", "VmHWM")?;
        output::print_json_line(&PlanningMemory { memory_bytes: peak.saturating_sub(before) })?;
    }
    Ok(())
}

/// What planning one problem adds to the memory of a fresh process: the least of some, since what
/// else gets mapped meanwhile only adds to it. None where Linux doesn't say, or where the strategy
/// is a program, whose memory is not ours.
fn least_planning_memory(arguments: &BenchPlacement, nodes: usize, strategy: &str) -> Option<u64> {
    if strategy.contains('/') {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    let figures = [
        ("--nodes", nodes.to_string()),
        ("--seed", arguments.seed.to_string()),
        ("--model", arguments.model.clone()),
        ("--variant", arguments.variant.to_string()),
        ("--strategy", strategy.to_owned()),
        ("--time-limit", arguments.time_limit.as_secs_f64().to_string()),
    ];
    let measured = (0..MEMORY_PROCESSES).map(|_| {
        let mut command = Command::new(&program);
        command.args(["bench", "placement", "--alone"]);
        for (option, figure) in &figures {
            command.args([option, figure.as_str()]);
        }
        let output = command.output().ok()?;
        serde_json::from_slice(&output.stdout).ok().map(|alone: PlanningMemory| alone.memory_bytes)
    });
    measured.min().flatten()
}

fn print_hierarchy_table(report: &HierarchyReport<'_>) -> Result<()> {
    let mut table = Table::new(&[
        ">nodes", "strategy", ">time", ">least", ">most", ">memory", ">latency", ">loss", ">worst",
        ">splits", ">no plan",
    ]);
    for row in &report.rows {
        let time = |figure: fn(&TimeSpread) -> f64| {
            row.plan_ms.as_ref().map_or("-".to_owned(), |times| format_milliseconds(figure(times)))
        };
        table.add_row([
            row.nodes.to_string(),
            row.strategy.clone(),
            time(|times| times.median),
            time(|times| times.min),
            time(|times| times.max),
            row.memory_bytes.map_or("-".to_owned(), format_bytes),
            row.latency_seconds
                .map_or("-".to_owned(), |latency| format_milliseconds(latency * 1e3)),
            format_loss(row.mean_loss),
            format_loss(row.worst_loss),
            row.splits.map_or("-".to_owned(), |splits| format!("{splits:.1}")),
            row.failed.to_string(),
        ]);
    }
    table.print_table()?;
    output::print_line(&format!(
        "{} variant {} on {}, {} problems for each number of nodes; loss against the proved optimum",
        report.model, report.variant, report.scenario, report.repetitions
    ))
}

/// The same with plain figures.
fn print_hierarchy_csv(rows: &[HierarchyRow]) -> Result<()> {
    let mut table = Table::new(&[
        "nodes",
        "strategy",
        "plan_ms_median",
        "plan_ms_min",
        "plan_ms_max",
        "memory_bytes",
        "latency_seconds",
        "mean_loss",
        "worst_loss",
        "splits",
        "proved",
        "failed",
    ]);
    let text = |figure: Option<f64>| figure.map_or(String::new(), |figure| figure.to_string());
    for row in rows {
        let times = row.plan_ms.as_ref();
        table.add_row([
            row.nodes.to_string(),
            row.strategy.clone(),
            text(times.map(|times| times.median)),
            text(times.map(|times| times.min)),
            text(times.map(|times| times.max)),
            row.memory_bytes.map_or(String::new(), |bytes| bytes.to_string()),
            text(row.latency_seconds),
            text(row.mean_loss),
            text(row.worst_loss),
            text(row.splits),
            row.proved.to_string(),
            row.failed.to_string(),
        ]);
    }
    table.print_csv()
}

/// Figures 7.3 to 7.5 of the thesis.
fn plot_hierarchies(report: &HierarchyReport<'_>, names: &[String]) -> String {
    let picture = |title: &str,
                   label: &str,
                   kind: AxisKind,
                   figure: fn(&HierarchyRow) -> Option<f64>| LineChart {
        title: format!("{title}, {} variant {}", report.model, report.variant),
        x: ChartAxis::new(AxisKind::Linear, "nodes"),
        y: ChartAxis::new(kind, label),
        series: names
            .iter()
            .map(|name| {
                let rows = report.rows.iter().filter(|row| row.strategy == *name);
                let points =
                    rows.map(|row| (row.nodes as f64, figure(row).unwrap_or(f64::NAN))).collect();
                LineSeries { name: name.clone(), points }
            })
            .collect(),
        mark: None,
    };
    combine_charts(&[
        picture("Execution time", "median time to plan (ms)", AxisKind::Logarithmic, |row| {
            row.plan_ms.as_ref().map(|times| times.median)
        }),
        picture("Memory", "memory to plan (MB)", AxisKind::FromZero, |row| {
            row.memory_bytes.map(|bytes| bytes as f64 / 1e6)
        }),
        picture("Predicted latency", "mean expected latency (ms)", AxisKind::FromZero, |row| {
            row.latency_seconds.map(|latency| latency * 1e3)
        }),
        picture("Loss against the optimum", "mean loss (%)", AxisKind::FromZero, |row| {
            row.mean_loss.map(|loss| loss * 100.0)
        }),
        picture("Split points", "mean number of splits", AxisKind::FromZero, |row| row.splits),
    ])
}
