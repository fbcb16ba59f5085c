//! Scenarios: the same tasks in other numbers, next to what was published about them.

use serde::Serialize;
use tessera_core::Result;
use tessera_plan::sharing::{Agreement, Problem, Scenario, Strategy, mean_path_sharing_percent};

use super::{Report, percent, reports, traditional};
use crate::arguments::plan::fusion::FusionArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::problem_file;

/// A scenario with the plans of each strategy.
#[derive(Serialize)]
struct ScenarioReport {
    scenario: String,
    mean_path_sharing_percent: Option<f64>,
    strategies: Vec<Report>,
    note: Option<String>,
}

/// Each scenario, next to what was published about it.
pub(super) fn compare(
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

/// Whole megabytes, as tables of memory are printed.
fn megabytes(value: f64) -> String {
    format!("{:.0} MB", value / 1e6)
}
