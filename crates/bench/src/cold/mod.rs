//! `tessera bench cold`: requests whose weights are not in memory, beside those whose are.

mod cold_site;
mod instances;
mod request_trace;
mod stored_instances;

use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tessera_command::EngineArguments;
use tessera_core::{Device, Error, Result, Tensor};
use tessera_deploy::ResidencyChoice;
use tessera_engine::WeightLoading;
use tessera_node::LatencySummary;
use tessera_plan::residency::eviction::EvictionPolicy;
use tessera_report::{format_bytes, output};
use tessera_repository::unfinished_files::temporary_folder;
use tessera_repository::{ModelFile, Repository};
use tessera_server::{GpuBudget, WeightLimits};
use tessera_zoo::{Architecture, BatchSize, Recipe, random_inputs};

use crate::zoo_file;
use cold_site::{ColdClient, ColdSite};
use instances::InstancesArguments;

/// Bytes of which the rate of the bus is taken.
const BUS_BYTES: usize = 256 << 20;
/// Tasks that take turns in memory, and one that stays there.
static TASKS: [&str; 3] = ["one", "other", "hot"];

/// Options of `tessera bench cold`.
#[derive(Args)]
pub struct BenchCold {
    /// Zoo architecture; repeat for more. With --instances they take turns in them; repeat one for
    /// more of it [default: resnet50 and bert-base; with --instances bert-base]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Vec<String>,
    /// How weights come to a GPU: load-then-run, pipeline or direct-host-access; repeat for more
    /// [default: all; with --instances pipeline]
    #[arg(long, value_name = "HOW")]
    pub(crate) strategy: Vec<WeightLoading>,
    /// Tokens of the sequences that models take which take any
    #[arg(long, value_name = "TOKENS")]
    pub(crate) sequence: Option<usize>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Cold requests of each model, and as many warm ones
    #[arg(long, default_value_t = 40)]
    pub(crate) rounds: usize,
    /// Cold starts a second beside a task that stays, 0 for none [default: 20]; with --instances
    /// requests a second, several apart by commas [default: 100]
    #[arg(long, value_delimiter = ',')]
    pub(crate) rate: Vec<f64>,
    /// Seconds for which that task is asked alone, and as long beside cold starts
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) instances: InstancesArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchCold {
    /// Those that take turns, and one that stays where it is looked at.
    fn tasks(&self) -> &'static [&'static str] {
        let count = if self.rate() > 0.0 { TASKS.len() } else { TASKS.len() - 1 };
        &TASKS[..count]
    }

    fn rate(&self) -> f64 {
        self.rate.first().copied().unwrap_or(20.0)
    }

    /// The models that the user names, or these.
    fn models_or(&self, others: &[&str]) -> Vec<String> {
        match &self.model[..] {
            [] => others.iter().map(|&name| name.to_owned()).collect(),
            named => named.to_vec(),
        }
    }

    /// How weights come: as the user says, or so.
    fn strategies_or(&self, others: &[WeightLoading]) -> Vec<WeightLoading> {
        match (self.engine.device, &self.strategy[..]) {
            // What is on disk is mapped at once.
            (Device::Cpu, _) => vec![WeightLoading::LoadThenRun],
            (Device::Cuda(_), []) => others.to_vec(),
            (Device::Cuda(_), named) => named.to_vec(),
        }
    }
}

#[derive(Serialize)]
struct ColdReport {
    device: String,
    /// Of a copy to the device from memory that is registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    bus_gigabytes_per_second: Option<f64>,
    models: Vec<ColdModel>,
}

#[derive(Serialize)]
struct ColdModel {
    model: String,
    strategy: String,
    weight_bytes: u64,
    /// What they take in memory, as the engine has prepared them.
    image_bytes: u64,
    /// A request whose weights are there.
    warm_ms: f64,
    /// A request whose weights are not.
    cold_ms: f64,
    cold_p99_ms: f64,
    /// How long of that it waited for weights.
    loading_ms: f64,
    /// How long a load took of that, in the mean: without what others took to leave.
    load_ms: f64,
    /// What the bus takes for the weights and then the run, or the longer of the two in a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_over_bound: Option<f64>,
    /// Cold answers that were not those of warm requests, bit by bit.
    wrong: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<HotBesideCold>,
}

