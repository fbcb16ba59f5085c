//! `tessera bench overload`: a server that is asked for more than it can do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tessera_report::{format_bytes, output};

use clap::Args;
use serde::Serialize;
use tessera_command::parse_isolation;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_load::{
    Arrivals, LoadMode, LoadTarget, LoadTestOptions, StopToken, Workload, WorkloadOptions,
};
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::BatchSize;

use super::test_server::TestServer;
use crate::zoo_file;

/// Options of `tessera bench overload`.
#[derive(Args)]
pub struct BenchOverload {
    /// ONNX file, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    /// thread or process
    #[arg(long, default_value = "thread", value_parser = parse_isolation)]
    pub(crate) isolation: Isolation,
    /// How much more than its capacity it is asked for
    #[arg(long, default_value_t = 2.0)]
    pub(crate) times: f64,
    /// Milliseconds that a request may take
    #[arg(long, default_value_t = 1000.0, value_name = "MS")]
    pub(crate) deadline: f64,
    /// How long
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct OverloadReport {
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
    /// Resident memory of the server after a sixth of the time, at its highest after that, and at
    /// the end.
    resident_early: u64,
    resident_most: u64,
    resident_end: u64,
}

pub(crate) fn bench_overload(arguments: &BenchOverload) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let folder = temporary_folder()?;
    let path = zoo_file::find_or_write(&arguments.model, BatchSize::Fixed(1), folder.path())?;
    let path = path.display().to_string();
    let isolation = arguments.isolation.to_string();
    let all = ["--blocks", "4", "--no-fusion", "--isolation", &isolation, &path];
    let server = TestServer::start_server(&folder.path().join("repository"), &all)?;
    working.finish_and_clear();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::from_io("the runtime of the load", &error))?;
    let report = runtime.block_on(measure_overload(arguments, &server))?;
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{}: capacity {:.2}/s; offered {:.2}/s for {:.0} s with a deadline of {:.0} ms",
        report.model,
        report.capacity_per_second,
        report.offered_per_second,
        report.seconds,
        report.deadline_ms
    ))?;
    output::print_line(&format!(
        "goodput {:.2}/s ({:.3} of capacity), p99 of what was answered {:.0} ms, {} answered, {} refused, other: {:?}",
        report.goodput_per_second,
        report.goodput_over_capacity,
        report.p99_ms,
        report.answered,
        report.refused,
        report.other
    ))?;
    output::print_line(&format!(
        "resident: {} early, {} at most, {} at the end",
        format_bytes(report.resident_early),
        format_bytes(report.resident_most),
        format_bytes(report.resident_end)
    ))
}

async fn measure_overload(
    arguments: &BenchOverload,
    server: &TestServer,
) -> Result<OverloadReport> {
    let url = format!("http://{}", server.announced.http);
    let task =
        &server.announced.tasks.first().ok_or_else(|| Error::engine("no task is served"))?.name;
    let target = LoadTarget::new(&url, task);
    let description = target.fetch_description().await?;
    let deadline = Duration::from_secs_f64(arguments.deadline / 1e3);
    let plain = Workload::new(&description, &WorkloadOptions::default())?;
    let send_deadline = Some(deadline);
    let dated =
        Workload::new(&description, &WorkloadOptions { send_deadline, ..Default::default() })?;
    let stop = StopToken::new();
    let closed_loop = LoadMode::Closed {
        clients: 8,
        duration: Some(Duration::from_secs_f64(arguments.seconds / 6.0)),
        requests: None,
    };
    let mut options = LoadTestOptions::new(closed_loop);
    options.warm_up = Duration::from_secs(2);
    let bar = output::spinner("capacity");
    let capacity = tessera_load::run_load_test(&target, &plain, &options, &stop, |_| {}).await?;
    let capacity = capacity.throughput_per_second;
    let rate = arguments.times * capacity;
    let duration = Duration::from_secs_f64(arguments.seconds);
    options.mode = LoadMode::Open { rate, arrivals: Arrivals::Poisson, duration, seed: 1 };
    options.deadline = Some(deadline);
    bar.set_message(format!("{rate:.1} requests per second"));
    let over = AtomicBool::new(false);
    let (mut early, mut most) = (0, 0);
    let watch = async {
        let begun = std::time::Instant::now();
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = server.resident_bytes()?;
            if begun.elapsed() < duration / 6 {
                early = now;
            } else {
                most = most.max(now);
            }
        }
        Ok::<(), Error>(())
    };
    let load = async {
        let report = tessera_load::run_load_test(&target, &dated, &options, &stop, |_| {}).await;
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
    Ok(OverloadReport {
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
        resident_end: server.resident_bytes()?,
    })
}
