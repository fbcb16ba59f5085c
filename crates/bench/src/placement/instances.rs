//! Strategies on the instances of a file, whose optimum may be known.

use std::collections::BTreeSet;
use std::path::Path;
use tessera_report::{Table, format_milliseconds, output};

use serde::Serialize;
use tessera_command::problem_file;
use tessera_core::Result;
use tessera_plan::placement::PlacementInstances;

use super::arguments::BenchPlacement;
use super::measure::{
    self, StrategySettings, format_loss, mean_of, optimality_gap, plan_in_turns, relative_loss,
    spread_of, worst_of,
};
use super::scenario::count_splits;

#[derive(Serialize)]
struct InstancesReport {
    /// Each instance with each strategy.
    instances: Vec<InstanceRow>,
    /// Each strategy on all instances.
    summary: Vec<StrategySummary>,
}

#[derive(Serialize)]
struct InstanceRow {
    instance: usize,
    strategy: String,
    nodes: usize,
    layers: usize,
    /// None where there is no plan, or none was found.
    latency_seconds: Option<f64>,
    optimum_seconds: Option<f64>,
    loss: Option<f64>,
    splits: Option<usize>,
    proved: bool,
    gap: Option<f64>,
    plan_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct StrategySummary {
    strategy: String,
    /// With how many nodes; all where there is no number.
    nodes: Option<usize>,
    instances: usize,
    failed: usize,
    proved: usize,
    /// How far the latency is from the optimum at most.
    worst_difference_seconds: Option<f64>,
    mean_loss: Option<f64>,
    worst_loss: Option<f64>,
    median_plan_ms: Option<f64>,
    worst_plan_ms: Option<f64>,
}

pub(crate) fn bench_instances(arguments: &BenchPlacement, file: &Path) -> Result<()> {
    let names = super::chosen_strategies(arguments, &["exact"])?;
    let given: PlacementInstances = problem_file::read_problem(file)?;
    let settings = StrategySettings { seed: arguments.seed, time_limit: arguments.time_limit };
    let problems: Vec<_> = given.iter_problems().collect();
    for (number, (problem, _)) in problems.iter().enumerate() {
        let within = format!("{}: instances[{number}]", problem_file::display_name(file));
        problem.check_consistency().map_err(|error| error.with_context(within))?;
    }
    let bar = output::progress_bar(problems.len() as u64, "planning");
    let mut rows = Vec::with_capacity(problems.len() * names.len());
    for (instance, (problem, known)) in problems.iter().enumerate() {
        let measured = plan_in_turns(&names, problem, settings);
        let optimum =
            known.or_else(|| measure::proved_optimum(&names, &measured, problem, settings));
        for (strategy, result) in names.iter().zip(&measured) {
            let planned = result.planned.as_ref().ok();
            rows.push(InstanceRow {
                instance,
                strategy: strategy.clone(),
                nodes: problem.nodes.len(),
                layers: problem.layers.len(),
                latency_seconds: result.latency(),
                optimum_seconds: optimum,
                loss: relative_loss(result.latency(), optimum),
                splits: planned.map(|planned| count_splits(&planned.plan)),
                proved: planned.is_some_and(|planned| planned.proved),
                gap: planned.and_then(optimality_gap),
                plan_ms: result.plan_ms(),
                error: result.planned.as_ref().err().map(|error| error.to_string()),
            });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let sizes: BTreeSet<usize> = rows.iter().map(|row| row.nodes).collect();
    let of = |strategy: &String, nodes: Option<usize>| {
        let all = rows.iter().filter(|row| row.strategy == *strategy);
        let wanted = all.filter(|row| nodes.is_none_or(|nodes| row.nodes == nodes));
        summarise_strategy(strategy, nodes, &wanted.collect::<Vec<_>>())
    };
    if arguments.csv {
        return print_instances_csv(&rows);
    }
    if !arguments.json {
        let by_size =
            sizes.iter().flat_map(|&nodes| names.iter().map(move |name| (name, Some(nodes))));
        let all = names.iter().map(|name| (name, None));
        return print_summaries(by_size.chain(all).map(|(name, nodes)| of(name, nodes)));
    }
    let summary = names.iter().map(|name| of(name, None)).collect();
    output::print_json(&InstancesReport { instances: rows, summary })
}

fn summarise_strategy(
    strategy: &str,
    nodes: Option<usize>,
    rows: &[&InstanceRow],
) -> StrategySummary {
    let losses = || rows.iter().filter_map(|row| row.loss);
    let differences =
        rows.iter().filter_map(|row| Some((row.latency_seconds? - row.optimum_seconds?).abs()));
    let times = spread_of(rows.iter().map(|row| row.plan_ms));
    StrategySummary {
        strategy: strategy.to_owned(),
        nodes,
        instances: rows.len(),
        failed: rows.iter().filter(|row| row.latency_seconds.is_none()).count(),
        proved: rows.iter().filter(|row| row.proved).count(),
        worst_difference_seconds: worst_of(differences),
        mean_loss: mean_of(losses()),
        worst_loss: worst_of(losses()),
        median_plan_ms: times.as_ref().map(|times| times.median),
        worst_plan_ms: times.as_ref().map(|times| times.max),
    }
}

fn print_summaries(rows: impl Iterator<Item = StrategySummary>) -> Result<()> {
    let mut table = Table::new(&[
        ">nodes",
        "strategy",
        ">instances",
        ">no plan",
        ">proved",
        ">off by",
        ">loss",
        ">worst",
        ">time",
        ">most",
    ]);
    for row in rows {
        let time = |time: Option<f64>| time.map_or("-".to_owned(), format_milliseconds);
        table.add_row([
            row.nodes.map_or("all".to_owned(), |nodes| nodes.to_string()),
            row.strategy.clone(),
            row.instances.to_string(),
            row.failed.to_string(),
            row.proved.to_string(),
            row.worst_difference_seconds.map_or("-".to_owned(), |off| format!("{off:.1e} s")),
            format_loss(row.mean_loss),
            format_loss(row.worst_loss),
            time(row.median_plan_ms),
            time(row.worst_plan_ms),
        ]);
    }
    table.print_table()
}

fn print_instances_csv(rows: &[InstanceRow]) -> Result<()> {
    let mut table = Table::new(&[
        "instance",
        "strategy",
        "nodes",
        "layers",
        "latency_seconds",
        "optimum_seconds",
        "loss",
        "splits",
        "proved",
        "plan_ms",
        "error",
    ]);
    let text = |figure: Option<f64>| figure.map_or(String::new(), |figure| figure.to_string());
    for row in rows {
        table.add_row([
            row.instance.to_string(),
            row.strategy.clone(),
            row.nodes.to_string(),
            row.layers.to_string(),
            text(row.latency_seconds),
            text(row.optimum_seconds),
            text(row.loss),
            row.splits.map_or(String::new(), |splits| splits.to_string()),
            row.proved.to_string(),
            row.plan_ms.to_string(),
            row.error.clone().unwrap_or_default(),
        ]);
    }
    table.print_csv()
}
