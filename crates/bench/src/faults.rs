//! `tessera bench faults`: a server under load whose units' processes are killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_report::{format_bytes, output};

use clap::Args;
use serde::Serialize;
use tessera_core::{Device, Error, Random, Result};
use tessera_node::median_of_sorted;
use tessera_repository::unfinished_files::temporary_folder;

use super::background_clients::{
    ANSWER_TIMEOUT, AnswerCounts, BackgroundClients, CheckedRequest, write_siblings,
};
use super::gpu::GpuMeter;
use super::test_server::TestServer;
use super::unit_processes::{instance_processes, kill_process};

/// Options of `tessera bench faults`.
#[derive(Args)]
pub struct BenchFaults {
    /// Zoo architecture
    #[arg(long, default_value = "resnet18")]
    pub(crate) model: String,
    /// What units run on: cpu, or cuda:N for a GPU, whose memory must be back at the end
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// Units that may be away at the same time
    #[arg(long, default_value_t = 1)]
    pub(crate) at_once: usize,
    /// How many kills
    #[arg(long, default_value_t = 200)]
    pub(crate) count: usize,
    /// Clients that ask meanwhile
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// Most milliseconds between a unit that is back and the next kill
    #[arg(long, default_value_t = 300, value_name = "MS")]
    pub(crate) pause: u64,
    /// Seed of who is killed when
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Video memory that may be in use beyond what was: the driver's own, which comes and goes.
const MEMORY_SLACK: u64 = 64 << 20;

#[derive(Serialize)]
struct FaultReport {
    kills: usize,
    /// How long until the unit took requests again.
    back_median_ms: f64,
    back_most_ms: f64,
    back_late: usize,
    requests: AnswerCounts,
    /// On a GPU.
    video_memory: Option<VideoMemory>,
}

/// Video memory in use, by all, in bytes.
#[derive(Serialize)]
struct VideoMemory {
    before: u64,
    /// With the server, once it has answered.
    serving: u64,
    /// After all kills, with the server idle.
    after_kills: u64,
    /// When the server has ended.
    at_the_end: u64,
    /// Whenever all units were there.
    during: Vec<u64>,
}

/// Kills units' processes again and again while the server is asked.
pub(crate) fn bench_faults(arguments: &BenchFaults) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let meter = GpuMeter::open(arguments.device)?;
    let before = meter.stable_used_bytes();
    let folder = temporary_folder()?;
    let (files, requests) = write_siblings(&arguments.model, 1, folder.path())?;
    let (file, device) = (files[0].display().to_string(), arguments.device.to_string());
    let all =
        ["--isolation", "process", "--blocks", "4", "--no-fusion", "--device", &device, &file];
    let server = TestServer::start_server(&folder.path().join("repository"), &all)?;
    let requests = requests.into_iter().map(|request| CheckedRequest::new(request, &server));
    let requests = Arc::new(requests.collect::<Result<Vec<_>>>()?);
    working.finish_and_clear();
    // So that all that is ever needed is there.
    let calm = BackgroundClients::start_clients(arguments.clients, &server, &requests);
    std::thread::sleep(Duration::from_secs(1));
    let calm = calm.stop_and_count();
    if calm.wrong > 0 {
        return Err(Error::engine(format!("{} answers differ without any fault", calm.wrong)));
    }
    let serving = meter.stable_used_bytes();
    let clients = BackgroundClients::start_clients(arguments.clients, &server, &requests);
    let (mut times, during) = kill_processes(arguments, &server, &meter)?;
    let requests = clients.stop_and_count();
    let after_kills = meter.stable_used_bytes();
    drop(server);
    let at_the_end = meter.stable_used_bytes();
    times.sort_by(f64::total_cmp);
    let video_memory = match (before, serving, after_kills, at_the_end) {
        (Some(before), Some(serving), Some(after_kills), Some(at_the_end)) => {
            Some(VideoMemory { before, serving, after_kills, at_the_end, during })
        }
        _ => None,
    };
    let report = FaultReport {
        kills: times.len(),
        back_median_ms: median_of_sorted(&times).unwrap_or(0.0),
        back_most_ms: times.last().copied().unwrap_or(0.0),
        back_late: times.iter().filter(|&&ms| ms > 1000.0).count(),
        requests,
        video_memory,
    };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_faults(&report)?;
    }
    check_faults(&report)
}

