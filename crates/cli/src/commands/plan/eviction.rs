//! `tessera plan eviction`: which instance of a model leaves GPU memory when another needs room.

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::residency::eviction::{Outcome, Policy, Problem, draw, random, simulate};

use super::figures::{change, ratio};
use super::list;
use crate::arguments::plan::eviction::EvictionArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::problem_file;

/// How many requests are drawn where nobody says.
const REQUESTS: u64 = 10_000;

/// The same for each of many random workloads.
const RANDOM_REQUESTS: u64 = 4_000;

/// How many names of instances are printed.
const NAMES: usize = 12;

pub(super) fn run(arguments: &EvictionArguments) -> Result<()> {
    let wanted = arguments.policy.as_deref();
    if wanted == Some("help") {
        return list(Policy::all().map(|policy| (policy.name(), policy.about())));
    }
    if let Some(workloads) = arguments.random {
        return measure(arguments, workloads);
    }
    let problem = read(arguments)?;
    if wanted == Some("all") {
        return compare(arguments, &problem);
    }
    let report = Report::new(&problem, choose(wanted.unwrap_or("reload-cost"))?)?;
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &loads(&problem, &report).svg())?;
    }
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = heads();
    table.row(report.cells());
    table.print()?;
    output::print(&report.loaded_line(&problem))
}

/// The policy that the user means.
fn choose(name: &str) -> Result<Policy> {
    Policy::named(name).map_err(|error| Error::usage(format!("--{error}")))
}

/// The problem, with requests: its own, or drawn from its rates.
fn read(arguments: &EvictionArguments) -> Result<Problem> {
    let Some(path) = &arguments.problem else {
        return Err(Error::usage("PROBLEM is missing: a file in YAML or JSON; see --help"));
    };
    let name = problem_file::name(path);
    let mut problem: Problem = problem_file::read(path)?;
    problem.check().map_err(|error| error.within(&name))?;
    if arguments.requests.is_some() || problem.requests.is_empty() {
        let count = arguments.requests.unwrap_or(REQUESTS) as usize;
        problem.requests =
            draw(&problem, count, arguments.seed).map_err(|error| error.within(&name))?;
    }
    Ok(problem)
}

/// All policies side by side.
fn compare(arguments: &EvictionArguments, problem: &Problem) -> Result<()> {
    let reports = Policy::all().map(|policy| Report::new(problem, policy));
    let policies = reports.into_iter().collect::<Result<Vec<Report>>>()?;
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &lost(&policies).svg())?;
    }
    let comparison = Comparison { policies };
    if arguments.json {
        return output::print_json(&comparison);
    }
    let mut table = heads();
    comparison.policies.iter().for_each(|report| table.row(report.cells()));
    table.print()
}

/// What came of each policy.
#[derive(Serialize)]
struct Comparison {
    policies: Vec<Report>,
}

