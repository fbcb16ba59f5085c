//! `tessera bench cold --instances`: more instances than memory has room for, asked at random.
//!
//! DeepPlan's experiment (its figures 13 and 15): so many instances of a model, each with weights
//! of its own, are asked for at random, so many requests a second; or as a trace says. What is
//! simulated beside it is the share of requests that find their weights gone.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tessera_command::parse_byte_size;
use tessera_core::{Device, Error, Result};
use tessera_deploy::ResidencyChoice;
use tessera_engine::WeightLoading;
use tessera_node::LatencySummary;
use tessera_plan::residency::eviction::{
    EvictionInstance, EvictionPolicy, EvictionProblem, EvictionRequest, draw_requests,
    simulate_eviction,
};
use tessera_report::{format_bytes, output};
use tessera_server::{GpuBudget, WeightLimits};

use super::BenchCold;
use super::cold_site::{ColdClient, ColdSite};
use super::request_trace::read_request_trace;
use super::stored_instances::{StoredInstances, WantedInstances};

/// Requests of each instance before anything is measured: until its runs are captured where they
/// are, and it is known when they need which weights.
const WARM_UP_RUNS: usize = 44;

/// Requests a second where nothing is said, as in the paper.
const REQUEST_RATE: f64 = 100.0;

/// Instances that are asked one after the other, cold and then warm, before many are asked at once.
const MOST_ASKED_APART: usize = 40;

/// Options of `tessera bench cold --instances`.
#[derive(Args)]
pub(crate) struct InstancesArguments {
    /// So many instances of a model, each with weights of its own, in memory for some of them, asked
    /// at random; such as 20,100,180 or 20..180, which goes in steps of 20
    #[arg(long, value_name = "N,…")]
    instances: Option<InstanceCounts>,
    /// With --instances: memory for their weights [default: for two fifths of the most instances]
    #[arg(long, value_name = "SIZE", value_parser = parse_byte_size, requires = "instances")]
    memory: Option<u64>,
    /// With --instances: requests of each number of instances
    #[arg(long, default_value = "1000", requires = "instances")]
    requests: NonZeroUsize,
    /// With --instances: whose weights leave; repeat for more [default: least-recently-used and
    /// reload-cost]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, requires = "instances")]
    policy: Vec<EvictionPolicy>,
    /// With --instances: answers that take no longer than this are good ones
    #[arg(long, default_value_t = 25.0, value_name = "MILLISECONDS", requires = "instances")]
    objective: f64,
    /// With --instances: requests as they come in a file of lines such as 1250.5,name (milliseconds,
    /// and who is asked), instead of at random
    #[arg(long, value_name = "FILE", requires = "instances")]
    trace: Option<PathBuf>,
    /// With --instances: how many of their first stages they have in common
    #[arg(long, value_name = "K", requires = "instances")]
    shared_stages: Option<usize>,
}

impl InstancesArguments {
    pub(super) fn is_wanted(&self) -> bool {
        self.instances.is_some()
    }
}

fn parse_policy(name: &str) -> Result<EvictionPolicy> {
    let policy = EvictionPolicy::from_name(name)?;
    if policy == EvictionPolicy::Offline {
        return Err(Error::usage("policy \"offline\" knows what comes, which nobody does here"));
    }
    Ok(policy)
}

/// How many instances, from the fewest to the most.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InstanceCounts(Vec<usize>);

impl FromStr for InstanceCounts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("instances \"{text}\", expected such as 20,100,180 or 20..180"))
        };
        let number = |text: &str| {
            let number = text.trim().parse().ok().filter(|&number: &usize| number > 0);
            number.ok_or_else(wrong)
        };
        let mut counts = match text.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                (from..=to).step_by(from).collect()
            }
            None => text.split(',').map(number).collect::<Result<Vec<_>>>()?,
        };
        counts.sort_unstable();
        counts.dedup();
        if counts.is_empty() {
            return Err(wrong());
        }
        Ok(Self(counts))
    }
}

