//! `tessera plan residency`: which layers are loaded into GPU memory, and which are read from the host.

mod drawing;
mod random;

use std::path::Path;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::Limit;
use tessera_plan::residency::{
    Plan, Planned, Problem, Residency, Run, Strategy, server, shape, simulate, strategies, strategy,
};

use super::figures::{change, proof, ratio};
use super::{list, previous};
use crate::arguments::plan::residency::ResidencyArguments;
use crate::output::{self, Table};
use crate::problem_file;

/// How many names of layers are printed.
const NAMES: usize = 12;

pub(super) fn run(arguments: &ResidencyArguments) -> Result<()> {
    let wanted = arguments.strategy.as_deref();
    if wanted == Some("help") {
        return list(strategies().iter().map(|strategy| (strategy.name(), strategy.about())));
    }
    if let Some(profiles) = arguments.random {
        return random::measure(arguments, profiles);
    }
    let problem = read(arguments)?;
    if let Some(path) = &arguments.plan {
        return judge(arguments, &problem, path);
    }
    let old: Option<Plan> = arguments.previous.as_deref().map(previous).transpose()?;
    if wanted == Some("all") {
        return compare(arguments, &problem, old.as_ref());
    }
    let chosen = choose(wanted.unwrap_or("parallel-direct"))?;
    let (planned, plan_ms) = timed(arguments, &problem, old.as_ref(), chosen)?;
    let report = Report::new(&problem, chosen.name(), planned, old.as_ref(), plan_ms)?;
    show(arguments, &problem, &report)
}

/// The strategy that the user means.
fn choose(name: &str) -> Result<&'static dyn Strategy> {
    strategy(name).map_err(|error| Error::usage(format!("--{error}")))
}

/// The problem that the user means: of a file, or a well-known one.
fn read(arguments: &ResidencyArguments) -> Result<Problem> {
    if let Some(name) = &arguments.shape {
        let mut problem =
            shape(name, arguments.seed).map_err(|error| Error::usage(format!("--{error}")))?;
        if let Some(gpus) = arguments.gpus {
            (problem.gpus, problem.nvlinks) = server(gpus as usize);
        }
        return Ok(problem);
    }
    let Some(path) = &arguments.problem else {
        let message = "PROBLEM is missing: a file in YAML or JSON, or --shape; see --help";
        return Err(Error::usage(message));
    };
    if arguments.gpus.is_some() {
        return Err(Error::usage("--gpus: only with --shape or --random; PROBLEM has its own"));
    }
    let problem: Problem = problem_file::read(path)?;
    problem.check().map_err(|error| error.within(problem_file::name(path)))?;
    Ok(problem)
}

/// Plans, and says how many milliseconds that took.
fn timed(
    arguments: &ResidencyArguments,
    problem: &Problem,
    previous: Option<&Plan>,
    strategy: &dyn Strategy,
) -> Result<(Planned, f64)> {
    super::timed(arguments.time_limit, |limit| strategy.plan(problem, previous, limit))
}

/// What a plan of the user's would bring.
fn judge(arguments: &ResidencyArguments, problem: &Problem, path: &Path) -> Result<()> {
    let name = problem_file::name(path);
    let plan: Plan = previous(path)?;
    let run = simulate(problem, &plan).map_err(|error| error.within(&name))?;
    let planned = Planned { plan, total_us: run.total_us, bound_us: None, proved: false };
    show(arguments, problem, &Report::new(problem, &name, planned, None, 0.0)?)
}

/// All strategies side by side.
fn compare(arguments: &ResidencyArguments, problem: &Problem, old: Option<&Plan>) -> Result<()> {
    let bar = output::progress(strategies().len() as u64, "planning");
    let mut reports = Vec::with_capacity(strategies().len());
    for strategy in strategies() {
        let (planned, plan_ms) = timed(arguments, problem, old, *strategy)?;
        reports.push(Report::new(problem, strategy.name(), planned, old, plan_ms)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::totals(&reports).svg())?;
    }
    let comparison = Comparison { strategies: reports };
    if arguments.json {
        return output::print_json(&comparison);
    }
    let mut table = heads();
    comparison.strategies.iter().for_each(|report| table.row(report.cells(problem)));
    table.print()
}

/// Prints and draws one plan.
fn show(arguments: &ResidencyArguments, problem: &Problem, report: &Report) -> Result<()> {
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::gantt(problem, report).svg())?;
    }
    if arguments.json {
        return output::print_json(report);
    }
    let mut table = heads();
    table.row(report.cells(problem));
    table.print()?;
    output::print(&report.host_line())?;
    match report.kept {
        true => output::print("the previous plan stays: none that was found is quicker"),
        false => Ok(()),
    }
}

/// What came of each strategy.
#[derive(Serialize)]
struct Comparison {
    strategies: Vec<Report>,
}

/// A plan and what it costs.
#[derive(Serialize)]
struct Report {
    strategy: String,
    plan: Plan,
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
    run: Run,
}

impl Report {
    fn new(
        problem: &Problem,
        strategy: &str,
        planned: Planned,
        old: Option<&Plan>,
        plan_ms: f64,
    ) -> Result<Self> {
        let run = simulate(problem, &planned.plan)?;
        let layers = problem.layers.iter().zip(&planned.plan.layers);
        let on_host = layers.filter(|(_, residency)| **residency == Residency::Direct);
        Ok(Self {
            strategy: strategy.to_owned(),
            total_us: planned.total_us,
            to_pipeline: ratio(planned.total_us, pipeline_us(problem)?),
            stall_us: run.stall_us,
            gpu_bytes: run.gpu_bytes,
            temporary_bytes: run.temporary_bytes.iter().sum(),
            gpus: planned.plan.gpus(problem),
            on_host: on_host.map(|(layer, _)| layer.name.clone()).collect(),
            bound_us: planned.bound_us,
            gap: planned.gap(),
            proved: planned.proved,
            kept: old == Some(&planned.plan),
            plan: planned.plan,
            plan_ms,
            run,
        })
    }

    fn cells(&self, problem: &Problem) -> [String; 9] {
        [
            self.strategy.clone(),
            micros(self.total_us),
            change(self.to_pipeline, 2),
            micros(self.stall_us),
            output::bytes(self.gpu_bytes.round() as u64),
            output::bytes(self.temporary_bytes.round() as u64),
            format!("{} of {}", self.on_host.len(), problem.layers.len()),
            self.gpus.to_string(),
            proof(self.proved, self.gap),
        ]
    }

    /// Which layers are left on the host, in a line.
    fn host_line(&self) -> String {
        let names = &self.on_host;
        let shown = names.iter().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => "on the host: nothing".to_owned(),
            count if count > NAMES => format!("on the host: {shown} and {} more", count - NAMES),
            _ => format!("on the host: {shown}"),
        }
    }
}

fn heads() -> Table {
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

/// How long the pipeline takes.
fn pipeline_us(problem: &Problem) -> Result<f64> {
    Ok(strategy("pipeline")?.plan(problem, None, &Limit::none())?.total_us)
}

fn micros(value: f64) -> String {
    output::milliseconds(value / 1e3)
}
