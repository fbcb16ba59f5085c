//! `tessera plan placement`: which node each layer runs on.

mod comparison;
mod drawing;
mod report;

use std::path::Path;
use std::time::Duration;

use tessera_control::PlacementPlugin;
use tessera_core::{Error, ErrorKind, Result};
use tessera_plan::placement::{
    PlacementOptions, PlacementPlan, PlacementPlanFile, PlacementProblem, PlacementSolution,
    PlacementStrategy, evaluate_placement, find_placement_strategy, find_violation,
    placement_strategies, plan_placement,
};

use super::outline::{PlanOutput, PlanView, PlannerCommand, named_lines, read_checked};
use super::read_previous_plan;
use crate::arguments::plan::placement::PlacementArguments;
use comparison::PlacementComparison;
use report::PlacementReport;
use tessera_command::{plan_timed, problem_file};

impl PlannerCommand for PlacementArguments {
    type Problem = PlacementProblem;
    type Plan = PlacementPlan;
    type Report = PlacementReport;
    type Comparison = PlacementComparison;

    fn plan_output(&self) -> PlanOutput<'_> {
        PlanOutput { svg: self.svg.as_deref(), json: self.json }
    }

    fn wanted_strategy(&self) -> Option<&str> {
        Some(&self.strategy)
    }

    fn default_strategy(&self, _problem: &PlacementProblem) -> &'static str {
        "exact"
    }

    fn strategy_lines(&self) -> Vec<(String, String)> {
        let known = placement_strategies();
        named_lines(known.iter().map(|strategy| (strategy.name(), strategy.one_line_summary())))
    }

    fn other_lines(&self) -> Vec<(String, String)> {
        named_lines([("./PATH", "a program that reads the problem as JSON")])
    }

    fn read_problem(&self) -> Result<PlacementProblem> {
        read_checked(self.problem.as_deref(), PlacementProblem::check_consistency)
    }

    fn read_previous(&self, problem: &PlacementProblem) -> Result<Option<PlacementPlan>> {
        self.previous.as_deref().map(|path| read_plan(problem, path)).transpose()
    }

    fn judge_given(
        &self,
        problem: &PlacementProblem,
        previous: Option<&PlacementPlan>,
    ) -> Result<Option<PlacementReport>> {
        let Some(path) = &self.plan else { return Ok(None) };
        judge_placement(problem, previous, path).map(Some)
    }

    fn plan_with(
        &self,
        problem: &PlacementProblem,
        previous: Option<&PlacementPlan>,
        strategy: &str,
    ) -> Result<PlacementReport> {
        let chosen = choose_placement_strategy(strategy, self.search.time_limit)?;
        let (planned, plan_ms) = time_placement(self, problem, previous, chosen.as_ref())?;
        Ok(PlacementReport::new(problem, chosen.name(), planned, previous, plan_ms))
    }

    fn explain_failure(&self, error: Error) -> Error {
        match &self.problem {
            // A plugin names itself; whether it or the problem is to blame, nobody knows.
            Some(path) if error.kind() != ErrorKind::Usage && !is_plugin(&self.strategy) => {
                error.with_context(problem_file::display_name(path))
            }
            _ => error,
        }
    }

    fn compare_reports(
        &self,
        _problem: &PlacementProblem,
        rows: Vec<(String, Result<PlacementReport>)>,
    ) -> Result<PlacementComparison> {
        if rows.iter().all(|(_, report)| report.is_err()) {
            // The first is `exact`, which knows whether there is a plan at all.
            let first = rows.into_iter().find_map(|(_, report)| report.err());
            let first = first.unwrap_or_else(|| Error::invalid("no strategy"));
            return Err(match &self.problem {
                Some(path) => first.with_context(problem_file::display_name(path)),
                None => first,
            });
        }
        Ok(PlacementComparison::from_rows(rows))
    }
}

impl PlanView<PlacementProblem> for PlacementReport {
    fn draw_svg(&self, problem: &PlacementProblem) -> String {
        if self.planned.front.is_empty() {
            drawing::draw_placement(problem, &self.planned.plan, &self.strategy)
        } else {
            drawing::draw_front(problem, &self.planned.front)
        }
    }

    fn print_view(&self, problem: &PlacementProblem) -> Result<()> {
        self.print_report(problem)
    }
}

/// Whether a strategy is the user's: built-in ones are no paths.
fn is_plugin(name: &str) -> bool {
    name.contains('/')
}

/// The strategy that the user means.
fn choose_placement_strategy(
    name: &str,
    time_limit: Duration,
) -> Result<Box<dyn PlacementStrategy>> {
    if is_plugin(name) {
        return Ok(Box::new(PlacementPlugin::new(name, time_limit)));
    }
    let found = find_placement_strategy(name).map_err(|error| {
        let hint = if Path::new(name).is_file() {
            format!("; for the program of that name: ./{name}")
        } else {
            String::new()
        };
        Error::usage(format!("--{error}{hint}"))
    })?;
    Ok(Box::new(found))
}

fn read_plan(problem: &PlacementProblem, path: &Path) -> Result<PlacementPlan> {
    let file: PlacementPlanFile = read_previous_plan(path)?;
    PlacementPlan::from_file(problem, &file)
        .map_err(|error| error.with_context(problem_file::display_name(path)))
}

/// Plans, and says how many milliseconds that took.
fn time_placement(
    arguments: &PlacementArguments,
    problem: &PlacementProblem,
    previous: Option<&PlacementPlan>,
    strategy: &dyn PlacementStrategy,
) -> Result<(PlacementSolution, f64)> {
    // A plugin has its own limit, which says who took too long.
    let limit =
        if is_plugin(strategy.name()) { Duration::MAX } else { arguments.search.time_limit };
    plan_timed(limit, |limit| {
        let options = PlacementOptions { previous, seed: arguments.seed, limit: *limit };
        plan_placement(strategy, problem, &options)
    })
}

/// What a plan of the user's would bring.
fn judge_placement(
    problem: &PlacementProblem,
    old: Option<&PlacementPlan>,
    path: &Path,
) -> Result<PlacementReport> {
    let plan = read_plan(problem, path)?;
    let name = problem_file::display_name(path);
    if let Some(broken) = find_violation(problem, &plan) {
        return Err(Error::invalid(format!("{name}: {broken}")));
    }
    let planned = PlacementSolution {
        latency_seconds: evaluate_placement(problem, &plan).latency_seconds,
        moving_seconds: report::moving_from_previous(problem, old, &plan).seconds,
        kept: old == Some(&plan),
        bound_seconds: None,
        proved: false,
        front: Vec::new(),
        plan,
    };
    Ok(PlacementReport::new(problem, &name, planned, old, 0.0))
}