#[derive(Serialize)]
struct InstancesReport {
    device: String,
    models: Vec<String>,
    /// Of the most instances, each on its own.
    weight_bytes: u64,
    /// What their weights may take.
    memory_bytes: u64,
    objective_ms: f64,
    series: Vec<InstancesSeries>,
}

/// A way to load weights, and a policy.
#[derive(Serialize)]
struct InstancesSeries {
    strategy: String,
    policy: String,
    points: Vec<InstancesPoint>,
}

/// So many instances.
#[derive(Serialize)]
struct InstancesPoint {
    instances: usize,
    /// One request after the other, whose weights are there.
    warm_ms: f64,
    /// The same where they are not; nothing where all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_ms: Option<f64>,
    requests_per_second: f64,
    requests: usize,
    median_ms: f64,
    p99_ms: f64,
    /// Share of the requests that were answered within the objective.
    goodput: f64,
    /// Loads for each request.
    cold_share: f64,
    /// The same as it is simulated, where instances have nothing in common and each fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_cold_share: Option<f64>,
    failed: usize,
    /// Answers that had not the bits of the first one.
    wrong: usize,
}

pub(super) fn bench_instances(arguments: &BenchCold) -> Result<()> {
    let options = &arguments.instances;
    let Some(InstanceCounts(counts)) = &options.instances else { return Ok(()) };
    let rates = match &arguments.rate[..] {
        [] => &[REQUEST_RATE],
        named => named,
    };
    if let Some(wrong) = rates.iter().find(|rate| !rate.is_finite() || **rate <= 0.0) {
        return Err(Error::usage(format!("--rate {wrong}, expected requests a second above 0")));
    }
    if let Some(file) = &options.trace {
        // What is wrong with it is told before anything is made.
        read_request_trace(file, &["any".to_owned()])?;
    }
    let most = counts.last().copied().unwrap_or(1);
    let models = arguments.models_or(&["bert-base"]);
    let stored = StoredInstances::store(&WantedInstances {
        architectures: models.iter().map(|model| model.parse()).collect::<Result<_>>()?,
        count: most,
        sequence: arguments.sequence,
        shared_stages: options.shared_stages,
    })?;
    let weight_bytes: u64 = stored.weight_bytes.iter().sum();
    let memory_bytes = options.memory.unwrap_or_else(|| {
        let largest = stored.weight_bytes.iter().max().copied().unwrap_or_default();
        (weight_bytes * 2 / 5).max(largest)
    });
    let policies = match &options.policy[..] {
        [] => vec![EvictionPolicy::LeastRecentlyUsed, EvictionPolicy::ReloadCost],
        named => named.to_vec(),
    };
    let mut series = Vec::new();
    for strategy in arguments.strategies_or(&[WeightLoading::Pipeline]) {
        for &policy in &policies {
            let limits = match arguments.engine.device {
                Device::Cpu => WeightLimits { host: Some(memory_bytes), ..WeightLimits::default() },
                Device::Cuda(_) => {
                    let gpu = GpuBudget::Bytes(memory_bytes);
                    WeightLimits { gpu, ..WeightLimits::default() }
                }
            };
            let limits = WeightLimits { eviction: policy, loading: strategy, ..limits };
            let load = OfferedLoad { counts, rates };
            let points = measure_series(arguments, load, &stored, limits, memory_bytes)?;
            let policy = policy.name().to_owned();
            series.push(InstancesSeries { strategy: strategy.to_string(), policy, points });
        }
    }
    let report = InstancesReport {
        device: arguments.engine.device.to_string(),
        models,
        weight_bytes,
        memory_bytes,
        objective_ms: options.objective,
        series,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    print_report(&report)
}

fn print_report(report: &InstancesReport) -> Result<()> {
    output::print_line(&format!(
        "{}: {} of weights, memory for {}",
        report.models.join(", "),
        format_bytes(report.weight_bytes),
        format_bytes(report.memory_bytes)
    ))?;
    for series in &report.series {
        let how = format!("{}, {}", series.strategy, series.policy);
        for point in &series.points {
            output::print_line(&point.line(&how, report.objective_ms))?;
        }
    }
    Ok(())
}

impl InstancesPoint {
    fn line(&self, how: &str, objective_ms: f64) -> String {
        let cold = self.cold_ms.map_or_else(|| "–".to_owned(), |cold| format!("{cold:.2} ms"));
        let simulated = self.simulated_cold_share;
        let simulated = simulated
            .map_or_else(String::new, |share| format!(" ({:.1}% simulated)", share * 100.0));
        format!(
            "{how}, {} instances: warm {:.2} ms, cold {cold}; {} requests at {:.0}/s: {:.2} ms, \
             p99 {:.2} ms, {:.1}% within {objective_ms} ms; {:.1}% cold{simulated}; {} failed, {} \
             wrong",
            self.instances,
            self.warm_ms,
            self.requests,
            self.requests_per_second,
            self.median_ms,
            self.p99_ms,
            self.goodput * 100.0,
            self.cold_share * 100.0,
            self.failed,
            self.wrong
        )
    }
}

/// Who is asked, and what for.
struct AskedInstance {
    name: String,
    client: ColdClient,
    /// What it answered first.
    expected: Vec<Vec<u8>>,
}

/// What is asked for: so many instances, and each of them at so many requests a second.
#[derive(Clone, Copy)]
struct OfferedLoad<'a> {
    counts: &'a [usize],
    rates: &'a [f64],
}