/// What came of a policy.
#[derive(Serialize)]
struct Report {
    policy: Policy,
    /// The reload time by that of least-recently-used.
    to_least_recently_used: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Report {
    fn new(problem: &Problem, policy: Policy) -> Result<Self> {
        let outcome = simulate(problem, policy)?;
        let known = simulate(problem, Policy::LeastRecentlyUsed)?.reload_ms;
        Ok(Self { policy, to_least_recently_used: ratio(outcome.reload_ms, known), outcome })
    }

    fn cells(&self) -> [String; 8] {
        let outcome = &self.outcome;
        [
            self.policy.name().to_owned(),
            outcome.requests.to_string(),
            outcome.cold_starts.to_string(),
            format!("{:.1}%", outcome.hit_rate * 100.0),
            output::milliseconds(outcome.reload_ms),
            output::milliseconds(outcome.mean_added_ms),
            outcome.evictions.to_string(),
            change(self.to_least_recently_used, 1),
        ]
    }

    /// Which instances were loaded most often, in a line.
    fn loaded_line(&self, problem: &Problem) -> String {
        let loads = problem.instances.iter().zip(&self.outcome.loads);
        let mut loaded: Vec<(usize, &str)> = loads
            .filter(|(_, times)| **times > 0)
            .map(|(instance, times)| (*times, instance.name.as_str()))
            .collect();
        loaded.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
        let shown = loaded.iter().take(NAMES).map(|(times, name)| format!("{name} {times}"));
        let shown = shown.collect::<Vec<_>>().join(", ");
        match loaded.len() {
            0 => "loads: none".to_owned(),
            count if count > NAMES => format!("loads: {shown} and of {} more", count - NAMES),
            _ => format!("loads: {shown}"),
        }
    }
}

fn heads() -> Table {
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

/// How the policies did on random workloads.
#[derive(Serialize)]
struct Measured {
    workloads: u64,
    requests: u64,
    seed: u64,
    figures: Vec<Figures>,
}

/// How a policy did: reload times by those of least-recently-used.
#[derive(Serialize)]
struct Figures {
    policy: Policy,
    mean_ratio: f64,
    worst_ratio: f64,
    /// On how many workloads it lost more time than least-recently-used.
    worse: usize,
    mean_hit_rate: f64,
}

/// Plays random workloads through, and prints how the policies did.
fn measure(arguments: &EvictionArguments, workloads: u64) -> Result<()> {
    let requests = arguments.requests.unwrap_or(RANDOM_REQUESTS);
    let chosen = match arguments.policy.as_deref() {
        None | Some("all") => Policy::all().to_vec(),
        Some(name) => vec![choose(name)?],
    };
    let mut samples: Vec<(Policy, Vec<Report>)> =
        chosen.into_iter().map(|policy| (policy, Vec::new())).collect();
    let bar = output::progress(workloads, "playing requests through");
    for number in 0..workloads {
        let problem = random(requests as usize, arguments.seed.wrapping_add(number));
        for (policy, reports) in &mut samples {
            reports.push(Report::new(&problem, *policy)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let figures = |(policy, reports): (Policy, Vec<Report>)| {
        let mean = |of: fn(&Report) -> f64| {
            reports.iter().map(of).sum::<f64>() / reports.len().max(1) as f64
        };
        let ratios = || reports.iter().map(|report| report.to_least_recently_used);
        Figures {
            policy,
            mean_ratio: mean(|report| report.to_least_recently_used),
            worst_ratio: ratios().fold(0.0, f64::max),
            worse: ratios().filter(|ratio| *ratio > 1.0).count(),
            mean_hit_rate: mean(|report| report.outcome.hit_rate),
        }
    };
    let seed = arguments.seed;
    let figures = samples.into_iter().map(figures).collect();
    let measured = Measured { workloads, requests, seed, figures };
    match arguments.json {
        true => output::print_json(&measured),
        false => measured.print(),
    }
}

impl Measured {
    fn print(&self) -> Result<()> {
        let mut table = Table::new(&[
            "policy",
            ">to least recently used",
            ">worst",
            ">workloads worse",
            ">hit rate",
        ]);
        for figures in &self.figures {
            table.row([
                figures.policy.name().to_owned(),
                change(figures.mean_ratio, 1),
                change(figures.worst_ratio, 1),
                figures.worse.to_string(),
                format!("{:.1}%", figures.mean_hit_rate * 100.0),
            ]);
        }
        table.print()?;
        let Self { workloads, requests, seed, .. } = self;
        output::print(&format!(
            "{workloads} random workloads of {requests} requests, seeds from {seed}; reload times"
        ))
    }
}

/// How much time each policy loses.
fn lost(reports: &[Report]) -> Bars {
    Bars {
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
fn loads(problem: &Problem, report: &Report) -> Bars {
    Bars {
        title: format!("Eviction: loads with {}", report.policy.name()),
        y_label: "loads (count)".to_owned(),
        groups: problem.instances.iter().map(|instance| instance.name.clone()).collect(),
        series: vec![(
            "loads".to_owned(),
            report.outcome.loads.iter().map(|times| *times as f64).collect(),
        )],
    }
}
