//! `tessera plan placement`: which node each layer runs on.

mod drawing;
mod report;

use std::path::Path;
use std::time::{Duration, Instant};

use tessera_control::Plugin;
use tessera_core::{Error, Result};
use tessera_plan::Limit;
use tessera_plan::placement::{
    Options, Plan, PlanFile, Planned, Problem, Strategy, evaluate, plan, strategies, strategy,
    violation,
};

use super::{list, previous};
use crate::arguments::plan::placement::PlacementArguments;
use crate::time_limit::TimeLimit;
use crate::{output, problem_file};
use report::Report;

pub(super) fn run(arguments: &PlacementArguments) -> Result<()> {
    if arguments.strategy == "help" {
        return list_all();
    }
    let Some(path) = &arguments.problem else {
        return Err(Error::usage("PROBLEM is missing: a file in YAML or JSON; see --help"));
    };
    let problem: Problem = problem_file::read(path)?;
    let name = problem_file::name(path);
    problem.check().map_err(|error| error.within(&name))?;
    let old = arguments.previous.as_deref().map(|path| read_plan(&problem, path)).transpose()?;
    if let Some(path) = &arguments.plan {
        return judge(arguments, &problem, old.as_ref(), path);
    }
    if arguments.strategy == "all" {
        return compare(arguments, &problem, old.as_ref(), &name);
    }
    let chosen = choose(&arguments.strategy, arguments.time_limit)?;
    let (planned, took) = timed(arguments, &problem, old.as_ref(), chosen.as_ref());
    // A plugin names itself; whether it or the problem is to blame, nobody knows.
    let planned = planned.map_err(|error| match is_plugin(&arguments.strategy) {
        true => error,
        false => error.within(&name),
    })?;
    let report = Report::new(&problem, chosen.name(), &planned, old.as_ref(), took);
    if let Some(file) = &arguments.svg {
        let picture = match planned.front.is_empty() {
            true => drawing::placement(&problem, &planned.plan, chosen.name()),
            false => drawing::front(&problem, &planned.front),
        };
        problem_file::write(file, &picture)?;
    }
    match arguments.json {
        true => output::print_json(&report),
        false => report.print(&problem, &planned),
    }
}

/// The strategies with what they do.
fn list_all() -> Result<()> {
    let known = strategies();
    let program = ("./PATH", "a program that reads the problem as JSON");
    list(known.iter().map(|strategy| (strategy.name(), strategy.about())).chain([program]))
}

/// Whether a strategy is the user's: built-in ones are no paths.
fn is_plugin(name: &str) -> bool {
    name.contains('/')
}

/// The strategy that the user means.
fn choose(name: &str, time_limit: Duration) -> Result<Box<dyn Strategy>> {
    match is_plugin(name) {
        true => Ok(Box::new(Plugin::new(name, time_limit))),
        false => strategy(name).map_err(|error| {
            let hint = match Path::new(name).is_file() {
                true => format!("; for the program of that name: ./{name}"),
                false => String::new(),
            };
            Error::usage(format!("--{error}{hint}"))
        }),
    }
}

fn read_plan(problem: &Problem, path: &Path) -> Result<Plan> {
    let file: PlanFile = previous(path)?;
    Plan::from_file(problem, &file).map_err(|error| error.within(problem_file::name(path)))
}

/// Plans, and says how many milliseconds that took.
fn timed(
    arguments: &PlacementArguments,
    problem: &Problem,
    previous: Option<&Plan>,
    strategy: &dyn Strategy,
) -> (Result<Planned>, f64) {
    // A plugin has its own limit, which says who took too long.
    let limit = TimeLimit::new(match is_plugin(strategy.name()) {
        true => Duration::MAX,
        false => arguments.time_limit,
    });
    let reached = || limit.reached();
    let options = Options { previous, seed: arguments.seed, limit: Limit::new(&reached) };
    let start = Instant::now();
    let planned = plan(strategy, problem, &options);
    (planned, start.elapsed().as_secs_f64() * 1e3)
}

/// What a plan of the user's would bring.
fn judge(
    arguments: &PlacementArguments,
    problem: &Problem,
    old: Option<&Plan>,
    path: &Path,
) -> Result<()> {
    let plan = read_plan(problem, path)?;
    if let Some(broken) = violation(problem, &plan) {
        return Err(Error::invalid(format!("{}: {broken}", problem_file::name(path))));
    }
    let planned = Planned {
        latency_seconds: evaluate(problem, &plan).latency_seconds,
        moving_seconds: report::moving(problem, old, &plan).seconds,
        kept: old == Some(&plan),
        bound_seconds: None,
        proved: false,
        front: Vec::new(),
        plan,
    };
    let name = problem_file::name(path);
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::placement(problem, &planned.plan, &name))?;
    }
    let report = Report::new(problem, &name, &planned, old, 0.0);
    match arguments.json {
        true => output::print_json(&report),
        false => report.print(problem, &planned),
    }
}

/// All strategies side by side.
fn compare(
    arguments: &PlacementArguments,
    problem: &Problem,
    old: Option<&Plan>,
    name: &str,
) -> Result<()> {
    let known = strategies();
    let bar = output::progress(known.len() as u64, "planning");
    let mut rows = Vec::new();
    for strategy in &known {
        let (planned, took) = timed(arguments, problem, old, strategy.as_ref());
        let report =
            planned.map(|planned| Report::new(problem, strategy.name(), &planned, old, took));
        rows.push((strategy.name().to_owned(), report));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if rows.iter().all(|(_, report)| report.is_err()) {
        // The first is `exact`, which knows whether there is a plan at all.
        let first = rows.into_iter().find_map(|(_, report)| report.err());
        return Err(first.unwrap_or_else(|| Error::invalid("no strategy")).within(name));
    }
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::comparison(&rows))?;
    }
    match arguments.json {
        true => output::print_json(&report::comparison(rows)),
        false => report::print_comparison(&rows),
    }
}