fn measure_series(
    arguments: &BenchCold,
    OfferedLoad { counts, rates }: OfferedLoad<'_>,
    stored: &StoredInstances,
    limits: WeightLimits,
    memory_bytes: u64,
) -> Result<Vec<InstancesPoint>> {
    let what = format!("{}, {}", limits.loading, limits.eviction.name());
    let working = output::spinner(format!("{what}: starting {} instances", stored.names.len()));
    let tasks: Vec<(&str, ResidencyChoice)> =
        stored.names.iter().map(|name| (&name[..], ResidencyChoice::Auto)).collect();
    let site = ColdSite::start(&stored.repository, &tasks, limits, &arguments.engine)?;
    let mut asked: Vec<Rc<AskedInstance>> = Vec::new();
    let mut points = Vec::new();
    for &count in counts {
        for number in asked.len()..count {
            working.set_message(format!("{what}: warming up {} of {count}", number + 1));
            asked.push(Rc::new(warm_up_instance(&site, stored, number)?));
        }
        for &rate in rates {
            working.set_message(format!("{what}: {count} instances, {rate} requests a second"));
            let load = PointLoad { rate, policy: limits.eviction, memory_bytes };
            let point = measure_point(arguments, &site, &asked, &stored.weight_bytes, load)?;
            output::print_notice(&point.line(&what, arguments.instances.objective));
            points.push(point);
        }
    }
    working.finish_and_clear();
    Ok(points)
}

fn warm_up_instance(
    site: &ColdSite,
    stored: &StoredInstances,
    number: usize,
) -> Result<AskedInstance> {
    let name = stored.names[number].clone();
    let client = site.new_client(&stored.inputs[number])?;
    let expected = site.ask(&client, &name)?.outputs;
    (1..WARM_UP_RUNS).try_for_each(|_| site.ask(&client, &name).map(drop))?;
    Ok(AskedInstance { name, client, expected })
}

/// Requests one after the other.
#[derive(Default)]
struct TimedApart {
    /// Those whose weights are there, and those whose are not, with the instance's number.
    warm: Vec<(usize, Duration)>,
    cold: Vec<(usize, Duration)>,
    wrong: usize,
}

/// Asks instances one after the other: what was not asked for longest is not there, where anything
/// is not.
fn ask_apart(site: &ColdSite, asked: &[Rc<AskedInstance>]) -> Result<TimedApart> {
    let mut timed = TimedApart::default();
    for (number, instance) in asked.iter().take(MOST_ASKED_APART).enumerate() {
        let (loads, _, _) = site.loads_so_far();
        let first = site.ask(&instance.client, &instance.name)?;
        let was_cold = site.loads_so_far().0 > loads;
        let second = site.ask(&instance.client, &instance.name)?;
        timed.wrong += usize::from(first.outputs != instance.expected);
        timed.warm.push((number, second.took));
        if was_cold {
            timed.cold.push((number, first.took));
        }
    }
    Ok(timed)
}

