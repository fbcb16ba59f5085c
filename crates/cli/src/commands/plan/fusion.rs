//! `tessera plan fusion`: which neighbouring blocks run as one, and in which process.

mod scenarios;

use serde::Serialize;
use tessera_command::{flag_error, plan_timed, problem_file};
use tessera_core::Result;
use tessera_plan::SearchLimit;
use tessera_plan::sharing::{
    Agreement, PathIndices, PublishedFigures, SharingMemory, SharingPlan, SharingProblem,
    SharingStep, SharingStrategy, TaskPlan, evaluate_sharing, path_indices, plan_sharing,
};
use tessera_report::picture::bars::BarChart;
use tessera_report::{Table, format_bytes_f64, format_milliseconds, format_percent, output};

use super::outline::{PlanOutput, PlanView, PlannerCommand, named_lines, read_checked};
use super::read_previous_plan;
use crate::arguments::plan::fusion::FusionArguments;

impl PlannerCommand for FusionArguments {
    type Problem = SharingProblem;
    type Plan = SharingPlan;
    type Report = FusionReport;
    type Comparison = FusionComparison;

    fn plan_output(&self) -> PlanOutput<'_> {
        PlanOutput { svg: self.svg.as_deref(), json: self.json }
    }

    fn wanted_strategy(&self) -> Option<&str> {
        self.strategy.as_deref()
    }

    fn default_strategy(&self, _problem: &SharingProblem) -> &'static str {
        SharingStrategy::Cheapest.name()
    }

    fn strategy_lines(&self) -> Vec<(String, String)> {
        named_lines(SharingStrategy::ALL.map(|known| (known.name(), known.one_line_summary())))
    }

    fn read_problem(&self) -> Result<SharingProblem> {
        read_checked(self.inputs.problem.as_deref(), SharingProblem::check_consistency)
    }

    fn read_previous(&self, _problem: &SharingProblem) -> Result<Option<SharingPlan>> {
        self.inputs.previous.as_deref().map(read_previous_plan).transpose()
    }

    fn judge_given(
        &self,
        problem: &SharingProblem,
        _previous: Option<&SharingPlan>,
    ) -> Result<Option<FusionReport>> {
        let Some(path) = &self.inputs.plan else { return Ok(None) };
        let given: SharingPlan = read_previous_plan(path)?;
        let judge = |limit: &SearchLimit<'_>| evaluate_sharing(problem, &given, limit);
        let (judged, _) = plan_timed(self.search.time_limit, judge)
            .map_err(|error| error.with_context(problem_file::display_name(path)))?;
        let mut report = FusionReport::new(problem, judged, &traditional_memory(problem)?, 0.0);
        report.is_given = true;
        Ok(Some(report))
    }

    fn compare_scenarios(&self, problem: &SharingProblem) -> Option<Result<()>> {
        let wanted = self.wanted_strategy().unwrap_or("all");
        (!problem.scenarios.is_empty()).then(|| scenarios::compare_all(self, problem, wanted))
    }

    fn plan_with(
        &self,
        problem: &SharingProblem,
        previous: Option<&SharingPlan>,
        strategy: &str,
    ) -> Result<FusionReport> {
        let strategy = choose_sharing_strategy(strategy)?;
        let plan = |limit: &SearchLimit<'_>| plan_sharing(problem, strategy, previous, limit);
        let (planned, plan_ms) = plan_timed(self.search.time_limit, plan)?;
        Ok(FusionReport::new(problem, planned, &traditional_memory(problem)?, plan_ms))
    }

    fn compare_reports(
        &self,
        problem: &SharingProblem,
        reports: Vec<(String, Result<FusionReport>)>,
    ) -> Result<FusionComparison> {
        let strategies = reports.into_iter().map(|(_, report)| report).collect::<Result<_>>()?;
        Ok(FusionComparison { strategies, indices: path_indices(problem)? })
    }
}

