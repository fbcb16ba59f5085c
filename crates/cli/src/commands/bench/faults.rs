//! `tessera bench faults`: a server under load whose blocks' processes are killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tessera_core::{Error, Random, Result};
use tessera_node::median;

use super::disturb::{Answers, Asked, Clients, NEVER, siblings, temporary};
use super::gpu::Meter;
use super::server::TestServer;
use crate::arguments::bench::BenchFaults;
use crate::output;

/// Video memory that may be in use beyond what was: the driver's own, which comes and goes.
const SLACK: u64 = 64 << 20;

#[derive(Serialize)]
struct FaultReport {
    kills: usize,
    /// How long until the block took requests again.
    back_median_ms: f64,
    back_most_ms: f64,
    back_late: usize,
    requests: Answers,
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
    /// Whenever all blocks were there.
    during: Vec<u64>,
}

/// Kills blocks' processes again and again while the server is asked.
pub(super) fn run(arguments: &BenchFaults) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let meter = Meter::open(arguments.device)?;
    let before = meter.settled_bytes();
    let folder = temporary()?;
    let (files, requests) = siblings(&arguments.model, 1, folder.path())?;
    let (file, device) = (files[0].display().to_string(), arguments.device.to_string());
    let all = [
        "--isolation",
        "process",
        "--blocks",
        "4",
        "--no-fusion",
        "--log",
        "error",
        "--device",
        &device,
        &file,
    ];
    let server = TestServer::start(&folder.path().join("repository"), &all)?;
    let requests = requests.into_iter().map(|request| Asked::new(request, &server));
    let requests = Arc::new(requests.collect::<Result<Vec<_>>>()?);
    working.finish_and_clear();
    // So that all that is ever needed is there.
    let calm = Clients::start(arguments.clients, &server, &requests);
    std::thread::sleep(Duration::from_secs(1));
    let calm = calm.end();
    if calm.wrong > 0 {
        return Err(Error::engine(format!("{} answers differ without any fault", calm.wrong)));
    }
    let serving = meter.settled_bytes();
    let clients = Clients::start(arguments.clients, &server, &requests);
    let (mut times, during) = kill(arguments, &server, &meter)?;
    let requests = clients.end();
    let after_kills = meter.settled_bytes();
    drop(server);
    let at_the_end = meter.settled_bytes();
    times.sort_by(f64::total_cmp);
    let video_memory = match (before, serving, after_kills, at_the_end) {
        (Some(before), Some(serving), Some(after_kills), Some(at_the_end)) => {
            Some(VideoMemory { before, serving, after_kills, at_the_end, during })
        }
        _ => None,
    };
    let report = FaultReport {
        kills: times.len(),
        back_median_ms: median(&times).unwrap_or(0.0),
        back_most_ms: times.last().copied().unwrap_or(0.0),
        back_late: times.iter().filter(|&&ms| ms > 1000.0).count(),
        requests,
        video_memory,
    };
    match arguments.json {
        true => output::print_json(&report)?,
        false => print(&report)?,
    }
    judge(&report)
}

/// Kills one process after the other, with so many away at a time at most. Tells how long each took to be back, in
/// milliseconds, and what video memory was in use whenever none was away.
fn kill(
    arguments: &BenchFaults,
    server: &TestServer,
    meter: &Meter,
) -> Result<(Vec<f64>, Vec<u64>)> {
    let mut during = Vec::new();
    let bar = output::progress(arguments.count as u64, "killing");
    let mut random = Random::new(arguments.seed);
    let mut times = Vec::new();
    // The blocks that are away, each with the process that was killed, and since when.
    let mut away: BTreeMap<String, (u32, Instant)> = BTreeMap::new();
    let mut kills = 0;
    let mut next = Instant::now();
    while times.len() < arguments.count {
        let processes = processes(server)?;
        away.retain(|name, (killed, since)| {
            let is_back = |(block, id, _): &(String, Option<u32>, bool)| {
                block == name && id.is_some_and(|id| id != *killed)
            };
            // It is back when another process has its place.
            let is_over = processes.iter().any(is_back) || since.elapsed() > NEVER;
            if is_over {
                times.push(since.elapsed().as_secs_f64() * 1e3);
                bar.inc(1);
                next = Instant::now() + Duration::from_millis(20 + random.below(arguments.pause));
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
            let index = usize::try_from(random.below(up.len() as u64)).unwrap_or(0);
            let (name, process) = up[index].clone();
            let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
            kills += 1;
            away.insert(name, (process, Instant::now()));
            next = Instant::now() + Duration::from_millis(20 + random.below(arguments.pause));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bar.finish_and_clear();
    Ok((times, during))
}

fn print(report: &FaultReport) -> Result<()> {
    output::print(&format!(
        "{} kills: back after {:.0} ms, {:.0} ms at most, {} later than 1 s",
        report.kills, report.back_median_ms, report.back_most_ms, report.back_late
    ))?;
    let errors: u64 = report.requests.errors.values().sum();
    output::print(&format!(
        "{} requests: {} answered, {} of them wrong, {errors} errors, {} without an answer, slowest {:.0} ms",
        report.requests.asked,
        report.requests.answered,
        report.requests.wrong,
        report.requests.unanswered,
        report.requests.slowest_ms
    ))?;
    for (error, count) in report.requests.errors.iter().take(5) {
        output::print(&format!("  {count} × {error}"))?;
    }
    if let Some(memory) = &report.video_memory {
        let VideoMemory { before, serving, after_kills, at_the_end, .. } = memory;
        let [before, serving, after_kills, at_the_end] =
            [before, serving, after_kills, at_the_end].map(|bytes| output::bytes(*bytes));
        output::print(&format!(
            "video memory: {before} before, {serving} serving, {after_kills} after the kills, {at_the_end} at the end"
        ))?;
    }
    Ok(())
}

fn judge(report: &FaultReport) -> Result<()> {
    let Answers { unanswered, wrong, .. } = report.requests;
    if unanswered > 0 {
        return Err(Error::engine(format!("{unanswered} requests were never answered")));
    }
    if wrong > 0 {
        return Err(Error::engine(format!("{wrong} answers were wrong")));
    }
    match &report.video_memory {
        Some(memory)
            if memory.after_kills > memory.serving + SLACK
                || memory.at_the_end > memory.before + SLACK =>
        {
            Err(Error::engine("video memory was left behind"))
        }
        _ => Ok(()),
    }
}

/// The blocks of a server, each with its process where it is up, and whether that has run anything yet.
fn processes(server: &TestServer) -> Result<Vec<(String, Option<u32>, bool)>> {
    let found = server.control("GET", "/v1/blocks", None)?;
    let blocks = found.get("blocks").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(blocks
        .iter()
        .map(|block| {
            let name = block["name"].as_str().unwrap_or_default().to_owned();
            let instance = &block["instances"][0];
            let process = instance["process"].as_u64().and_then(|id| u32::try_from(id).ok());
            let is_up = instance["state"] == "up";
            // One that has not been of any use yet counts as one that can't start, and comes back later and later.
            let is_useful = instance["requests"].as_u64().is_some_and(|count| count > 0);
            (name, process.filter(|_| is_up), is_useful)
        })
        .collect())
}