/// Kills one process after the other, with so many away at a time at most. Tells how long each took
/// to be back, in milliseconds, and what video memory was in use whenever none was away.
fn kill_processes(
    arguments: &BenchFaults,
    server: &TestServer,
    meter: &GpuMeter,
) -> Result<(Vec<f64>, Vec<u64>)> {
    let mut during = Vec::new();
    let bar = output::progress_bar(arguments.count as u64, "killing");
    let mut random = Random::new(arguments.seed);
    let mut times = Vec::new();
    // The units that are away, each with the process that was killed, and since when.
    let mut away: BTreeMap<String, (u32, Instant)> = BTreeMap::new();
    let mut kills = 0;
    let mut next = Instant::now();
    while times.len() < arguments.count {
        let processes = instance_processes(server)?;
        away.retain(|name, (killed, since)| {
            let is_back = |(unit, id, _): &(String, Option<u32>, bool)| {
                unit == name && id.is_some_and(|id| id != *killed)
            };
            // It is back when another process has its place.
            let is_over = processes.iter().any(is_back) || since.elapsed() > ANSWER_TIMEOUT;
            if is_over {
                times.push(since.elapsed().as_secs_f64() * 1e3);
                bar.inc(1);
                next =
                    Instant::now() + Duration::from_millis(20 + random.next_below(arguments.pause));
            }
            !is_over
        });
        let up: Vec<(String, u32)> = processes
            .into_iter()
            .filter(|(name, _, is_useful)| *is_useful && !away.contains_key(name))
            .filter_map(|(name, process, _)| Some((name, process?)))
            .collect();
        let may = kills < arguments.count && away.len() < arguments.at_once.max(1);
        if may && !up.is_empty() && Instant::now() >= next {
            if away.is_empty() {
                during.extend(meter.used_bytes());
            }
            let index = usize::try_from(random.next_below(up.len() as u64)).unwrap_or(0);
            let (name, process) = up[index].clone();
            kill_process(process);
            kills += 1;
            away.insert(name, (process, Instant::now()));
            next = Instant::now() + Duration::from_millis(20 + random.next_below(arguments.pause));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bar.finish_and_clear();
    Ok((times, during))
}

fn print_faults(report: &FaultReport) -> Result<()> {
    output::print_line(&format!(
        "{} kills: back after {:.0} ms, {:.0} ms at most, {} later than 1 s",
        report.kills, report.back_median_ms, report.back_most_ms, report.back_late
    ))?;
    let errors: u64 = report.requests.errors.values().sum();
    output::print_line(&format!(
        "{} requests: {} answered, {} of them wrong, {errors} errors, {} without an answer, slowest {:.0} ms",
        report.requests.asked,
        report.requests.answered,
        report.requests.wrong,
        report.requests.unanswered,
        report.requests.slowest_ms
    ))?;
    for (error, count) in report.requests.errors.iter().take(5) {
        output::print_line(&format!("  {count} × {error}"))?;
    }
    if let Some(memory) = &report.video_memory {
        let VideoMemory { before, serving, after_kills, at_the_end, .. } = memory;
        let [before, serving, after_kills, at_the_end] =
            [before, serving, after_kills, at_the_end].map(|bytes| format_bytes(*bytes));
        output::print_line(&format!(
            "video memory: {before} before, {serving} serving, {after_kills} after the kills, {at_the_end} at the end"
        ))?;
    }
    Ok(())
}

fn check_faults(report: &FaultReport) -> Result<()> {
    let AnswerCounts { unanswered, wrong, .. } = report.requests;
    if unanswered > 0 {
        return Err(Error::engine(format!("{unanswered} requests were never answered")));
    }
    if wrong > 0 {
        return Err(Error::engine(format!("{wrong} answers were wrong")));
    }
    match &report.video_memory {
        Some(memory)
            if memory.after_kills > memory.serving + MEMORY_SLACK
                || memory.at_the_end > memory.before + MEMORY_SLACK =>
        {
            Err(Error::engine("video memory was left behind"))
        }
        _ => Ok(()),
    }
}