/// The strategy that the user means.
fn choose_sharing_strategy(name: &str) -> Result<SharingStrategy> {
    name.parse::<SharingStrategy>().map_err(flag_error)
}

/// What everything is compared with.
fn traditional_memory(problem: &SharingProblem) -> Result<SharingMemory> {
    Ok(plan_sharing(problem, SharingStrategy::Traditional, None, &SearchLimit::none())?.memory)
}

/// A plan and what is known about it.
#[derive(Serialize)]
pub(crate) struct FusionReport {
    strategy: SharingStrategy,
    plan: SharingPlan,
    /// Against the traditional deployment.
    saving_percent: Option<f64>,
    /// Hops of a request, in the mean over all.
    hops: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<PublishedFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<Agreement>,
    plan_ms: f64,
    /// Whether it is the user's, not a strategy's.
    #[serde(skip)]
    is_given: bool,
}

impl FusionReport {
    fn new(
        problem: &SharingProblem,
        plan: SharingPlan,
        traditional: &SharingMemory,
        plan_ms: f64,
    ) -> Self {
        Self {
            strategy: plan.strategy,
            saving_percent: plan.memory.saving_percent(traditional),
            hops: mean_hops(problem, &plan),
            plan,
            published: None,
            agreement: None,
            plan_ms,
            is_given: false,
        }
    }

    fn table_cells(&self) -> Vec<String> {
        let memory = &self.plan.memory;
        vec![
            self.strategy.to_string(),
            memory.processes.to_string(),
            format_bytes_f64(memory.context_bytes),
            format_bytes_f64(memory.weight_bytes),
            format_bytes_f64(memory.overhead_bytes),
            format_bytes_f64(memory.total_bytes),
            format_saving(self.saving_percent),
            format!("{:.2}", self.hops),
            self.proof_text(),
        ]
    }

    /// What is known about a cheaper plan; nothing to prove where the strategy leaves no choice.
    fn proof_text(&self) -> String {
        let is_search = matches!(
            self.strategy,
            SharingStrategy::Cheapest | SharingStrategy::CheapestOneProcess
        );
        if !is_search {
            "-".to_owned()
        } else if self.plan.proved {
            "yes".to_owned()
        } else {
            format!("within {}", format_gap(&self.plan))
        }
    }
}

/// How much cheaper than a plan one could be at most.
fn format_gap(plan: &SharingPlan) -> String {
    let cost = plan.cost_bytes;
    let part = if cost > 0.0 { (cost - plan.bound_bytes).max(0.0) / cost } else { 0.0 };
    format_percent(part, 2)
}

