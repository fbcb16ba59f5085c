//! Scenarios: the same tasks in other numbers, next to what was published about them.

use crate::commands::plan::outline::{PlanView, PlannerCommand};
use serde::Serialize;
use tessera_core::Result;
use tessera_plan::sharing::{
    Agreement, SharingProblem, SharingScenario, SharingStrategy, mean_path_sharing_percent,
};
use tessera_report::picture::bars::BarChart;
use tessera_report::{Table, format_megabytes, output};

use super::{FusionReport, choose_sharing_strategy, format_saving, traditional_memory};
use crate::arguments::plan::fusion::FusionArguments;

/// A scenario with the plans of each strategy.
#[derive(Serialize)]
struct ScenarioReport {
    scenario: String,
    mean_path_sharing_percent: Option<f64>,
    strategies: Vec<FusionReport>,
    note: Option<String>,
}

/// All scenarios with the plans of some strategies.
#[derive(Serialize)]
struct ScenarioComparison {
    scenarios: Vec<ScenarioReport>,
    published: usize,
    agreeing: usize,
    #[serde(skip)]
    chosen: Vec<SharingStrategy>,
}

/// Each scenario, next to what was published about it.
pub(super) fn compare_all(
    arguments: &FusionArguments,
    problem: &SharingProblem,
    wanted: &str,
) -> Result<()> {
    let chosen = match wanted {
        "all" => SharingStrategy::ALL.to_vec(),
        name => vec![choose_sharing_strategy(name)?],
    };
    let bar = output::progress_bar(problem.scenarios.len() as u64, "planning");
    let mut scenarios = Vec::with_capacity(problem.scenarios.len());
    for scenario in &problem.scenarios {
        scenarios.push(plan_scenario(arguments, problem, scenario, &chosen)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (published, agreeing) = count_agreements(&scenarios);
    let comparison = ScenarioComparison { scenarios, published, agreeing, chosen };
    arguments.plan_output().show_view(problem, &comparison)
}

impl PlanView<SharingProblem> for ScenarioComparison {
    fn draw_svg(&self, _problem: &SharingProblem) -> String {
        memory_by_scenario(&self.scenarios, &self.chosen).to_svg()
    }

    fn print_view(&self, _problem: &SharingProblem) -> Result<()> {
        for scenario in &self.scenarios {
            scenario.print_scenario()?;
            output::print_line("")?;
        }
        let (agreeing, published) = (self.agreeing, self.published);
        match published {
            0 => Ok(()),
            _ => output::print_line(&format!(
                "{agreeing} of {published} published figures agree to the digit; see the notes for the others"
            )),
        }
    }
}

fn plan_scenario(
    arguments: &FusionArguments,
    problem: &SharingProblem,
    scenario: &SharingScenario,
    chosen: &[SharingStrategy],
) -> Result<ScenarioReport> {
    let problem = problem.in_scenario(scenario);
    let traditional = traditional_memory(&problem)?;
    let mut strategies = chosen
        .iter()
        .map(|strategy| arguments.plan_with(&problem, None, strategy.name()))
        .collect::<Result<Vec<_>>>()?;
    for report in &mut strategies {
        report.published = scenario.published.get(report.strategy.name()).copied();
        let published = report.published.as_ref();
        report.agreement =
            published.map(|published| published.compare_with(&report.plan.memory, &traditional));
    }
    Ok(ScenarioReport {
        scenario: scenario.name.clone(),
        mean_path_sharing_percent: mean_path_sharing_percent(&problem)?,
        strategies,
        note: scenario.note.clone(),
    })
}

/// How many figures were published, and how many of them are ours.
fn count_agreements(scenarios: &[ScenarioReport]) -> (usize, usize) {
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
    fn print_scenario(&self) -> Result<()> {
        let sharing = self.mean_path_sharing_percent;
        let sharing = sharing.map(|sharing| format!(", {sharing:.1}% of paths shared"));
        output::print_line(&format!("{}{}", self.scenario, sharing.unwrap_or_default()))?;
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
            table.add_row([
                report.strategy.to_string(),
                report.plan.memory.processes.to_string(),
                format!("{:.2}", report.hops),
                format_megabytes(report.plan.memory.total_bytes, 0),
                published.map_or("-".to_owned(), |published| format_megabytes(published.bytes, 0)),
                format_saving(report.saving_percent),
                format_saving(published.and_then(|published| published.saving_percent)),
                agrees.unwrap_or("-").to_owned(),
                report.proof_text(),
            ]);
        }
        table.print_table()?;
        match &self.note {
            Some(note) => output::print_line(note.trim()),
            None => Ok(()),
        }
    }
}

/// What each strategy takes in each scenario.
fn memory_by_scenario(scenarios: &[ScenarioReport], chosen: &[SharingStrategy]) -> BarChart {
    // Six colours can be told apart; the two with one process hardly differ.
    let is_drawn =
        |strategy: &SharingStrategy| chosen.len() == 1 || *strategy != SharingStrategy::OneProcess;
    let drawn = chosen.iter().enumerate().filter(|(_, strategy)| is_drawn(strategy));
    let series = drawn.map(|(number, strategy)| {
        let reports = scenarios.iter().filter_map(|scenario| scenario.strategies.get(number));
        let figures = reports.map(|report| report.plan.memory.total_bytes / 1e6);
        (strategy.to_string(), figures.collect())
    });
    BarChart {
        title: "Memory by scenario and strategy".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: scenarios.iter().map(|scenario| scenario.scenario.clone()).collect(),
        series: series.collect(),
    }
}
