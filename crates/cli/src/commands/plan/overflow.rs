//! `tessera plan overflow`: which blocks the CPU runs while the GPU is busy.

mod drawing;

use serde::Serialize;
use tessera_bench::strategies::{RandomOverflowOptions, measure_random_overflows};
use tessera_command::{flag_error, plan_timed, problem_file};
use tessera_core::{Error, ErrorKind, Result};
use tessera_plan::overflow::{
    OverflowDevice, OverflowPlan, OverflowProblem, OverflowRun, OverflowSolution,
    find_overflow_strategy, overflow_strategies, sequential_us, simulate_overflow,
};
use tessera_report::{
    Table, format_bytes_f64, format_change, format_microseconds, format_percent, output, time_ratio,
};

use super::outline::{
    PlanOutput, PlanView, PlannerCommand, first_names, named_lines, read_checked,
};
use super::{format_proof, read_previous_plan};
use crate::arguments::plan::overflow::OverflowArguments;

impl PlannerCommand for OverflowArguments {
    type Problem = OverflowProblem;
    type Plan = OverflowPlan;
    type Report = OverflowReport;
    type Comparison = OverflowComparison;

    fn plan_output(&self) -> PlanOutput<'_> {
        PlanOutput { svg: self.svg.as_deref(), json: self.json }
    }

    fn wanted_strategy(&self) -> Option<&str> {
        self.strategy.as_deref()
    }

    fn default_strategy(&self, _problem: &OverflowProblem) -> &'static str {
        "communication"
    }

    fn strategy_lines(&self) -> Vec<(String, String)> {
        named_lines(
            overflow_strategies().iter().map(|known| (known.name(), known.one_line_summary())),
        )
    }

    fn measure_random(&self) -> Option<Result<()>> {
        self.random.map(|graphs| {
            measure_random_overflows(&RandomOverflowOptions {
                graphs,
                blocks: self.blocks,
                seed: self.seed,
                strategy: self.strategy.as_deref(),
                time_limit: self.search.time_limit,
                json: self.json,
            })
        })
    }

    fn read_problem(&self) -> Result<OverflowProblem> {
        read_checked(self.inputs.problem.as_deref(), OverflowProblem::check_consistency)
    }

    fn read_previous(&self, _problem: &OverflowProblem) -> Result<Option<OverflowPlan>> {
        self.inputs.previous.as_deref().map(read_previous_plan).transpose()
    }

    fn judge_given(
        &self,
        problem: &OverflowProblem,
        _previous: Option<&OverflowPlan>,
    ) -> Result<Option<OverflowReport>> {
        let Some(path) = &self.inputs.plan else { return Ok(None) };
        let name = problem_file::display_name(path);
        let plan: OverflowPlan = read_previous_plan(path)?;
        let run = simulate_overflow(problem, &plan).map_err(|error| error.with_context(&name))?;
        let planned =
            OverflowSolution { plan, makespan_us: run.makespan_us, bound_us: None, proved: false };
        OverflowReport::new(problem, &name, planned, None, 0.0).map(Some)
    }

    fn plan_with(
        &self,
        problem: &OverflowProblem,
        previous: Option<&OverflowPlan>,
        strategy: &str,
    ) -> Result<OverflowReport> {
        let chosen = find_overflow_strategy(strategy).map_err(flag_error)?;
        let (planned, plan_ms) =
            plan_timed(self.search.time_limit, |limit| chosen.find_plan(problem, previous, limit))?;
        OverflowReport::new(problem, chosen.name(), planned, previous, plan_ms)
    }

    fn explain_failure(&self, error: Error) -> Error {
        match &self.inputs.problem {
            Some(path) if error.kind() != ErrorKind::Usage => {
                error.with_context(problem_file::display_name(path))
            }
            _ => error,
        }
    }

    fn compare_reports(
        &self,
        _problem: &OverflowProblem,
        reports: Vec<(String, Result<OverflowReport>)>,
    ) -> Result<OverflowComparison> {
        let compared = reports.into_iter().map(|(strategy, report)| match report {
            Ok(report) => ComparedOverflow::Planned(Box::new(report)),
            Err(error) => ComparedOverflow::Failed { strategy, error: error.to_string() },
        });
        Ok(OverflowComparison { strategies: compared.collect() })
    }
}

