//! `tessera plan residency`: which layers are loaded into GPU memory, and which are read from the
//! host.

mod drawing;

use serde::Serialize;
use tessera_bench::strategies::{RandomResidencyOptions, measure_random_residencies};
use tessera_command::{flag_error, plan_timed, problem_file};
use tessera_core::{Error, Result};
use tessera_plan::residency::{
    Residency, ResidencyPlan, ResidencyProblem, ResidencyRun, ResidencySolution, deepplan_server,
    find_residency_strategy, named_profile, pipeline_us, residency_strategies, simulate_residency,
};
use tessera_report::{
    Table, format_bytes_f64, format_change, format_microseconds, output, time_ratio,
};

use super::outline::{
    PlanOutput, PlanView, PlannerCommand, first_names, named_lines, read_checked,
};
use super::{format_proof, read_previous_plan};
use crate::arguments::plan::residency::ResidencyArguments;

impl PlannerCommand for ResidencyArguments {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Report = ResidencyReport;
    type Comparison = ResidencyComparison;

    fn plan_output(&self) -> PlanOutput<'_> {
        PlanOutput { svg: self.svg.as_deref(), json: self.json }
    }

    fn wanted_strategy(&self) -> Option<&str> {
        self.strategy.as_deref()
    }

    fn default_strategy(&self, _problem: &ResidencyProblem) -> &'static str {
        "parallel-direct"
    }

    fn strategy_lines(&self) -> Vec<(String, String)> {
        let known = residency_strategies().iter();
        named_lines(known.map(|strategy| (strategy.name(), strategy.one_line_summary())))
    }

    fn measure_random(&self) -> Option<Result<()>> {
        self.random.map(|profiles| {
            measure_random_residencies(&RandomResidencyOptions {
                profiles,
                layers: self.layers,
                gpus: self.gpus.unwrap_or(1),
                seed: self.seed,
                strategy: self.strategy.as_deref(),
                time_limit: self.search.time_limit,
                json: self.json,
            })
        })
    }

    fn read_problem(&self) -> Result<ResidencyProblem> {
        read_residency_problem(self)
    }

    fn read_previous(&self, _problem: &ResidencyProblem) -> Result<Option<ResidencyPlan>> {
        self.inputs.previous.as_deref().map(read_previous_plan).transpose()
    }

    fn judge_given(
        &self,
        problem: &ResidencyProblem,
        _previous: Option<&ResidencyPlan>,
    ) -> Result<Option<ResidencyReport>> {
        let Some(path) = &self.inputs.plan else { return Ok(None) };
        let name = problem_file::display_name(path);
        let plan: ResidencyPlan = read_previous_plan(path)?;
        let run = simulate_residency(problem, &plan).map_err(|error| error.with_context(&name))?;
        let planned =
            ResidencySolution { plan, total_us: run.total_us, bound_us: None, proved: false };
        ResidencyReport::new(problem, &name, planned, None, 0.0).map(Some)
    }

    fn plan_with(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        strategy: &str,
    ) -> Result<ResidencyReport> {
        let chosen = find_residency_strategy(strategy).map_err(flag_error)?;
        let (planned, plan_ms) =
            plan_timed(self.search.time_limit, |limit| chosen.find_plan(problem, previous, limit))?;
        ResidencyReport::new(problem, chosen.name(), planned, previous, plan_ms)
    }

    fn compare_reports(
        &self,
        _problem: &ResidencyProblem,
        reports: Vec<(String, Result<ResidencyReport>)>,
    ) -> Result<ResidencyComparison> {
        let strategies = reports.into_iter().map(|(_, report)| report).collect::<Result<_>>()?;
        Ok(ResidencyComparison { strategies })
    }
}

/// The problem that the user means: of a file, or a well-known one.
fn read_residency_problem(arguments: &ResidencyArguments) -> Result<ResidencyProblem> {
    if let Some(name) = &arguments.profile {
        let mut problem = named_profile(name, arguments.seed).map_err(flag_error)?;
        if let Some(gpus) = arguments.gpus {
            (problem.gpus, problem.nvlinks) = deepplan_server(gpus as usize);
        }
        return Ok(problem);
    }
    if arguments.inputs.problem.is_none() {
        let message = "PROBLEM is missing: a file in YAML or JSON, or --profile; see --help";
        return Err(Error::usage(message));
    }
    if arguments.gpus.is_some() {
        return Err(Error::usage("--gpus: only with --profile or --random; PROBLEM has its own"));
    }
    read_checked(arguments.inputs.problem.as_deref(), ResidencyProblem::check_consistency)
}

