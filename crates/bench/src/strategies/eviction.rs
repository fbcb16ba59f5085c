//! How the policies of eviction do on random workloads.

use serde::Serialize;
use tessera_command::flag_error;
use tessera_core::Result;
use tessera_plan::residency::eviction::{
    EvictionPolicy, EvictionProblem, random_eviction_problem, simulate_eviction,
};
use tessera_report::{Table, format_change, output, time_ratio};

/// How many requests are drawn for each workload where nobody says.
const RANDOM_REQUESTS: u64 = 4_000;

/// What is measured.
pub struct RandomEvictionOptions<'a> {
    /// How many workloads.
    pub workloads: u64,
    /// Requests of each.
    pub requests: Option<u64>,
    /// Seed of the first; the next one has the next seed.
    pub seed: u64,
    /// One policy, or all.
    pub policy: Option<&'a str>,
    /// Whether it is printed for machines.
    pub json: bool,
}

/// What a policy made of a workload.
struct EvictionSample {
    to_least_recently_used: f64,
    hit_rate: f64,
}

impl EvictionSample {
    fn new(problem: &EvictionProblem, policy: EvictionPolicy) -> Result<Self> {
        let outcome = simulate_eviction(problem, policy)?;
        let known = simulate_eviction(problem, EvictionPolicy::LeastRecentlyUsed)?.reload_ms;
        let to_least_recently_used = time_ratio(outcome.reload_ms, known);
        Ok(Self { to_least_recently_used, hit_rate: outcome.hit_rate })
    }
}

/// How the policies did on random workloads.
#[derive(Serialize)]
struct RandomEvictions {
    workloads: u64,
    requests: u64,
    seed: u64,
    figures: Vec<PolicyFigures>,
}

/// How a policy did: reload times by those of least-recently-used.
#[derive(Serialize)]
struct PolicyFigures {
    policy: EvictionPolicy,
    mean_ratio: f64,
    worst_ratio: f64,
    /// On how many workloads it lost more time than least-recently-used.
    worse: usize,
    mean_hit_rate: f64,
}

/// Simulates random workloads, and prints how the policies did.
pub fn measure_random_evictions(options: &RandomEvictionOptions<'_>) -> Result<()> {
    let RandomEvictionOptions { workloads, seed, .. } = *options;
    let requests = options.requests.unwrap_or(RANDOM_REQUESTS);
    let chosen = match options.policy {
        None | Some("all") => EvictionPolicy::all().to_vec(),
        Some(name) => vec![EvictionPolicy::from_name(name).map_err(flag_error)?],
    };
    let mut samples: Vec<(EvictionPolicy, Vec<EvictionSample>)> =
        chosen.into_iter().map(|policy| (policy, Vec::new())).collect();
    let bar = output::progress_bar(workloads, "simulating requests");
    for number in 0..workloads {
        let problem = random_eviction_problem(requests as usize, seed.wrapping_add(number));
        for (policy, outcomes) in &mut samples {
            outcomes.push(EvictionSample::new(&problem, *policy)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let figures = |(policy, outcomes): (EvictionPolicy, Vec<EvictionSample>)| {
        let mean = |of: fn(&EvictionSample) -> f64| {
            outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64
        };
        let ratios = || outcomes.iter().map(|report| report.to_least_recently_used);
        PolicyFigures {
            policy,
            mean_ratio: mean(|report| report.to_least_recently_used),
            worst_ratio: ratios().fold(0.0, f64::max),
            worse: ratios().filter(|ratio| *ratio > 1.0).count(),
            mean_hit_rate: mean(|report| report.hit_rate),
        }
    };
    let figures = samples.into_iter().map(figures).collect();
    let measured = RandomEvictions { workloads, requests, seed, figures };
    if options.json { output::print_json(&measured) } else { measured.print_table() }
}

impl RandomEvictions {
    fn print_table(&self) -> Result<()> {
        let mut table = Table::new(&[
            "policy",
            ">to least recently used",
            ">worst",
            ">workloads worse",
            ">hit rate",
        ]);
        for figures in &self.figures {
            table.add_row([
                figures.policy.name().to_owned(),
                format_change(figures.mean_ratio, 1),
                format_change(figures.worst_ratio, 1),
                figures.worse.to_string(),
                format!("{:.1}%", figures.mean_hit_rate * 100.0),
            ]);
        }
        table.print_table()?;
        let Self { workloads, requests, seed, .. } = self;
        output::print_line(&format!(
            "{workloads} random workloads of {requests} requests, seeds from {seed}; reload times"
        ))
    }
}
