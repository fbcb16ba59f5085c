//! `tessera plan eviction`: which instance of a model leaves GPU memory when another needs room.

use serde::Serialize;
use tessera_bench::strategies::{RandomEvictionOptions, measure_random_evictions};
use tessera_command::flag_error;
use tessera_command::problem_file::display_name;
use tessera_core::Result;
use tessera_plan::residency::eviction::{
    EvictionOutcome, EvictionPolicy, EvictionProblem, draw_requests, simulate_eviction,
};
use tessera_report::picture::bars::BarChart;
use tessera_report::{
    Table, format_change, format_milliseconds, format_percent, output, time_ratio,
};

use super::outline::{
    PlanOutput, PlanView, PlannerCommand, first_names, named_lines, read_checked,
};
use crate::arguments::plan::eviction::EvictionArguments;

/// How many requests are drawn where nobody says.
const DEFAULT_REQUESTS: u64 = 10_000;

impl PlannerCommand for EvictionArguments {
    type Problem = EvictionProblem;
    type Plan = EvictionPolicy;
    type Report = EvictionReport;
    type Comparison = EvictionComparison;

    fn plan_output(&self) -> PlanOutput<'_> {
        PlanOutput { svg: self.svg.as_deref(), json: self.json }
    }

    fn wanted_strategy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    fn default_strategy(&self, _problem: &EvictionProblem) -> &'static str {
        "reload-cost"
    }

    fn strategy_lines(&self) -> Vec<(String, String)> {
        named_lines(EvictionPolicy::all().map(|known| (known.name(), known.one_line_summary())))
    }

    fn measure_random(&self) -> Option<Result<()>> {
        self.random.map(|workloads| {
            measure_random_evictions(&RandomEvictionOptions {
                workloads,
                requests: self.requests,
                seed: self.seed,
                policy: self.policy.as_deref(),
                json: self.json,
            })
        })
    }

    fn read_problem(&self) -> Result<EvictionProblem> {
        read_eviction_problem(self)
    }

    fn plan_with(
        &self,
        problem: &EvictionProblem,
        _previous: Option<&EvictionPolicy>,
        strategy: &str,
    ) -> Result<EvictionReport> {
        EvictionReport::new(problem, EvictionPolicy::from_name(strategy).map_err(flag_error)?)
    }

    fn compare_reports(
        &self,
        _problem: &EvictionProblem,
        reports: Vec<(String, Result<EvictionReport>)>,
    ) -> Result<EvictionComparison> {
        let policies = reports.into_iter().map(|(_, report)| report).collect::<Result<_>>()?;
        Ok(EvictionComparison { policies })
    }
}

/// The problem, with requests: its own, or drawn from its rates.
fn read_eviction_problem(arguments: &EvictionArguments) -> Result<EvictionProblem> {
    let path = arguments.problem.as_deref();
    let mut problem = read_checked(path, EvictionProblem::check_consistency)?;
    if arguments.requests.is_some() || problem.requests.is_empty() {
        let count = arguments.requests.unwrap_or(DEFAULT_REQUESTS) as usize;
        problem.requests = draw_requests(&problem, count, arguments.seed)
            .map_err(|error| error.with_context(path.map(display_name).unwrap_or_default()))?;
    }
    Ok(problem)
}

/// What came of each policy.
#[derive(Serialize)]
pub(crate) struct EvictionComparison {
    policies: Vec<EvictionReport>,
}

/// What came of a policy.
#[derive(Serialize)]
pub(crate) struct EvictionReport {
    policy: EvictionPolicy,
    /// The reload time by that of least-recently-used.
    to_least_recently_used: f64,
    #[serde(flatten)]
    outcome: EvictionOutcome,
}

impl EvictionReport {
    fn new(problem: &EvictionProblem, policy: EvictionPolicy) -> Result<Self> {
        let outcome = simulate_eviction(problem, policy)?;
        let known = simulate_eviction(problem, EvictionPolicy::LeastRecentlyUsed)?.reload_ms;
        Ok(Self { policy, to_least_recently_used: time_ratio(outcome.reload_ms, known), outcome })
    }

    fn table_cells(&self) -> [String; 8] {
        let outcome = &self.outcome;
        [
            self.policy.name().to_owned(),
            outcome.requests.to_string(),
            outcome.cold_starts.to_string(),
            format_percent(outcome.hit_rate, 1),
            format_milliseconds(outcome.reload_ms),
            format_milliseconds(outcome.mean_added_ms),
            outcome.evictions.to_string(),
            format_change(self.to_least_recently_used, 1),
        ]
    }

    /// Which instances were loaded most often, in a line.
    fn loaded_line(&self, problem: &EvictionProblem) -> String {
        let loads = problem.instances.iter().zip(&self.outcome.loads);
        let mut loaded: Vec<(usize, &str)> = loads
            .filter(|(_, times)| **times > 0)
            .map(|(instance, times)| (*times, instance.name.as_str()))
            .collect();
        loaded.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
        let named = loaded.iter().map(|(times, name)| format!("{name} {times}"));
        format!("loads: {}", first_names(&named.collect::<Vec<_>>(), "none", "of "))
    }
}

impl PlanView<EvictionProblem> for EvictionReport {
    fn draw_svg(&self, problem: &EvictionProblem) -> String {
        loads_chart(problem, self).to_svg()
    }

    fn print_view(&self, problem: &EvictionProblem) -> Result<()> {
        let mut table = eviction_table();
        table.add_row(self.table_cells());
        table.print_table()?;
        output::print_line(&self.loaded_line(problem))
    }
}

impl PlanView<EvictionProblem> for EvictionComparison {
    fn draw_svg(&self, _problem: &EvictionProblem) -> String {
        reload_time_chart(&self.policies).to_svg()
    }

    fn print_view(&self, _problem: &EvictionProblem) -> Result<()> {
        let mut table = eviction_table();
        self.policies.iter().for_each(|report| table.add_row(report.table_cells()));
        table.print_table()
    }
}

fn eviction_table() -> Table {
    Table::new(&[
        "policy",
        ">requests",
        ">cold starts",
        ">hit rate",
        ">reload time",
        ">added per request",
        ">evictions",
        ">to least recently used",
    ])
}

/// How much time each policy loses.
fn reload_time_chart(reports: &[EvictionReport]) -> BarChart {
    BarChart {
        title: "Eviction: reload time by policy".to_owned(),
        y_label: "reload time (ms)".to_owned(),
        groups: reports.iter().map(|report| report.policy.name().to_owned()).collect(),
        series: vec![(
            "reload time".to_owned(),
            reports.iter().map(|report| report.outcome.reload_ms).collect(),
        )],
    }
}

/// How often each instance is loaded.
fn loads_chart(problem: &EvictionProblem, report: &EvictionReport) -> BarChart {
    BarChart {
        title: format!("Eviction: loads with {}", report.policy.name()),
        y_label: "loads (count)".to_owned(),
        groups: problem.instances.iter().map(|instance| instance.name.clone()).collect(),
        series: vec![(
            "loads".to_owned(),
            report.outcome.loads.iter().map(|times| *times as f64).collect(),
        )],
    }
}