/// What came of each strategy.
#[derive(Serialize)]
pub(crate) struct ResidencyComparison {
    strategies: Vec<ResidencyReport>,
}

/// A plan and what it costs.
#[derive(Serialize)]
pub(crate) struct ResidencyReport {
    strategy: String,
    plan: ResidencyPlan,
    total_us: f64,
    /// The total by that of the pipeline.
    to_pipeline: f64,
    stall_us: f64,
    gpu_bytes: f64,
    /// The most bytes on their way on GPUs that help, all together.
    temporary_bytes: f64,
    /// GPUs that load.
    gpus: usize,
    /// Names of the layers that are left on the host.
    on_host: Vec<String>,
    bound_us: Option<f64>,
    gap: Option<f64>,
    proved: bool,
    kept: bool,
    plan_ms: f64,
    run: ResidencyRun,
}

impl ResidencyReport {
    fn new(
        problem: &ResidencyProblem,
        strategy: &str,
        planned: ResidencySolution,
        old: Option<&ResidencyPlan>,
        plan_ms: f64,
    ) -> Result<Self> {
        let run = simulate_residency(problem, &planned.plan)?;
        let layers = problem.layers.iter().zip(&planned.plan.layers);
        let on_host = layers.filter(|(_, residency)| **residency == Residency::Direct);
        Ok(Self {
            strategy: strategy.to_owned(),
            total_us: planned.total_us,
            to_pipeline: time_ratio(planned.total_us, pipeline_us(problem)?),
            stall_us: run.stall_us,
            gpu_bytes: run.gpu_bytes,
            temporary_bytes: run.temporary_bytes.iter().sum(),
            gpus: planned.plan.loading_gpus(problem),
            on_host: on_host.map(|(layer, _)| layer.name.clone()).collect(),
            bound_us: planned.bound_us,
            gap: planned.optimality_gap(),
            proved: planned.proved,
            kept: old == Some(&planned.plan),
            plan: planned.plan,
            plan_ms,
            run,
        })
    }

    fn table_cells(&self, problem: &ResidencyProblem) -> [String; 9] {
        [
            self.strategy.clone(),
            format_microseconds(self.total_us),
            format_change(self.to_pipeline, 2),
            format_microseconds(self.stall_us),
            format_bytes_f64(self.gpu_bytes),
            format_bytes_f64(self.temporary_bytes),
            format!("{} of {}", self.on_host.len(), problem.layers.len()),
            self.gpus.to_string(),
            format_proof(self.proved, self.gap),
        ]
    }
}

impl PlanView<ResidencyProblem> for ResidencyReport {
    fn draw_svg(&self, problem: &ResidencyProblem) -> String {
        drawing::residency_gantt(problem, self).to_svg()
    }

    fn print_view(&self, problem: &ResidencyProblem) -> Result<()> {
        let mut table = residency_table();
        table.add_row(self.table_cells(problem));
        table.print_table()?;
        let on_host = first_names(&self.on_host, "nothing", "");
        output::print_line(&format!("on the host: {on_host}"))?;
        if self.kept {
            output::print_line("the previous plan stays: none that was found is quicker")?;
        }
        Ok(())
    }
}

impl PlanView<ResidencyProblem> for ResidencyComparison {
    fn draw_svg(&self, _problem: &ResidencyProblem) -> String {
        drawing::total_time_chart(&self.strategies).to_svg()
    }

    fn print_view(&self, problem: &ResidencyProblem) -> Result<()> {
        let mut table = residency_table();
        self.strategies.iter().for_each(|report| table.add_row(report.table_cells(problem)));
        table.print_table()
    }
}

fn residency_table() -> Table {
    Table::new(&[
        "strategy",
        ">time to result",
        ">to pipeline",
        ">stall",
        ">GPU memory",
        ">on helpers",
        ">on host",
        ">GPUs",
        ">proof",
    ])
}
