//! Strategies on the instances of a file, whose optimum may be known.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use tessera_core::Result;
use tessera_plan::placement::Instances;

use super::measure::{self, Asking, gap, in_turns, loss, mean, percent, spread, worst};
use super::scenario::splits;
use crate::arguments::bench::placement::BenchPlacement;
use crate::output::{self, Table};
use crate::problem_file;

#[derive(Serialize)]
struct Report {
    /// Each instance with each strategy.
    instances: Vec<Row>,
    /// Each strategy on all instances.
    summary: Vec<Summary>,
}

#[derive(Serialize)]
struct Row {
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
struct Summary {
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

pub(super) fn run(arguments: &BenchPlacement, file: &Path) -> Result<()> {
    let names = super::strategies(arguments, &["exact"])?;
    let given: Instances = problem_file::read(file)?;
    let asking = Asking { seed: arguments.seed, time_limit: arguments.time_limit };
    let problems: Vec<_> = given.problems().collect();
    for (number, (problem, _)) in problems.iter().enumerate() {
        let within = format!("{}: instances[{number}]", problem_file::name(file));
        problem.check().map_err(|error| error.within(within))?;
    }
    let bar = output::progress(problems.len() as u64, "planning");
    let mut rows = Vec::with_capacity(problems.len() * names.len());
    for (instance, (problem, known)) in problems.iter().enumerate() {
        let measured = in_turns(&names, problem, asking);
        let optimum = known.or_else(|| measure::optimum(&names, &measured, problem, asking));
        for (strategy, result) in names.iter().zip(&measured) {
            let planned = result.planned.as_ref().ok();
            rows.push(Row {
                instance,
                strategy: strategy.clone(),
                nodes: problem.nodes.len(),
                layers: problem.layers.len(),
                latency_seconds: result.latency(),
                optimum_seconds: optimum,
                loss: loss(result.latency(), optimum),
                splits: planned.map(|planned| splits(&planned.plan)),
                proved: planned.is_some_and(|planned| planned.proved),
                gap: planned.and_then(gap),
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
        summary(strategy, nodes, &wanted.collect::<Vec<_>>())
    };
    if arguments.csv {
        return csv(&rows);
    }
    if !arguments.json {
        let by_size =
            sizes.iter().flat_map(|&nodes| names.iter().map(move |name| (name, Some(nodes))));
        let all = names.iter().map(|name| (name, None));
        return table(by_size.chain(all).map(|(name, nodes)| of(name, nodes)));
    }
    let summary = names.iter().map(|name| of(name, None)).collect();
    output::print_json(&Report { instances: rows, summary })
}

fn summary(strategy: &str, nodes: Option<usize>, rows: &[&Row]) -> Summary {
    let losses = || rows.iter().filter_map(|row| row.loss);
    let differences =
        rows.iter().filter_map(|row| Some((row.latency_seconds? - row.optimum_seconds?).abs()));
    let times = spread(rows.iter().map(|row| row.plan_ms));
    Summary {
        strategy: strategy.to_owned(),
        nodes,
        instances: rows.len(),
        failed: rows.iter().filter(|row| row.latency_seconds.is_none()).count(),
        proved: rows.iter().filter(|row| row.proved).count(),
        worst_difference_seconds: worst(differences),
        mean_loss: mean(losses()),
        worst_loss: worst(losses()),
        median_plan_ms: times.as_ref().map(|times| times.median),
        worst_plan_ms: times.as_ref().map(|times| times.max),
    }
}

fn table(rows: impl Iterator<Item = Summary>) -> Result<()> {
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
        let time = |time: Option<f64>| time.map_or("-".to_owned(), output::milliseconds);
        table.row([
            row.nodes.map_or("all".to_owned(), |nodes| nodes.to_string()),
            row.strategy.clone(),
            row.instances.to_string(),
            row.failed.to_string(),
            row.proved.to_string(),
            row.worst_difference_seconds.map_or("-".to_owned(), |off| format!("{off:.1e} s")),
            percent(row.mean_loss),
            percent(row.worst_loss),
            time(row.median_plan_ms),
            time(row.worst_plan_ms),
        ]);
    }
    table.print()
}

fn csv(rows: &[Row]) -> Result<()> {
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
        table.row([
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
