//! `tessera plan fusion`: which neighbouring blocks run as one, and in which process.

mod scenarios;

use std::time::Instant;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::Limit;
use tessera_plan::sharing::{
    Agreement, Indices, Memory, Plan, Problem, Published, Step, Strategy, TaskPlan, indices, judge,
    plan,
};

use super::{list, previous};
use crate::arguments::plan::fusion::FusionArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::problem_file;
use crate::time_limit::TimeLimit;

pub(super) fn run(arguments: &FusionArguments) -> Result<()> {
    let wanted = arguments.strategy.as_deref();
    if wanted == Some("help") {
        return list(Strategy::ALL.map(|strategy| (strategy.name(), strategy.about())));
    }
    let Some(path) = &arguments.problem else {
        return Err(Error::usage("PROBLEM is missing: a file in YAML or JSON; see --help"));
    };
    let problem: Problem = problem_file::read(path)?;
    problem.check().map_err(|error| error.within(problem_file::name(path)))?;
    if let Some(path) = &arguments.plan {
        let given: Plan = previous(path)?;
        let limit = TimeLimit::new(arguments.time_limit);
        let reached = || limit.reached();
        let judged = judge(&problem, &given, &Limit::new(&reached))
            .map_err(|error| error.within(problem_file::name(path)))?;
        let report = Report::new(&problem, judged, &traditional(&problem)?, 0.0);
        return show(arguments, &problem, &report);
    }
    let old: Option<Plan> = arguments.previous.as_deref().map(previous).transpose()?;
    let chosen: Vec<Strategy> = match wanted {
        None if problem.scenarios.is_empty() => vec![Strategy::Cheapest],
        None | Some("all") => Strategy::ALL.to_vec(),
        Some(name) => {
            let named = name.parse::<Strategy>();
            vec![named.map_err(|error| Error::usage(format!("--strategy: {error}")))?]
        }
    };
    if !problem.scenarios.is_empty() {
        return scenarios::compare(arguments, &problem, &chosen);
    }
    let reports = reports(arguments, &problem, &chosen, old.as_ref())?;
    match reports.as_slice() {
        [report] => show(arguments, &problem, report),
        _ => compare(arguments, &problem, reports),
    }
}

/// What everything is compared with.
fn traditional(problem: &Problem) -> Result<Memory> {
    Ok(plan(problem, Strategy::Traditional, None, &Limit::none())?.memory)
}

fn reports(
    arguments: &FusionArguments,
    problem: &Problem,
    chosen: &[Strategy],
    old: Option<&Plan>,
) -> Result<Vec<Report>> {
    let traditional = traditional(problem)?;
    let reports = chosen.iter().map(|&strategy| {
        let limit = TimeLimit::new(arguments.time_limit);
        let reached = || limit.reached();
        let start = Instant::now();
        let planned = plan(problem, strategy, old, &Limit::new(&reached))?;
        let plan_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(Report::new(problem, planned, &traditional, plan_ms))
    });
    reports.collect()
}

/// A plan and what is known about it.
#[derive(Serialize)]
struct Report {
    strategy: Strategy,
    plan: Plan,
    /// Against the traditional deployment.
    saving_percent: Option<f64>,
    /// Hops of a request, in the mean over all.
    hops: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<Published>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<Agreement>,
    plan_ms: f64,
}

impl Report {
    fn new(problem: &Problem, plan: Plan, traditional: &Memory, plan_ms: f64) -> Self {
        Self {
            strategy: plan.strategy,
            saving_percent: plan.memory.saving_percent(traditional),
            hops: mean_hops(problem, &plan),
            plan,
            published: None,
            agreement: None,
            plan_ms,
        }
    }

    fn cells(&self) -> Vec<String> {
        let memory = &self.plan.memory;
        vec![
            self.strategy.to_string(),
            memory.processes.to_string(),
            bytes(memory.context_bytes),
            bytes(memory.weight_bytes),
            bytes(memory.overhead_bytes),
            bytes(memory.total_bytes),
            percent(self.saving_percent),
            format!("{:.2}", self.hops),
            self.proof(),
        ]
    }

    /// What is known about a cheaper plan; nothing to prove where the strategy leaves no choice.
    fn proof(&self) -> String {
        let is_search = matches!(self.strategy, Strategy::Cheapest | Strategy::CheapestOneProcess);
        match (is_search, self.plan.proved) {
            (false, _) => "-".to_owned(),
            (true, true) => "yes".to_owned(),
            (true, false) => format!("within {}", gap(&self.plan)),
        }
    }
}

/// How much cheaper than a plan one could be at most.
fn gap(plan: &Plan) -> String {
    let cost = plan.cost_bytes;
    let part = if cost > 0.0 { (cost - plan.bound_bytes).max(0.0) / cost } else { 0.0 };
    format!("{:.2}%", part * 100.0)
}

/// Hops of a request, in the mean over those of all tasks, or over the tasks where nobody calls them.
fn mean_hops(problem: &Problem, plan: &Plan) -> f64 {
    let mean = |weight: &dyn Fn(usize) -> f64| {
        let tasks = problem.tasks.iter().enumerate().filter_map(|(number, task)| {
            let planned = plan.tasks.iter().find(|planned| planned.task == task.name)?;
            Some((weight(number), planned.hops as f64))
        });
        let (weights, hops) = tasks.fold((0.0, 0.0), |(weights, hops), (weight, each)| {
            (weights + weight, hops + weight * each)
        });
        (weights > 0.0).then(|| hops / weights)
    };
    let tasks = &problem.tasks;
    let by_requests = mean(&|number| tasks[number].count * tasks[number].rate_per_second);
    by_requests.or_else(|| mean(&|number| tasks[number].count)).unwrap_or(0.0)
}