/// Hops of a request, in the mean over those of all tasks, or over the tasks where nobody calls
/// them.
fn mean_hops(problem: &SharingProblem, plan: &SharingPlan) -> f64 {
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

impl PlanView<SharingProblem> for FusionReport {
    fn draw_svg(&self, _problem: &SharingProblem) -> String {
        memory_by_strategy(std::slice::from_ref(self)).to_svg()
    }

    fn print_view(&self, problem: &SharingProblem) -> Result<()> {
        print_fusion(self, problem)
    }
}

/// What came of each strategy.
#[derive(Serialize)]
pub(crate) struct FusionComparison {
    strategies: Vec<FusionReport>,
    indices: Vec<PathIndices>,
}

impl PlanView<SharingProblem> for FusionComparison {
    fn draw_svg(&self, _problem: &SharingProblem) -> String {
        memory_by_strategy(&self.strategies).to_svg()
    }

    fn print_view(&self, _problem: &SharingProblem) -> Result<()> {
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
        self.strategies.iter().for_each(|report| table.add_row(report.table_cells()));
        table.print_table()
    }
}

/// Prints the units and tasks of a plan, and what is known about it.
fn print_fusion(report: &FusionReport, problem: &SharingProblem) -> Result<()> {
    let heads = ["unit", "used by", ">instances", ">weights", ">overhead"];
    let mut table = Table::new(&heads);
    for unit in &report.plan.units {
        table.add_row([
            unit.blocks.join(" + "),
            unit.tasks.join(", "),
            unit.instances.to_string(),
            format_bytes_f64(unit.weight_bytes),
            format_bytes_f64(unit.overhead_bytes),
        ]);
    }
    table.print_table()?;
    output::print_line("")?;
    print_tasks(problem, &report.plan.tasks)?;
    output::print_line("")?;
    let memory = &report.plan.memory;
    output::print_line(&format!(
        "{} in {}, {} of it contexts: {}",
        format_bytes_f64(memory.total_bytes),
        count_with_noun(memory.processes, "process", "processes"),
        format_bytes_f64(memory.context_bytes),
        describe_saving(report.saving_percent),
    ))?;
    let is_search =
        matches!(report.strategy, SharingStrategy::Cheapest | SharingStrategy::CheapestOneProcess);
    if !is_search && !report.is_given {
        return Ok(());
    }
    if report.plan.proved {
        output::print_line("proved: no grouping costs less")
    } else {
        output::print_line(&format!(
            "no grouping costs less by more than {}",
            format_gap(&report.plan)
        ))
    }
}

fn print_tasks(problem: &SharingProblem, tasks: &[TaskPlan]) -> Result<()> {
    let known = path_indices(problem)?;
    let of = |task: &TaskPlan| known.iter().find(|index: &&PathIndices| index.task == task.task);
    let has_times = tasks.iter().any(|task| task.time_us.is_some());
    let mut heads = vec!["task", ">sharing", ">distribution", "units", ">hops"];
    heads.extend(has_times.then_some(">time"));
    let mut table = Table::new(&heads);
    for task in tasks {
        let unit = |steps: &Vec<SharingStep>| {
            let steps: Vec<String> = steps.iter().map(SharingStep::to_string).collect();
            steps.join(" + ")
        };
        let units: Vec<String> = task.units.iter().map(unit).collect();
        let index = |part: fn(&PathIndices) -> f64| {
            of(task).map_or("-".to_owned(), |index| format!("{:.0}%", part(index)))
        };
        let time = task.time_us.map_or("-".to_owned(), |time| format_milliseconds(time / 1e3));
        let cells = [
            task.task.clone(),
            index(|index| index.path_sharing_percent),
            index(|index| index.path_distribution_percent),
            units.join(" → "),
            task.hops.to_string(),
        ];
        table.add_row(cells.into_iter().chain(has_times.then_some(time)));
    }
    table.print_table()
}

/// What each strategy takes memory for.
fn memory_by_strategy(reports: &[FusionReport]) -> BarChart {
    type MemoryPart = fn(&SharingMemory) -> f64;
    let parts: [(&str, MemoryPart); 4] = [
        ("contexts", |memory| memory.context_bytes),
        ("weights", |memory| memory.weight_bytes),
        ("overhead", |memory| memory.overhead_bytes),
        ("total", |memory| memory.total_bytes),
    ];
    let series = parts.map(|(name, part)| {
        let figures = reports.iter().map(|report| part(&report.plan.memory) / 1e6);
        (name.to_owned(), figures.collect())
    });
    BarChart {
        title: "Memory by strategy".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: reports.iter().map(|report| report.strategy.to_string()).collect(),
        series: series.into(),
    }
}

fn format_saving(percent: Option<f64>) -> String {
    percent.map_or("-".to_owned(), |percent| format_percent(percent / 100.0, 2))
}

/// A saving in words.
fn describe_saving(saving: Option<f64>) -> String {
    match saving {
        Some(saving) if saving <= -0.005 => format!("{:.2}% more than traditional", -saving),
        Some(saving) if saving >= 0.005 => format!("{saving:.2}% less than traditional"),
        _ => "as much as traditional".to_owned(),
    }
}

fn count_with_noun(count: f64, one: &str, many: &str) -> String {
    if count == 1.0 { format!("1 {one}") } else { format!("{count} {many}") }
}
