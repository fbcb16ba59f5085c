//! `tessera bench overload`: a server that is asked for more than it can do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_load::{Arrivals, Mode, Options, Stop, Target, Workload, WorkloadOptions};

use super::chain::model_path;
use super::server::TestServer;
use crate::arguments::bench::BenchOverload;
use crate::{interrupt, output};

#[derive(Serialize)]
struct Report {
    model: String,
    deadline_ms: f64,
    seconds: f64,
    /// Answers per second of eight clients that wait for their answers.
    capacity_per_second: f64,
    offered_per_second: f64,
    /// Answers within the deadline, per second.
    goodput_per_second: f64,
    goodput_over_capacity: f64,
    /// Of the requests that were answered.
    p99_ms: f64,
    answered: u64,
    refused: u64,
    other: HashMap<String, u64>,
    /// Resident memory of the server after a sixth of the time, at its highest after that, and at the end.
    resident_early: u64,
    resident_most: u64,
    resident_end: u64,
}

pub(super) fn run(arguments: &BenchOverload) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let (path, _model) = model_path(&arguments.model)?;
    let folder = tempfile::Builder::new()
        .prefix(&interrupt::mark())
        .tempdir()
        .map_err(|error| Error::io("a temporary folder", &error))?;
    let path = path.display().to_string();
    let isolation = arguments.isolation.to_string();
    let all = ["--blocks", "4", "--no-fusion", "--isolation", &isolation, &path];
    let server = TestServer::start(&folder.path().join("repository"), &all)?;
    working.finish_and_clear();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::io("the runtime of the load", &error))?;
    let report = runtime.block_on(measure(arguments, &server))?;
    if arguments.json {
        return output::print_json(&report);
    }
    output::print(&format!(
        "{}: capacity {:.2}/s; offered {:.2}/s for {:.0} s with a deadline of {:.0} ms",
        report.model,
        report.capacity_per_second,
        report.offered_per_second,
        report.seconds,
        report.deadline_ms
    ))?;
    output::print(&format!(
        "goodput {:.2}/s ({:.3} of capacity), p99 of what was answered {:.0} ms, {} answered, {} refused, other: {:?}",
        report.goodput_per_second,
        report.goodput_over_capacity,
        report.p99_ms,
        report.answered,
        report.refused,
        report.other
    ))?;
    output::print(&format!(
        "resident: {} early, {} at most, {} at the end",
        output::bytes(report.resident_early),
        output::bytes(report.resident_most),
        output::bytes(report.resident_end)
    ))
}

async fn measure(arguments: &BenchOverload, server: &TestServer) -> Result<Report> {
    let url = format!("http://{}", server.told.http);
    let task = &server.told.tasks.first().ok_or_else(|| Error::engine("no task is served"))?.name;
    let target = Target::new(&url, task);
    let description = target.describe().await?;
    let deadline = Duration::from_secs_f64(arguments.deadline / 1e3);
    let plain = Workload::new(&description, &WorkloadOptions::default())?;
    let send_deadline = Some(deadline);
    let dated =
        Workload::new(&description, &WorkloadOptions { send_deadline, ..Default::default() })?;
    let stop = Stop::new();
    let crowd = Mode::Closed {
        clients: 8,
        duration: Some(Duration::from_secs_f64(arguments.seconds / 6.0)),
        requests: None,
    };
    let mut options = Options::new(crowd);
    options.warm_up = Duration::from_secs(2);
    let bar = output::spinner("capacity");
    let capacity = tessera_load::run(&target, &plain, &options, &stop, |_| {}).await?;
    let capacity = capacity.throughput_per_second;
    let rate = arguments.times * capacity;
    let duration = Duration::from_secs_f64(arguments.seconds);
    options.mode = Mode::Open { rate, arrivals: Arrivals::Poisson, duration, seed: 1 };
    options.deadline = Some(deadline);
    bar.set_message(format!("{rate:.1} requests per second"));
    let over = AtomicBool::new(false);
    let (mut early, mut most) = (0, 0);
    let watch = async {
        let begun = std::time::Instant::now();
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = server.resident()?;
            match begun.elapsed() < duration / 6 {
                true => early = now,
                false => most = most.max(now),
            }
        }
        Ok::<(), Error>(())
    };
    let load = async {
        let report = tessera_load::run(&target, &dated, &options, &stop, |_| {}).await;
        over.store(true, Ordering::Relaxed);
        report
    };
    let (report, watched) = tokio::join!(load, watch);
    let (report, ()) = (report?, watched?);
    bar.finish_and_clear();
    let goodput = report.goodput_per_second.unwrap_or(0.0);
    let mut other: HashMap<String, u64> = report
        .outcomes
        .status
        .iter()
        .filter(|(status, _)| status.to_string() != "503")
        .map(|(status, count)| (status.to_string(), *count))
        .collect();
    other.insert("connection".to_owned(), report.outcomes.connection);
    other.insert("timeout".to_owned(), report.outcomes.timeout);
    other.retain(|_, count| *count > 0);
    let refused = report.outcomes.status.iter().filter(|(status, _)| status.to_string() == "503");
    Ok(Report {
        model: arguments.model.clone(),
        deadline_ms: arguments.deadline,
        seconds: arguments.seconds,
        capacity_per_second: capacity,
        offered_per_second: rate,
        goodput_per_second: goodput,
        goodput_over_capacity: goodput / capacity,
        p99_ms: report.latency.as_ref().map_or(0.0, |latency| latency.p99_ms),
        answered: report.outcomes.ok,
        refused: refused.map(|(_, count)| *count).sum(),
        other,
        resident_early: early,
        resident_most: most,
        resident_end: server.resident()?,
    })
}
