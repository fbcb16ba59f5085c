//! The outline that the commands of all planners follow.
//!
//! List the strategies, or measure them; else read the problem, and judge the plan that is given,
//! or compare all strategies, or plan with one; then draw, and print a table or JSON. What differs
//! between planners is theirs: see [`PlannerCommand`].

use std::path::Path;
use tessera_report::output;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_command::problem_file;
use tessera_core::{Error, Result};

/// What a planner brings to the outline.
pub(super) trait PlannerCommand {
    /// What is to be planned.
    type Problem;
    /// What a strategy returns.
    type Plan;
    /// A plan, and what is known about it.
    type Report: PlanView<Self::Problem>;
    /// What came of each strategy.
    type Comparison: PlanView<Self::Problem>;

    /// Where what is found goes.
    fn plan_output(&self) -> PlanOutput<'_>;

    /// The strategy that the user names, if any.
    fn wanted_strategy(&self) -> Option<&str>;

    /// The one that is taken else.
    fn default_strategy(&self, problem: &Self::Problem) -> &'static str;

    /// The strategies by name, each with what it does.
    fn strategy_lines(&self) -> Vec<(String, String)>;

    /// What can be named that is no strategy of ours.
    fn other_lines(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What is done without a problem, where the user asks for that.
    fn measure_random(&self) -> Option<Result<()>> {
        None
    }

    /// The problem, which is consistent.
    fn read_problem(&self) -> Result<Self::Problem>;

    /// The plan so far.
    fn read_previous(&self, _problem: &Self::Problem) -> Result<Option<Self::Plan>> {
        Ok(None)
    }

    /// What a plan of the user's would bring, where there is one.
    fn judge_given(
        &self,
        _problem: &Self::Problem,
        _previous: Option<&Self::Plan>,
    ) -> Result<Option<Self::Report>> {
        Ok(None)
    }

    /// What is shown of a problem that is several at once.
    fn compare_scenarios(&self, _problem: &Self::Problem) -> Option<Result<()>> {
        None
    }

    /// Plans with the strategy of this name.
    fn plan_with(
        &self,
        problem: &Self::Problem,
        previous: Option<&Self::Plan>,
        strategy: &str,
    ) -> Result<Self::Report>;

    /// Says whose fault it is that there is no plan.
    fn explain_failure(&self, error: Error) -> Error {
        error
    }

    /// Puts what came of each strategy side by side.
    fn compare_reports(
        &self,
        problem: &Self::Problem,
        reports: Vec<(String, Result<Self::Report>)>,
    ) -> Result<Self::Comparison>;
}

/// What is found, for people and for machines.
pub(super) trait PlanView<Problem>: Serialize {
    /// The picture.
    fn draw_svg(&self, problem: &Problem) -> String;

    /// The table, and what there is to say.
    fn print_view(&self, problem: &Problem) -> Result<()>;
}

/// Where what is found goes.
pub(super) struct PlanOutput<'a> {
    /// The file for the picture.
    pub(super) svg: Option<&'a Path>,
    /// Whether it is printed for machines.
    pub(super) json: bool,
}

impl PlanOutput<'_> {
    /// Draws and prints.
    pub(super) fn show_view<Problem>(
        &self,
        problem: &Problem,
        view: &impl PlanView<Problem>,
    ) -> Result<()> {
        if let Some(file) = self.svg {
            problem_file::write_text(file, &view.draw_svg(problem))?;
        }
        if self.json { output::print_json(view) } else { view.print_view(problem) }
    }
}

/// Does what the user asks of a planner.
pub(super) fn run_planner<Command: PlannerCommand>(command: &Command) -> Result<()> {
    let (wanted, shown) = (command.wanted_strategy(), command.plan_output());
    if wanted == Some("help") {
        return print_names(&[command.strategy_lines(), command.other_lines()].concat());
    }
    if let Some(measured) = command.measure_random() {
        return measured;
    }
    let problem = command.read_problem()?;
    let previous = command.read_previous(&problem)?;
    if let Some(report) = command.judge_given(&problem, previous.as_ref())? {
        return shown.show_view(&problem, &report);
    }
    if let Some(compared) = command.compare_scenarios(&problem) {
        return compared;
    }
    let strategy = wanted.unwrap_or_else(|| command.default_strategy(&problem));
    if strategy == "all" {
        let reports = plan_with_all(command, &problem, previous.as_ref());
        return shown.show_view(&problem, &command.compare_reports(&problem, reports)?);
    }
    let report = command.plan_with(&problem, previous.as_ref(), strategy);
    shown.show_view(&problem, &report.map_err(|error| command.explain_failure(error))?)
}

fn plan_with_all<Command: PlannerCommand>(
    command: &Command,
    problem: &Command::Problem,
    previous: Option<&Command::Plan>,
) -> Vec<(String, Result<Command::Report>)> {
    let known = command.strategy_lines();
    let bar = output::progress_bar(known.len() as u64, "planning");
    let mut reports = Vec::with_capacity(known.len());
    for (name, _) in known {
        let report = command.plan_with(problem, previous, &name);
        reports.push((name, report));
        bar.inc(1);
    }
    bar.finish_and_clear();
    reports
}

/// Names with what they mean, for [`PlannerCommand::strategy_lines`].
pub(super) fn named_lines<'a>(
    known: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(String, String)> {
    known.into_iter().map(|(name, about)| (name.to_owned(), about.to_owned())).collect()
}

/// Prints names with what they mean, one below the other.
fn print_names(known: &[(String, String)]) -> Result<()> {
    let width = known.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    known
        .iter()
        .try_for_each(|(name, about)| output::print_line(&format!("{name:width$}  {about}")))
}

/// The problem in the file that the user names; what `check` finds is told with that.
pub(super) fn read_checked<Problem: DeserializeOwned>(
    path: Option<&Path>,
    check: impl FnOnce(&Problem) -> Result<()>,
) -> Result<Problem> {
    let Some(path) = path else {
        return Err(Error::usage("PROBLEM is missing: a file in YAML or JSON; see --help"));
    };
    let problem: Problem = problem_file::read_problem(path)?;
    check(&problem).map_err(|error| error.with_context(problem_file::display_name(path)))?;
    Ok(problem)
}

/// The first names of a list, and how many there are more.
pub(super) fn first_names(names: &[String], nothing: &str, more: &str) -> String {
    /// How many are printed.
    const MAX_NAMES: usize = 12;
    let shown = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => nothing.to_owned(),
        count if count > MAX_NAMES => format!("{shown} and {more}{} more", count - MAX_NAMES),
        _ => shown,
    }
}
