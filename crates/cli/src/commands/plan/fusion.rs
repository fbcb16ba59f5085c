//! `tessera plan fusion`: which neighbouring blocks run as one, and in which process.

use std::time::Instant;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::Limit;
use tessera_plan::sharing::{
    Agreement, Indices, Memory, Plan, Problem, Published, Scenario, Step, Strategy, TaskPlan,
    indices, judge, mean_path_sharing_percent, plan,
};

use super::previous;
use crate::arguments::plan::fusion::FusionArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::problem_file;
use crate::time_limit::TimeLimit;

pub(super) fn run(arguments: &FusionArguments) -> Result<()> {
    let wanted = arguments.strategy.as_deref();
    if wanted == Some("help") {
        return list();
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
        return compare_scenarios(arguments, &problem, &chosen);
    }
    let reports = reports(arguments, &problem, &chosen, old.as_ref())?;
    match reports.as_slice() {
        [report] => show(arguments, &problem, report),
        _ => compare(arguments, &problem, reports),
    }
}

/// The strategies with what they do.
fn list() -> Result<()> {
    let width = Strategy::ALL.iter().map(|strategy| strategy.name().len()).max().unwrap_or(0);
    for strategy in Strategy::ALL {
        output::print(&format!("{:width$}  {}", strategy.name(), strategy.about()))?;
    }
    Ok(())
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

/// A scenario with the plans of each strategy.
#[derive(Serialize)]
struct ScenarioReport {
    scenario: String,
    mean_path_sharing_percent: Option<f64>,
    strategies: Vec<Report>,
    note: Option<String>,
}

/// Each scenario, next to what was published about it.
fn compare_scenarios(
    arguments: &FusionArguments,
    problem: &Problem,
    chosen: &[Strategy],
) -> Result<()> {
    #[derive(Serialize)]
    struct Scenarios {
        scenarios: Vec<ScenarioReport>,
        published: usize,
        agreeing: usize,
    }

    let bar = output::progress(problem.scenarios.len() as u64, "planning");
    let mut scenarios = Vec::with_capacity(problem.scenarios.len());
    for scenario in &problem.scenarios {
        scenarios.push(in_scenario(arguments, problem, scenario, chosen)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &memory_by_scenario(&scenarios, chosen).svg())?;
    }
    let (published, agreeing) = agreement(&scenarios);
    if arguments.json {
        return output::print_json(&Scenarios { scenarios, published, agreeing });
    }
    for scenario in &scenarios {
        scenario.print()?;
        output::print("")?;
    }
    match published {
        0 => Ok(()),
        _ => output::print(&format!(
            "{agreeing} of {published} published figures agree to the digit; see the notes for the others"
        )),
    }
}

fn in_scenario(
    arguments: &FusionArguments,
    problem: &Problem,
    scenario: &Scenario,
    chosen: &[Strategy],
) -> Result<ScenarioReport> {
    let problem = problem.in_scenario(scenario);
    let traditional = traditional(&problem)?;
    let mut strategies = reports(arguments, &problem, chosen, None)?;
    for report in &mut strategies {
        report.published = scenario.published.get(report.strategy.name()).copied();
        let published = report.published.as_ref();
        report.agreement =
            published.map(|published| published.agreement(&report.plan.memory, &traditional));
    }
    Ok(ScenarioReport {
        scenario: scenario.name.clone(),
        mean_path_sharing_percent: mean_path_sharing_percent(&problem)?,
        strategies,
        note: scenario.note.clone(),
    })
}

/// How many figures were published, and how many of them are ours.
fn agreement(scenarios: &[ScenarioReport]) -> (usize, usize) {
    let reports = scenarios.iter().flat_map(|scenario| &scenario.strategies);
    reports.fold((0, 0), |(all, ours), report| match (report.published, report.agreement) {
        (Some(published), Some(agreement)) => {
            let has_saving = published.saving_percent.is_some();
            let agreeing =
                usize::from(agreement.bytes) + usize::from(has_saving && agreement.saving);
            (all + 1 + usize::from(has_saving), ours + agreeing)
        }
        _ => (all, ours),
    })
}

impl ScenarioReport {
    fn print(&self) -> Result<()> {
        let sharing = self.mean_path_sharing_percent;
        let sharing = sharing.map(|sharing| format!(", {sharing:.1}% of paths shared"));
        output::print(&format!("{}{}", self.scenario, sharing.unwrap_or_default()))?;
        let mut table = Table::new(&[
            "strategy",
            ">processes",
            ">hops",
            ">memory",
            ">published",
            ">saving",
            ">published",
            "agrees",
            "proved",
        ]);
        for report in &self.strategies {
            let published = report.published;
            let is_same = |same: bool| if same { "yes" } else { "no" };
            let agrees = report.agreement.map(|agreement| match agreement {
                Agreement { bytes, saving } if bytes == saving => is_same(bytes),
                Agreement { bytes: true, .. } => "memory only",
                Agreement { .. } if published.is_some_and(|it| it.saving_percent.is_none()) => "no",
                Agreement { .. } => "saving only",
            });
            table.row([
                report.strategy.to_string(),
                report.plan.memory.processes.to_string(),
                format!("{:.2}", report.hops),
                megabytes(report.plan.memory.total_bytes),
                published.map_or("-".to_owned(), |published| megabytes(published.bytes)),
                percent(report.saving_percent),
                percent(published.and_then(|published| published.saving_percent)),
                agrees.unwrap_or("-").to_owned(),
                report.proof(),
            ]);
        }
        table.print()?;
        match &self.note {
            Some(note) => output::print(note.trim()),
            None => Ok(()),
        }
    }
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

/// What each strategy takes in each scenario.
fn memory_by_scenario(scenarios: &[ScenarioReport], chosen: &[Strategy]) -> Bars {
    // Six colours can be told apart; the two with one process hardly differ.
    let is_drawn = |strategy: &Strategy| chosen.len() == 1 || *strategy != Strategy::OneProcess;
    let drawn = chosen.iter().enumerate().filter(|(_, strategy)| is_drawn(strategy));
    let series = drawn.map(|(number, strategy)| {
        let reports = scenarios.iter().filter_map(|scenario| scenario.strategies.get(number));
        let figures = reports.map(|report| report.plan.memory.total_bytes / 1e6);
        (strategy.to_string(), figures.collect())
    });
    Bars {
        title: "Memory by scenario and strategy".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: scenarios.iter().map(|scenario| scenario.scenario.clone()).collect(),
        series: series.collect(),
    }
}

fn bytes(value: f64) -> String {
    output::bytes(value.round() as u64)
}

/// Whole megabytes, as tables of memory are printed.
fn megabytes(value: f64) -> String {
    format!("{:.0} MB", value / 1e6)
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