/// A plan and what it costs.
#[derive(Serialize)]
pub(crate) struct OverflowReport {
    strategy: String,
    plan: OverflowPlan,
    makespan_us: f64,
    /// The makespan by that of the sequential plan.
    to_sequential: f64,
    blocks_on_cpu: usize,
    bound_us: Option<f64>,
    gap: Option<f64>,
    proved: bool,
    kept: bool,
    plan_ms: f64,
    run: OverflowRun,
}

impl OverflowReport {
    fn new(
        problem: &OverflowProblem,
        strategy: &str,
        planned: OverflowSolution,
        old: Option<&OverflowPlan>,
        plan_ms: f64,
    ) -> Result<Self> {
        let run = simulate_overflow(problem, &planned.plan)?;
        Ok(Self {
            strategy: strategy.to_owned(),
            makespan_us: planned.makespan_us,
            to_sequential: time_ratio(planned.makespan_us, sequential_us(problem)?),
            blocks_on_cpu: planned.plan.count_on(OverflowDevice::Cpu),
            bound_us: planned.bound_us,
            gap: planned.optimality_gap(),
            proved: planned.proved,
            kept: old == Some(&planned.plan),
            plan: planned.plan,
            plan_ms,
            run,
        })
    }

    fn table_cells(&self, problem: &OverflowProblem) -> [String; 10] {
        let run = &self.run;
        [
            self.strategy.clone(),
            format_block_time(self.makespan_us),
            format_change(self.to_sequential, 1),
            format_percent(run.cpu_utilisation, 1),
            format_percent(run.gpu_utilisation, 1),
            format_block_time(run.mean_wait_cpu_us),
            format_block_time(run.mean_wait_gpu_us),
            format_bytes_f64(run.copied_bytes),
            format!("{} of {}", self.blocks_on_cpu, problem.blocks.len()),
            format_proof(self.proved, self.gap),
        ]
    }

    /// Which blocks the CPU runs, in a line.
    fn cpu_line(&self, problem: &OverflowProblem) -> String {
        let blocks = problem.blocks.iter().zip(&self.plan.devices);
        let on_cpu = blocks.filter(|(_, device)| **device == OverflowDevice::Cpu);
        let names: Vec<String> = on_cpu.map(|(block, _)| block.name.clone()).collect();
        format!("on the CPU: {}", first_names(&names, "nothing", ""))
    }
}

impl PlanView<OverflowProblem> for OverflowReport {
    fn draw_svg(&self, problem: &OverflowProblem) -> String {
        drawing::overflow_gantt(problem, self).to_svg()
    }

    fn print_view(&self, problem: &OverflowProblem) -> Result<()> {
        let mut table = overflow_table();
        table.add_row(self.table_cells(problem));
        table.print_table()?;
        output::print_line(&self.cpu_line(problem))?;
        if self.kept {
            output::print_line("the previous plan stays: none that was found is better")?;
        }
        Ok(())
    }
}

fn overflow_table() -> Table {
    Table::new(&[
        "strategy",
        ">makespan",
        ">to sequential",
        ">CPU busy",
        ">GPU busy",
        ">wait for CPU",
        ">wait for GPU",
        ">copied",
        ">on CPU",
        ">proof",
    ])
}

/// What came of each strategy.
#[derive(Serialize)]
pub(crate) struct OverflowComparison {
    strategies: Vec<ComparedOverflow>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ComparedOverflow {
    Planned(Box<OverflowReport>),
    Failed { strategy: String, error: String },
}

impl PlanView<OverflowProblem> for OverflowComparison {
    fn draw_svg(&self, _problem: &OverflowProblem) -> String {
        drawing::makespan_chart(&self.strategies).to_svg()
    }

    fn print_view(&self, problem: &OverflowProblem) -> Result<()> {
        let mut table = overflow_table();
        let mut failures = Vec::new();
        for compared in &self.strategies {
            match compared {
                ComparedOverflow::Planned(report) => table.add_row(report.table_cells(problem)),
                ComparedOverflow::Failed { strategy, error } => {
                    let missing = std::iter::repeat_n("-".to_owned(), 9);
                    table.add_row([strategy.clone()].into_iter().chain(missing));
                    failures.push(error);
                }
            }
        }
        table.print_table()?;
        failures.into_iter().try_for_each(|error| output::print_line(error))
    }
}

/// Microseconds, up to where they are hard to read: blocks take tens of them.
fn format_block_time(value: f64) -> String {
    if value < 10_000.0 { format!("{value:.1} µs") } else { format_microseconds(value) }
}