/// The one in the middle, of instances whose number divided by `models` leaves this.
fn median_ms(times: &[(usize, Duration)], models: usize, model: usize) -> Option<f64> {
    let own = times.iter().filter(|(number, _)| number % models == model);
    let own: Vec<Duration> = own.map(|(_, time)| *time).collect();
    LatencySummary::from_times(&own).map(|summary| summary.median_ms)
}

impl TimedApart {
    /// How much longer a cold request takes of each of so many models, which instances take turns
    /// in.
    fn reloads_ms(&self, models: usize) -> Vec<f64> {
        let reload = |model| {
            let cold = median_ms(&self.cold, models, model)?;
            Some((cold - median_ms(&self.warm, models, model)?).max(0.0))
        };
        (0..models).map(|model| reload(model).unwrap_or_default()).collect()
    }
}

/// What instances are asked at, and with what memory.
#[derive(Clone, Copy)]
struct PointLoad {
    rate: f64,
    policy: EvictionPolicy,
    memory_bytes: u64,
}

fn measure_point(
    arguments: &BenchCold,
    site: &ColdSite,
    asked: &[Rc<AskedInstance>],
    weight_bytes: &[u64],
    load: PointLoad,
) -> Result<InstancesPoint> {
    let options = &arguments.instances;
    let apart = ask_apart(site, asked)?;
    let warm = median_ms(&apart.warm, 1, 0).unwrap_or(f64::NAN);
    let cold = median_ms(&apart.cold, 1, 0);
    let models = arguments.model.len().max(1);
    let problem = eviction_problem(load, weight_bytes, asked, &apart.reloads_ms(models));
    let requests = requests_for(arguments, &problem)?;
    // One that is larger than the memory is more than is simulated, and so are common parts.
    let fits = problem.instances.iter().all(|one| one.bytes <= problem.memory_bytes);
    let is_alone = options.shared_stages.is_none() && fits;
    let simulated =
        is_alone.then(|| simulate_cold_share(&problem, load.policy, &requests)).transpose()?;
    let (loads_before, _, _) = site.loads_so_far();
    let answers = ask_as_they_come(site, asked, &requests)?;
    let (loads, _, _) = site.loads_so_far();
    let took: Vec<Duration> = answers.iter().filter_map(|answer| answer.took).collect();
    let good = took.iter().filter(|took| took.as_secs_f64() * 1e3 <= options.objective).count();
    let count = answers.len();
    let summary =
        LatencySummary::from_times(&took).ok_or_else(|| Error::usage("no request was answered"))?;
    let seconds = requests.last().map_or(0.0, |last| last.at_ms / 1e3);
    Ok(InstancesPoint {
        instances: asked.len(),
        warm_ms: warm,
        cold_ms: cold,
        requests_per_second: count as f64 / seconds.max(f64::EPSILON),
        requests: count,
        median_ms: summary.median_ms,
        p99_ms: summary.p99_ms,
        goodput: good as f64 / count.max(1) as f64,
        cold_share: loads.saturating_sub(loads_before) as f64 / count.max(1) as f64,
        simulated_cold_share: simulated,
        failed: count - took.len(),
        wrong: apart.wrong + answers.iter().filter(|answer| answer.is_wrong).count(),
    })
}

/// The requests that instances get: those of a file, or drawn at random.
fn requests_for(arguments: &BenchCold, problem: &EvictionProblem) -> Result<Vec<EvictionRequest>> {
    let options = &arguments.instances;
    let Some(file) = &options.trace else {
        return draw_requests(problem, options.requests.get(), problem.instances.len() as u64);
    };
    let names: Vec<String> = problem.instances.iter().map(|one| one.name.clone()).collect();
    let mut requests = read_request_trace(file, &names)?;
    requests.truncate(options.requests.get());
    Ok(requests)
}

