//! `tessera plan overflow`: which blocks the CPU runs while the GPU is busy.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_node::median;
use tessera_plan::Limit;
use tessera_plan::overflow::{
    Copied, Device, Plan, Planned, Problem, Run, Strategy, random, simulate, strategies, strategy,
};

use super::previous;
use crate::arguments::plan::overflow::OverflowArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::picture::gantt::{Bar, Gantt, Kind, Row, Style};
use crate::problem_file;
use crate::time_limit::TimeLimit;

/// The largest random graphs that `exact` is asked for: nearly all of them are solved in milliseconds.
const EXACT_BLOCKS: u64 = 12;

/// How many names of blocks are printed.
const NAMES: usize = 12;

/// Most rows for copies of one direction in the picture.
const LANES: usize = 6;

/// How much worse than sequential counts as worse: less is rounding.
const ROUNDING: f64 = 1e-12;

pub(super) fn run(arguments: &OverflowArguments) -> Result<()> {
    let wanted = arguments.strategy.as_deref();
    if wanted == Some("help") {
        return list();
    }
    if let Some(graphs) = arguments.random {
        return measure(arguments, graphs);
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
    let (planned, plan_ms) = timed(arguments, &problem, old.as_ref(), chosen);
    let planned = planned.map_err(|error| error.within(&name))?;
    let report = Report::new(&problem, chosen.name(), planned, old.as_ref(), plan_ms)?;
    show(arguments, &problem, &report)
}

/// The strategies with what they do.
fn list() -> Result<()> {
    let known = strategies();
    let width = known.iter().map(|strategy| strategy.name().len()).max().unwrap_or(0);
    for strategy in known {
        output::print(&format!("{:width$}  {}", strategy.name(), strategy.about()))?;
    }
    Ok(())
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
) -> (Result<Planned>, f64) {
    let limit = TimeLimit::new(arguments.time_limit);
    let reached = || limit.reached();
    let start = Instant::now();
    let planned = strategy.plan(problem, previous, &Limit::new(&reached));
    (planned, start.elapsed().as_secs_f64() * 1e3)
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
        let (planned, plan_ms) = timed(arguments, problem, old, strategy);
        compared.push(match planned {
            Ok(planned) => Compared::Planned(Box::new(Report::new(
                problem,
                strategy.name(),
                planned,
                old,
                plan_ms,
            )?)),
            Err(error) => Compared::Failed { strategy: strategy.name(), error: error.to_string() },
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &makespans(&compared).svg())?;
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
        problem_file::write(file, &gantt(problem, report).svg())?;
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
            change(self.to_sequential),
            share(run.cpu_utilisation),
            share(run.gpu_utilisation),
            micros(run.mean_wait_cpu_us),
            micros(run.mean_wait_gpu_us),
            output::bytes(run.copied_bytes.round() as u64),
            format!("{} of {}", self.blocks_on_cpu, problem.blocks.len()),
            match (self.proved, self.gap) {
                (true, _) => "optimal".to_owned(),
                (false, Some(gap)) => format!("within {:.1}%", gap * 100.0),
                (false, None) => "-".to_owned(),
            },
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

/// How the strategies did on random graphs.
#[derive(Serialize)]
struct Measured {
    graphs: u64,
    blocks: u64,
    seed: u64,
    /// How many of the graphs `exact` solved; none where they are too large to ask.
    solved: Option<usize>,
    figures: Vec<Figures>,
}

/// How a strategy did.
#[derive(Serialize)]
struct Figures {
    strategy: &'static str,
    to_sequential: Spread,
    /// On how many graphs it was worse than the sequential plan.
    worse_than_sequential: usize,
    /// On the graphs that `exact` solved.
    to_exact: Option<Spread>,
    plan_ms_median: f64,
    plan_ms_max: f64,
}

/// Ratios of makespans.
#[derive(Serialize)]
struct Spread {
    mean: f64,
    worst: f64,
}

impl Spread {
    fn of(ratios: &[f64]) -> Option<Self> {
        let worst = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { mean: ratios.iter().sum::<f64>() / ratios.len() as f64, worst })
    }
}

/// What a strategy was measured to do, graph by graph.
struct Samples {
    strategy: &'static dyn Strategy,
    to_sequential: Vec<f64>,
    to_exact: Vec<f64>,
    plan_ms: Vec<f64>,
}

impl Samples {
    fn figures(mut self) -> Option<Figures> {
        self.plan_ms.sort_by(f64::total_cmp);
        let is_worse = |ratio: &&f64| **ratio > 1.0 + ROUNDING;
        Some(Figures {
            strategy: self.strategy.name(),
            to_sequential: Spread::of(&self.to_sequential)?,
            worse_than_sequential: self.to_sequential.iter().filter(is_worse).count(),
            to_exact: Spread::of(&self.to_exact),
            plan_ms_median: median(&self.plan_ms)?,
            plan_ms_max: self.plan_ms.last().copied()?,
        })
    }
}

/// Plans random graphs with the strategies that the user means, and prints how they did.
fn measure(arguments: &OverflowArguments, graphs: u64) -> Result<()> {
    let can_solve = arguments.blocks <= EXACT_BLOCKS;
    let exact = choose("exact")?;
    let chosen: Vec<&'static dyn Strategy> = match arguments.strategy.as_deref() {
        None | Some("all") => strategies().into_iter().collect(),
        Some(name) => vec![choose(name)?],
    };
    let is_asked = |strategy: &&'static dyn Strategy| can_solve || strategy.name() != "exact";
    let sample = |strategy| Samples {
        strategy,
        to_sequential: Vec::new(),
        to_exact: Vec::new(),
        plan_ms: Vec::new(),
    };
    let mut samples: Vec<Samples> = chosen.into_iter().filter(is_asked).map(sample).collect();
    if samples.is_empty() {
        let message = format!("--blocks: exact is asked for at most {EXACT_BLOCKS} blocks");
        return Err(Error::usage(message));
    }
    let bar = output::progress(graphs, "planning");
    let mut solved = 0;
    for number in 0..graphs {
        let problem = random(arguments.blocks as usize, arguments.seed.wrapping_add(number));
        let sequential_us = sequential_us(&problem)?;
        let (optimum, exact_ms) = match can_solve {
            true => timed(arguments, &problem, None, exact),
            false => (Err(Error::usage("too large")), 0.0),
        };
        let optimum = optimum.ok();
        let optimum_us = optimum.as_ref().filter(|planned| planned.proved);
        let optimum_us = optimum_us.map(|planned| planned.makespan_us);
        solved += usize::from(optimum_us.is_some());
        for samples in &mut samples {
            // The optimum is not searched twice.
            let (makespan_us, plan_ms) = match &optimum {
                Some(optimum) if samples.strategy.name() == "exact" => {
                    (optimum.makespan_us, exact_ms)
                }
                _ => {
                    let (planned, took) = timed(arguments, &problem, None, samples.strategy);
                    (planned?.makespan_us, took)
                }
            };
            samples.to_sequential.push(ratio(makespan_us, sequential_us));
            samples.to_exact.extend(optimum_us.map(|least| ratio(makespan_us, least)));
            samples.plan_ms.push(plan_ms);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let measured = Measured {
        graphs,
        blocks: arguments.blocks,
        seed: arguments.seed,
        solved: can_solve.then_some(solved),
        figures: samples.into_iter().filter_map(Samples::figures).collect(),
    };
    match arguments.json {
        true => output::print_json(&measured),
        false => measured.print(),
    }
}

impl Measured {
    fn print(&self) -> Result<()> {
        let mut table = Table::new(&[
            "strategy",
            ">to sequential",
            ">worst",
            ">graphs worse",
            ">to exact",
            ">worst",
            ">plan, median",
            ">max",
        ]);
        for figures in &self.figures {
            let to_exact = |part: fn(&Spread) -> f64| {
                figures.to_exact.as_ref().map_or("-".to_owned(), |spread| change(part(spread)))
            };
            table.row([
                figures.strategy.to_owned(),
                change(figures.to_sequential.mean),
                change(figures.to_sequential.worst),
                figures.worse_than_sequential.to_string(),
                to_exact(|spread| spread.mean),
                to_exact(|spread| spread.worst),
                output::milliseconds(figures.plan_ms_median),
                output::milliseconds(figures.plan_ms_max),
            ]);
        }
        table.print()?;
        let Self { graphs, blocks, seed, .. } = self;
        let seeds = format!("{graphs} random graphs of {blocks} blocks, seeds from {seed}");
        output::print(&match self.solved {
            Some(solved) => format!("{seeds}; exact solved {solved}"),
            None => format!("{seeds}; exact is asked for at most {EXACT_BLOCKS} blocks"),
        })
    }
}

/// What the plan of today's runtimes costs.
fn sequential_us(problem: &Problem) -> Result<f64> {
    Ok(strategy("sequential")?.plan(problem, None, &Limit::none())?.makespan_us)
}

/// One time by another; nothing by nothing is the same.
fn ratio(time: f64, by: f64) -> f64 {
    if time == by { 1.0 } else { time / by }
}

/// A ratio as what it adds.
fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // A tiny loss is no loss of minus nothing.
    let percent = if percent.abs() < 0.05 { 0.0 } else { percent };
    format!("{percent:+.1}%")
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

/// How long the plan of each strategy takes.
fn makespans(compared: &[Compared]) -> Bars {
    let planned = compared.iter().filter_map(|compared| match compared {
        Compared::Planned(report) => Some((report.strategy.clone(), report.makespan_us)),
        Compared::Failed { .. } => None,
    });
    let (groups, times) = planned.unzip();
    Bars {
        title: "Overflow to the CPU: makespan by strategy".to_owned(),
        y_label: "makespan (µs)".to_owned(),
        groups,
        series: vec![("makespan".to_owned(), times)],
    }
}

/// What the devices do when.
fn gantt(problem: &Problem, report: &Report) -> Gantt {
    let (unit, scale) = if report.makespan_us >= 10_000.0 { ("ms", 1e-3) } else { ("µs", 1.0) };
    let bar = |start: f64, end: f64, label: String, kind: usize| Bar {
        start: start * scale,
        end: end * scale,
        label,
        kind,
    };
    let mut rows: Vec<Row> = Vec::new();
    for device in Device::ALL {
        let blocks = problem.blocks.iter().zip(&report.run.blocks);
        let here = blocks.filter(|(_, executed)| executed.device == device);
        let bars = here.map(|(block, executed)| {
            bar(executed.start_us, executed.end_us, block.name.clone(), 0)
        });
        rows.push(Row { name: device.to_string(), bars: bars.collect() });
    }
    for device in [Device::Gpu, Device::Cpu] {
        let copies = report.run.copies.iter().filter(|copy| copy.device == device);
        for (lane, copies) in lanes(copies).into_iter().enumerate() {
            let bars = copies
                .into_iter()
                .map(|copy| bar(copy.start_us, copy.end_us, copy_label(problem, copy), 1));
            let name = if lane == 0 { format!("copies to {device}") } else { String::new() };
            rows.push(Row { name, bars: bars.collect() });
        }
    }
    let kind = |name: &str, style| Kind { name: name.to_owned(), style };
    Gantt {
        title: format!("{}: {}", report.strategy, micros(report.makespan_us)),
        unit,
        rows,
        kinds: vec![kind("block", Style::First), kind("copy", Style::Second)],
    }
}

/// Copies, by when they begin, in rows in which none covers another; at least one row.
fn lanes<'a>(copies: impl Iterator<Item = &'a Copied>) -> Vec<Vec<&'a Copied>> {
    let mut lanes: Vec<Vec<&Copied>> = vec![Vec::new()];
    for copy in copies {
        let is_free =
            |lane: &Vec<&Copied>| lane.last().is_none_or(|last| last.end_us <= copy.start_us);
        match lanes.iter().position(is_free) {
            Some(lane) => lanes[lane].push(copy),
            None if lanes.len() < LANES => lanes.push(vec![copy]),
            // So many at once that they can't be told apart anyway.
            None => lanes[LANES - 1].push(copy),
        }
    }
    lanes
}

fn copy_label(problem: &Problem, copy: &Copied) -> String {
    let name = |block: Option<usize>, none: &str| {
        let block = block.and_then(|block| problem.blocks.get(block));
        block.map_or(none.to_owned(), |block| block.name.clone())
    };
    format!("{} → {}", name(copy.from, "input"), name(copy.to, "result"))
}
