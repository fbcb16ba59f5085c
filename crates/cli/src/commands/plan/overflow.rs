//! `tessera plan overflow`: which blocks the CPU runs while the GPU is busy.

mod drawing;
mod random;

use std::path::Path;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::Limit;
use tessera_plan::overflow::{
    Device, Plan, Planned, Problem, Run, Strategy, simulate, strategies, strategy,
};

use super::figures::{change, proof, ratio};
use super::{list, previous};
use crate::arguments::plan::overflow::OverflowArguments;
use crate::output::{self, Table};
use crate::problem_file;

/// How many names of blocks are printed.
const NAMES: usize = 12;

pub(super) fn run(arguments: &OverflowArguments) -> Result<()> {
    let wanted = arguments.strategy.as_deref();
    if wanted == Some("help") {
        return list(strategies().map(|strategy| (strategy.name(), strategy.about())));
    }
    if let Some(graphs) = arguments.random {
        return random::measure(arguments, graphs);
    }
    let Some(path) = &arguments.problem else {
        return Err(Error::usage("PROBLEM is missing: a file in YAML or JSON; see --help"));
    };
    let problem: Problem = problem_file::read(path)?;
    let name = problem_file::name(path);
    problem.check().map_err(|error| error.within(&name))?;
    if let Some(path) = &arguments.plan {
        return judge(arguments, &problem, path);
    }
    let old: Option<Plan> = arguments.previous.as_deref().map(previous).transpose()?;
    if wanted == Some("all") {
        return compare(arguments, &problem, old.as_ref());
    }
    let chosen = choose(wanted.unwrap_or("communication"))?;
    let planned = timed(arguments, &problem, old.as_ref(), chosen);
    let (planned, plan_ms) = planned.map_err(|error| error.within(&name))?;
    let report = Report::new(&problem, chosen.name(), planned, old.as_ref(), plan_ms)?;
    show(arguments, &problem, &report)
}

/// The strategy that the user means.
fn choose(name: &str) -> Result<&'static dyn Strategy> {
    strategy(name).map_err(|error| Error::usage(format!("--{error}")))
}

/// Plans, and says how many milliseconds that took.
fn timed(
    arguments: &OverflowArguments,
    problem: &Problem,
    previous: Option<&Plan>,
    strategy: &dyn Strategy,
) -> Result<(Planned, f64)> {
    super::timed(arguments.time_limit, |limit| strategy.plan(problem, previous, limit))
}

/// What a plan of the user's would bring.
fn judge(arguments: &OverflowArguments, problem: &Problem, path: &Path) -> Result<()> {
    let name = problem_file::name(path);
    let plan: Plan = previous(path)?;
    let run = simulate(problem, &plan).map_err(|error| error.within(&name))?;
    let planned = Planned { plan, makespan_us: run.makespan_us, bound_us: None, proved: false };
    show(arguments, problem, &Report::new(problem, &name, planned, None, 0.0)?)
}

/// All strategies side by side.
fn compare(arguments: &OverflowArguments, problem: &Problem, old: Option<&Plan>) -> Result<()> {
    let known = strategies();
    let bar = output::progress(known.len() as u64, "planning");
    let mut compared = Vec::with_capacity(known.len());
    for strategy in known {
        let name = strategy.name();
        compared.push(match timed(arguments, problem, old, strategy) {
            Ok((planned, plan_ms)) => {
                let report = Report::new(problem, name, planned, old, plan_ms)?;
                Compared::Planned(Box::new(report))
            }
            Err(error) => Compared::Failed { strategy: name, error: error.to_string() },
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::makespans(&compared).svg())?;
    }
    let comparison = Comparison { strategies: compared };
    match arguments.json {
        true => output::print_json(&comparison),
        false => comparison.print(problem),
    }
}

/// Prints and draws one plan.
fn show(arguments: &OverflowArguments, problem: &Problem, report: &Report) -> Result<()> {
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &drawing::gantt(problem, report).svg())?;
    }
    if arguments.json {
        return output::print_json(report);
    }
    let mut table = heads();
    table.row(report.cells(problem));
    table.print()?;
    output::print(&report.on_cpu(problem))?;
    match report.kept {
        true => output::print("the previous plan stays: none that was found is better"),
        false => Ok(()),
    }
}

/// A plan and what it costs.
#[derive(Serialize)]
struct Report {
    strategy: String,
    plan: Plan,
    makespan_us: f64,
    /// The makespan by that of the sequential plan.
    to_sequential: f64,
    blocks_on_cpu: usize,
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
        Ok(Self {
            strategy: strategy.to_owned(),
            makespan_us: planned.makespan_us,
            to_sequential: ratio(planned.makespan_us, sequential_us(problem)?),
            blocks_on_cpu: planned.plan.count(Device::Cpu),
            bound_us: planned.bound_us,
            gap: planned.gap(),
            proved: planned.proved,
            kept: old == Some(&planned.plan),
            plan: planned.plan,
            plan_ms,
            run,
        })
    }

    fn cells(&self, problem: &Problem) -> [String; 10] {
        let run = &self.run;
        [
            self.strategy.clone(),
            micros(self.makespan_us),
            change(self.to_sequential, 1),
            share(run.cpu_utilisation),
            share(run.gpu_utilisation),
            micros(run.mean_wait_cpu_us),
            micros(run.mean_wait_gpu_us),
            output::bytes(run.copied_bytes.round() as u64),
            format!("{} of {}", self.blocks_on_cpu, problem.blocks.len()),
            proof(self.proved, self.gap),
        ]
    }

    /// Which blocks the CPU runs, in a line.
    fn on_cpu(&self, problem: &Problem) -> String {
        let blocks = problem.blocks.iter().zip(&self.plan.devices);
        let on_cpu = blocks.filter(|(_, device)| **device == Device::Cpu);
        let names: Vec<&str> = on_cpu.map(|(block, _)| block.name.as_str()).collect();
        let shown = names.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => "on the CPU: nothing".to_owned(),
            count if count > NAMES => format!("on the CPU: {shown} and {} more", count - NAMES),
            _ => format!("on the CPU: {shown}"),
        }
    }
}

fn heads() -> Table {
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
struct Comparison {
    strategies: Vec<Compared>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Compared {
    Planned(Box<Report>),
    Failed { strategy: &'static str, error: String },
}

impl Comparison {
    fn print(&self, problem: &Problem) -> Result<()> {
        let mut table = heads();
        let mut failures = Vec::new();
        for compared in &self.strategies {
            match compared {
                Compared::Planned(report) => table.row(report.cells(problem)),
                Compared::Failed { strategy, error } => {
                    let missing = std::iter::repeat_n("-".to_owned(), 9);
                    table.row([(*strategy).to_owned()].into_iter().chain(missing));
                    failures.push(error);
                }
            }
        }
        table.print()?;
        failures.into_iter().try_for_each(|error| output::print(error))
    }
}

/// What the plan of today's runtimes costs.
fn sequential_us(problem: &Problem) -> Result<f64> {
    Ok(strategy("sequential")?.plan(problem, None, &Limit::none())?.makespan_us)
}

fn share(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Microseconds, up to where they are hard to read: blocks take tens of them.
fn micros(value: f64) -> String {
    match value < 10_000.0 {
        true => format!("{value:.1} µs"),
        false => output::milliseconds(value / 1e3),
    }
}