/// Prints and draws one plan.
fn show(arguments: &FusionArguments, problem: &Problem, report: &Report) -> Result<()> {
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &memory_by_strategy(std::slice::from_ref(report)).svg())?;
    }
    if arguments.json {
        return output::print_json(report);
    }
    let heads = ["unit", "used by", ">instances", ">weights", ">overhead"];
    let mut table = Table::new(&heads);
    for unit in &report.plan.units {
        table.row([
            unit.blocks.join(" + "),
            unit.tasks.join(", "),
            unit.instances.to_string(),
            bytes(unit.weight_bytes),
            bytes(unit.overhead_bytes),
        ]);
    }
    table.print()?;
    output::print("")?;
    print_tasks(problem, &report.plan.tasks)?;
    output::print("")?;
    let memory = &report.plan.memory;
    output::print(&format!(
        "{} in {}, {} of it contexts: {}",
        bytes(memory.total_bytes),
        counted(memory.processes, "process", "processes"),
        bytes(memory.context_bytes),
        saved(report.saving_percent),
    ))?;
    let is_given = arguments.plan.is_some();
    let is_search = matches!(report.strategy, Strategy::Cheapest | Strategy::CheapestOneProcess);
    match (report.plan.proved, is_search || is_given) {
        (_, false) => Ok(()),
        (true, true) => output::print("proved: no grouping costs less"),
        (false, true) => {
            output::print(&format!("no grouping costs less by more than {}", gap(&report.plan)))
        }
    }
}

fn print_tasks(problem: &Problem, tasks: &[TaskPlan]) -> Result<()> {
    let known = indices(problem)?;
    let of = |task: &TaskPlan| known.iter().find(|index: &&Indices| index.task == task.task);
    let has_times = tasks.iter().any(|task| task.time_us.is_some());
    let mut heads = vec!["task", ">sharing", ">distribution", "units", ">hops"];
    heads.extend(has_times.then_some(">time"));
    let mut table = Table::new(&heads);
    for task in tasks {
        let unit = |steps: &Vec<Step>| {
            let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
            steps.join(" + ")
        };
        let units: Vec<String> = task.units.iter().map(unit).collect();
        let index = |part: fn(&Indices) -> f64| {
            of(task).map_or("-".to_owned(), |index| format!("{:.0}%", part(index)))
        };
        let time = task.time_us.map_or("-".to_owned(), |time| output::milliseconds(time / 1e3));
        let cells = [
            task.task.clone(),
            index(|index| index.path_sharing_percent),
            index(|index| index.path_distribution_percent),
            units.join(" → "),
            task.hops.to_string(),
        ];
        table.row(cells.into_iter().chain(has_times.then_some(time)));
    }
    table.print()
}

/// All strategies side by side.
fn compare(arguments: &FusionArguments, problem: &Problem, reports: Vec<Report>) -> Result<()> {
    #[derive(Serialize)]
    struct Comparison {
        strategies: Vec<Report>,
        indices: Vec<Indices>,
    }

    if let Some(file) = &arguments.svg {
        problem_file::write(file, &memory_by_strategy(&reports).svg())?;
    }
    if arguments.json {
        let comparison = Comparison { strategies: reports, indices: indices(problem)? };
        return output::print_json(&comparison);
    }
    let mut table = Table::new(&[
        "strategy",
        ">processes",
        ">contexts",
        ">weights",
        ">overhead",
        ">total",
        ">saving",
        ">hops",
        "proved",
    ]);
    for report in &reports {
        table.row(report.cells());
    }
    table.print()
}

/// What each strategy takes memory for.
fn memory_by_strategy(reports: &[Report]) -> Bars {
    type Part = fn(&Memory) -> f64;
    let parts: [(&str, Part); 4] = [
        ("contexts", |memory| memory.context_bytes),
        ("weights", |memory| memory.weight_bytes),
        ("overhead", |memory| memory.overhead_bytes),
        ("total", |memory| memory.total_bytes),
    ];
    let series = parts.map(|(name, part)| {
        let figures = reports.iter().map(|report| part(&report.plan.memory) / 1e6);
        (name.to_owned(), figures.collect())
    });
    Bars {
        title: "Memory by strategy".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: reports.iter().map(|report| report.strategy.to_string()).collect(),
        series: series.into(),
    }
}

fn bytes(value: f64) -> String {
    output::bytes(value.round() as u64)
}

fn percent(value: Option<f64>) -> String {
    // What rounds to nothing has no sign.
    let value = value.map(|value| if value.abs() < 0.005 { 0.0 } else { value });
    value.map_or("-".to_owned(), |value| format!("{value:.2}%"))
}

/// A saving in words.
fn saved(saving: Option<f64>) -> String {
    match saving {
        Some(saving) if saving <= -0.005 => format!("{:.2}% more than traditional", -saving),
        Some(saving) if saving >= 0.005 => format!("{saving:.2}% less than traditional"),
        _ => "as much as traditional".to_owned(),
    }
}

fn counted(count: f64, one: &str, many: &str) -> String {
    if count == 1.0 { format!("1 {one}") } else { format!("{count} {many}") }
}