/// A task that stays, beside others that come and go.
#[derive(Serialize)]
struct HotBesideCold {
    cold_starts_per_second: f64,
    alone_p99_ms: f64,
    /// Beside as many requests of another task whose weights are there.
    beside_warm_p99_ms: f64,
    beside_cold_p99_ms: f64,
    cold_over_alone: f64,
    cold_over_warm: f64,
}

pub(crate) fn bench_cold(arguments: &BenchCold) -> Result<()> {
    if arguments.instances.is_wanted() {
        return instances::bench_instances(arguments);
    }
    if arguments.rate.len() > 1 {
        return Err(Error::usage("several rates are for --instances alone"));
    }
    let device = arguments.engine.device;
    let bus = match device {
        Device::Cpu => None,
        Device::Cuda(number) => Some(tessera_engine::measure_copy_rate(number, BUS_BYTES)?),
    };
    let strategies = arguments.strategies_or(&[
        WeightLoading::LoadThenRun,
        WeightLoading::Pipeline,
        WeightLoading::DirectHostAccess,
    ]);
    let mut models = Vec::new();
    for model in &arguments.models_or(&["resnet50", "bert-base"]) {
        let stored = StoredSiblings::store(model, arguments)?;
        for strategy in &strategies {
            models.push(measure_model(arguments, model, &stored, *strategy, bus)?);
        }
    }
    let report = ColdReport {
        device: device.to_string(),
        bus_gigabytes_per_second: bus.map(|rate| rate / 1e9),
        models,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    if let Some(rate) = report.bus_gigabytes_per_second {
        output::print_line(&format!("{}: {rate:.1} GB/s from the host", report.device))?;
    }
    report.models.iter().try_for_each(|model| output::print_line(&describe_model(model)))
}

fn describe_model(model: &ColdModel) -> String {
    let mut line = format!(
        "{}, {}: {} of weights; warm {:.2} ms, cold {:.2} ms (p99 {:.2}, {:.2} for weights)",
        model.model,
        model.strategy,
        format_bytes(model.weight_bytes),
        model.warm_ms,
        model.cold_ms,
        model.cold_p99_ms,
        model.loading_ms
    );
    if let (Some(bound), Some(ratio)) = (model.bound_ms, model.cold_over_bound) {
        line += &format!(", {ratio:.2} of the bound of {bound:.2} ms");
    }
    line += &format!("; {} wrong", model.wrong);
    if let Some(beside) = &model.beside {
        line += &format!(
            "; a hot task's p99 beside {:.1} cold starts a second {:.2} ms, {:.2} of alone, {:.2} of \
             that beside warm ones",
            beside.cold_starts_per_second,
            beside.beside_cold_p99_ms,
            beside.cold_over_alone,
            beside.cold_over_warm
        );
    }
    line
}

/// Models that differ in their weights alone, one for each task, in a repository.
struct StoredSiblings {
    _folder: TempDir,
    repository: PathBuf,
    inputs: Vec<(String, Tensor)>,
    /// Of one of them.
    weight_bytes: u64,
}

impl StoredSiblings {
    fn store(model: &str, arguments: &BenchCold) -> Result<Self> {
        let working = output::spinner(format!("preparing {model}"));
        let folder = temporary_folder()?;
        let repository = folder.path().join("repository");
        let stored = Repository::open_or_create(&repository)?;
        let architecture: Architecture = model.parse()?;
        let (mut inputs, mut weight_bytes) = (Vec::new(), 0);
        for (seed, &task) in (0..).zip(arguments.tasks()) {
            let path = folder.path().join(format!("{task}.onnx"));
            let sequence = arguments.sequence.filter(|_| architecture.longest_sequence().is_some());
            let batch = BatchSize::Fixed(1);
            let recipe = Recipe { seed, batch, sequence, ..Recipe::new(architecture) };
            zoo_file::write_recipe(&recipe, &path)?;
            let file = ModelFile::read_file(&path, &Default::default(), &[])?;
            let partition = file.split_into_blocks(Some(&tessera_graph::Split::Blocks(1)))?;
            stored.put_model(task, &partition)?;
            let ports = &partition.graph.inputs;
            let given = random_inputs(ports, &HashMap::new(), 1)?;
            inputs = ports.iter().map(|port| port.name.clone()).zip(given).collect();
            weight_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            std::fs::remove_file(&path).ok();
        }
        working.finish_and_clear();
        Ok(Self { _folder: folder, repository, inputs, weight_bytes })
    }
}

/// Serves siblings of which each has so many bytes, with room for all but one: for the one that
/// stays, and for one of those that take turns.
fn start_site(
    arguments: &BenchCold,
    stored: &StoredSiblings,
    strategy: WeightLoading,
    bytes: u64,
) -> Result<ColdSite> {
    let tasks = arguments.tasks();
    let budget = Some(bytes * (10 * tasks.len() as u64 - 1) / 10);
    let limits = match arguments.engine.device {
        Device::Cpu => WeightLimits { host: budget, ..WeightLimits::default() },
        Device::Cuda(_) => {
            let gpu = budget.map_or(GpuBudget::Unbounded, GpuBudget::Bytes);
            WeightLimits { gpu, ..WeightLimits::default() }
        }
    };
    let eviction = EvictionPolicy::LeastRecentlyUsed;
    let limits = WeightLimits { eviction, loading: strategy, ..limits };
    let choices = [ResidencyChoice::Auto, ResidencyChoice::Auto, ResidencyChoice::Pinned];
    let tasks: Vec<(&str, ResidencyChoice)> = tasks.iter().copied().zip(choices).collect();
    ColdSite::start(&stored.repository, &tasks, limits, &arguments.engine)
}

fn measure_model(
    arguments: &BenchCold,
    model: &str,
    stored: &StoredSiblings,
    strategy: WeightLoading,
    bus: Option<f64>,
) -> Result<ColdModel> {
    let (inputs, weight_bytes) = (&stored.inputs[..], stored.weight_bytes);
    let working = output::spinner(format!("loading {model}, {strategy}"));
    let mut site = start_site(arguments, stored, strategy, weight_bytes)?;
    let (_, _, image_bytes) = site.loads_so_far();
    if image_bytes * 20 < weight_bytes * 19 {
        // There would be room for all.
        drop(site);
        site = start_site(arguments, stored, strategy, image_bytes)?;
    }
    let client = site.new_client(inputs)?;
    working.set_message(format!("{model}: cold and warm requests"));
    warm_up_tasks(&site, &client, arguments.tasks())?;
    let (loads_before, time_before, image_bytes) = site.loads_so_far();
    let timed = measure_requests(&site, &client, arguments.rounds)?;
    let (loads, load_time, _) = site.loads_so_far();
    let median = |times: &[Duration]| {
        let summary = LatencySummary::from_times(times);
        summary.ok_or_else(|| Error::usage("--rounds must be 1 or more"))
    };
    let (warm, cold, loading) =
        (median(&timed.warm)?, median(&timed.cold)?, median(&timed.loading)?);
    let loads = loads.saturating_sub(loads_before).max(1);
    let load_time = load_time.saturating_sub(time_before);
    let load_ms = load_time.as_secs_f64() * 1e3 / loads as f64;
    working.set_message(format!("{model}: a hot task beside cold starts"));
    let beside =
        (arguments.rate() > 0.0).then(|| measure_hot_task(arguments, &site, inputs)).transpose()?;
    working.finish_and_clear();
    let bound_ms = bus.map(|rate| {
        let copy_ms = image_bytes as f64 / rate * 1e3;
        match strategy {
            WeightLoading::Pipeline | WeightLoading::DirectHostAccess => {
                copy_ms.max(warm.median_ms)
            }
            _ => copy_ms + warm.median_ms,
        }
    });
    Ok(ColdModel {
        model: model.to_owned(),
        strategy: strategy.to_string(),
        weight_bytes,
        image_bytes,
        warm_ms: warm.median_ms,
        cold_ms: cold.median_ms,
        cold_p99_ms: cold.p99_ms,
        loading_ms: loading.median_ms,
        load_ms,
        bound_ms,
        cold_over_bound: bound_ms.map(|bound| cold.median_ms / bound),
        wrong: timed.wrong,
        beside,
    })
}

#[derive(Default)]
struct TimedRequests {
    warm: Vec<Duration>,
    cold: Vec<Duration>,
    loading: Vec<Duration>,
    wrong: usize,
}

/// Asks all tasks, until runs are captured where they are.
fn warm_up_tasks(site: &ColdSite, client: &ColdClient, tasks: &[&str]) -> Result<()> {
    let asked = tasks.iter().cycle().take(tasks.len() * 80);
    asked.map(|task| site.ask(client, task)).try_for_each(|answer| answer.map(drop))
}

/// Asks two tasks in turns of which one is in memory, each once cold and once warm.
fn measure_requests(site: &ColdSite, client: &ColdClient, rounds: usize) -> Result<TimedRequests> {
    let mut timed = TimedRequests::default();
    let mut expected = Vec::new();
    for task in [TASKS[0], TASKS[1]] {
        site.ask(client, task)?;
        expected.push(site.ask(client, task)?.outputs);
    }
    for _ in 0..rounds {
        for (task, expected) in [TASKS[0], TASKS[1]].into_iter().zip(&expected) {
            let cold = site.ask(client, task)?;
            let warm = site.ask(client, task)?;
            timed.wrong += usize::from(cold.outputs != *expected);
            timed.cold.push(cold.took);
            timed.loading.push(cold.loading);
            timed.warm.push(warm.took);
        }
    }
    Ok(timed)
}

/// Asks the task that stays, one request after the other, alone and beside cold starts of others.
fn measure_hot_task(
    arguments: &BenchCold,
    site: &ColdSite,
    inputs: &[(String, Tensor)],
) -> Result<HotBesideCold> {
    let [one, other, hot] = TASKS;
    let time = Duration::from_secs_f64(arguments.seconds);
    let (hot_client, cold_client) = (site.new_client(inputs)?, site.new_client(inputs)?);
    let ask_hot = || async {
        let (mut times, start) = (Vec::new(), std::time::Instant::now());
        while start.elapsed() < time {
            times.push(hot_client.ask(hot).await?.0);
        }
        Ok::<_, Error>(times)
    };
    let local = tokio::task::LocalSet::new();
    let (alone, beside_warm, beside_cold, starts) = local.block_on(&site.runtime, async {
        let alone = ask_hot().await?;
        let warm = OtherRequests::start(cold_client.clone(), &[one], arguments.rate());
        let beside_warm = ask_hot().await?;
        warm.stop();
        let cold = OtherRequests::start(cold_client, &[one, other], arguments.rate());
        let beside_cold = ask_hot().await?;
        Ok::<_, Error>((alone, beside_warm, beside_cold, cold.stop()))
    })?;
    let p99 = |times: &[Duration]| {
        LatencySummary::from_times(times).map_or(f64::NAN, |summary| summary.p99_ms)
    };
    let (alone, warm, cold) = (p99(&alone), p99(&beside_warm), p99(&beside_cold));
    Ok(HotBesideCold {
        cold_starts_per_second: starts as f64 / arguments.seconds,
        alone_p99_ms: alone,
        beside_warm_p99_ms: warm,
        beside_cold_p99_ms: cold,
        cold_over_alone: cold / alone,
        cold_over_warm: cold / warm,
    })
}

/// Requests of other tasks in turns, so many a second.
struct OtherRequests {
    asking: tokio::task::JoinHandle<()>,
    answered: Rc<Cell<u64>>,
}

impl OtherRequests {
    fn start(client: ColdClient, tasks: &[&'static str], rate: f64) -> Self {
        let (answered, tasks) = (Rc::new(Cell::new(0)), tasks.to_vec());
        let count = Rc::clone(&answered);
        let interval = Duration::from_secs_f64(1.0 / rate);
        let asking = tokio::task::spawn_local(async move {
            let mut next = tokio::time::interval(interval);
            for task in tasks.into_iter().cycle() {
                next.tick().await;
                if client.ask(task).await.is_err() {
                    return;
                }
                count.set(count.get() + 1);
            }
        });
        Self { asking, answered }
    }

    /// Asks no more; returns how many answers there were.
    fn stop(self) -> u64 {
        self.asking.abort();
        self.answered.get()
    }
}