/// These instances and this memory, as the planner simulates them.
fn eviction_problem(
    load: PointLoad,
    weight_bytes: &[u64],
    asked: &[Rc<AskedInstance>],
    reloads_ms: &[f64],
) -> EvictionProblem {
    let rate_per_second = load.rate / asked.len() as f64;
    let reloads = reloads_ms.iter().cycle();
    let instance =
        |((asked, bytes), reload): ((&Rc<AskedInstance>, &u64), &f64)| EvictionInstance {
            name: asked.name.clone(),
            bytes: *bytes as f64,
            reload_ms: *reload,
            rate_per_second,
            resident: false,
            pinned: false,
        };
    EvictionProblem {
        memory_bytes: load.memory_bytes as f64,
        instances: asked.iter().zip(weight_bytes).zip(reloads).map(instance).collect(),
        requests: Vec::new(),
    }
}

/// The share of these requests that find their weights gone, after all have been asked once and
/// some of them once more.
fn simulate_cold_share(
    problem: &EvictionProblem,
    policy: EvictionPolicy,
    requests: &[EvictionRequest],
) -> Result<f64> {
    let names = problem.instances.iter().map(|one| &one.name);
    let before = names.clone().chain(names.take(MOST_ASKED_APART));
    let before: Vec<EvictionRequest> =
        before.map(|name| EvictionRequest { at_ms: 0.0, instance: name.clone() }).collect();
    let all = before.iter().chain(requests).cloned().collect();
    let cold = |requests: Vec<EvictionRequest>| -> Result<usize> {
        let problem = EvictionProblem { requests, ..problem.clone() };
        Ok(simulate_eviction(&problem, policy)?.cold_starts)
    };
    Ok((cold(all)? - cold(before)?) as f64 / requests.len().max(1) as f64)
}

/// What came of a request.
struct OpenAnswer {
    /// How long it took; `None` where it failed.
    took: Option<Duration>,
    is_wrong: bool,
}

/// Sends each request when it is due, whatever others do.
fn ask_as_they_come(
    site: &ColdSite,
    asked: &[Rc<AskedInstance>],
    requests: &[EvictionRequest],
) -> Result<Vec<OpenAnswer>> {
    let answers: Rc<RefCell<Vec<OpenAnswer>>> = Rc::default();
    let local = tokio::task::LocalSet::new();
    local.block_on(&site.runtime, async {
        let start = Instant::now();
        let mut under_way = Vec::with_capacity(requests.len());
        for request in requests {
            let Some(instance) = asked.iter().find(|one| one.name == request.instance) else {
                continue;
            };
            let due = start + Duration::from_secs_f64(request.at_ms / 1e3);
            tokio::time::sleep_until(due.into()).await;
            let (instance, answers) = (Rc::clone(instance), Rc::clone(&answers));
            under_way.push(tokio::task::spawn_local(async move {
                let answer = instance.client.ask(&instance.name).await;
                let answer = OpenAnswer {
                    took: answer.as_ref().ok().map(|(took, _)| *took),
                    is_wrong: answer.is_ok_and(|(_, outputs)| outputs != instance.expected),
                };
                answers.borrow_mut().push(answer);
            }));
        }
        for one in under_way {
            one.await.map_err(|error| Error::usage(error.to_string()))?;
        }
        Ok(answers.take())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_lists_or_go_in_steps_of_the_first() {
        let counts = |text: &str| text.parse().map(|InstanceCounts(counts)| counts).unwrap();
        assert_eq!(counts("180,20, 100,20"), [20, 100, 180]);
        assert_eq!(counts("20..90"), [20, 40, 60, 80]);
        assert_eq!(counts("7"), [7]);
        for wrong in ["", "0", "3,x", "..4", "4..", "9..4", "0..8", "-1"] {
            let refused = wrong.parse::<InstanceCounts>().unwrap_err().to_string();
            assert!(refused.contains("expected such as 20,100,180"), "{wrong}: {refused}");
        }
    }
}
