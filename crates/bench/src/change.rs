//! `tessera bench change`: a server under load whose tasks are changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_report::output;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tessera_command::parse_isolation;
use tessera_core::{Error, Random, Result};
use tessera_deploy::Isolation;
use tessera_node::median_of_sorted;
use tessera_repository::unfinished_files::temporary_folder;

use super::background_clients::{AnswerCounts, BackgroundClients, CheckedRequest, write_siblings};
use super::test_server::TestServer;

/// Options of `tessera bench change`.
#[derive(Args)]
pub struct BenchChange {
    /// Zoo architecture
    #[arg(long, default_value = "resnet18")]
    pub(crate) model: String,
    /// thread or process
    #[arg(long, default_value = "thread", value_parser = parse_isolation)]
    pub(crate) isolation: Isolation,
    /// How many updates
    #[arg(long, default_value_t = 200)]
    pub(crate) count: usize,
    /// Clients that ask meanwhile
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// Most milliseconds between a change and the next
    #[arg(long, default_value_t = 200, value_name = "MS")]
    pub(crate) pause: u64,
    /// Seed of the changes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct ChangeReport {
    updates: usize,
    added: u64,
    changed: u64,
    removed: u64,
    update_median_ms: f64,
    update_most_ms: f64,
    /// Of the task that stays.
    requests: AnswerCounts,
    failed: u64,
    tasks_at_the_end: usize,
    units_at_the_end: usize,
}

/// Changes the tasks of a server again and again while one that stays is asked.
pub(crate) fn bench_change(arguments: &BenchChange) -> Result<()> {
    const SIBLINGS: u64 = 6;
    let working = output::spinner(format!("preparing siblings of {}", arguments.model));
    let folder = temporary_folder()?;
    let (files, request) = write_siblings(&arguments.model, SIBLINGS, folder.path())?;
    let mut all = vec!["--isolation".to_owned(), arguments.isolation.to_string()];
    all.extend(files.iter().map(|file| file.display().to_string()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let server = TestServer::start_server(&folder.path().join("repository"), &all)?;
    working.finish_and_clear();
    let requests = request.into_iter().map(|request| CheckedRequest::new(request, &server));
    let requests = Arc::new(requests.collect::<Result<Vec<_>>>()?);
    let clients = BackgroundClients::start_clients(arguments.clients, &server, &requests);
    let bar = output::progress_bar(arguments.count as u64, "changing");
    let mut random = Random::new(arguments.seed);
    // The task that stays, and those that come and go.
    let mut tasks: BTreeMap<String, Value> = BTreeMap::new();
    tasks.insert("task0".to_owned(), json!({ "model": "task0" }));
    let mut report = ChangeReport {
        updates: 0,
        added: 0,
        changed: 0,
        removed: 0,
        update_median_ms: 0.0,
        update_most_ms: 0.0,
        requests: AnswerCounts::default(),
        failed: 0,
        tasks_at_the_end: 0,
        units_at_the_end: 0,
    };
    let mut times = Vec::new();
    for _ in 0..arguments.count {
        let name = format!("visitor{}", random.next_below(4));
        let model = format!("task{}", 1 + random.next_below(SIBLINGS - 1));
        let isolation = if random.next_below(4) == 0 { "process" } else { "thread" };
        let settings = json!({
            "model": model, "deadline_ms": 1000 + random.next_below(5) * 1000,
            "isolation": isolation, "replicas": 1 + random.next_below(2),
        });
        match (tasks.contains_key(&name), random.next_below(2)) {
            (true, 0) => {
                tasks.remove(&name);
                report.removed += 1;
            }
            (true, _) => {
                tasks.insert(name, settings);
                report.changed += 1;
            }
            (false, _) => {
                tasks.insert(name, settings);
                report.added += 1;
            }
        }
        let start = Instant::now();
        server.call_control("PUT", "/v1/system", Some(&json!({ "tasks": tasks })))?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(random.next_below(arguments.pause.max(1))));
        report.updates += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.requests = clients.stop_and_count();
    report.failed = report.requests.asked - report.requests.answered;
    times.sort_by(f64::total_cmp);
    report.update_median_ms = median_of_sorted(&times).unwrap_or(0.0);
    report.update_most_ms = times.last().copied().unwrap_or(0.0);
    // What is drained is stopped a moment later.
    std::thread::sleep(Duration::from_secs(1));
    let count = |path: &str, key: &str| -> Result<usize> {
        let found = server.call_control("GET", path, None)?;
        Ok(found.get(key).and_then(Value::as_array).map_or(0, Vec::len))
    };
    report.tasks_at_the_end = count("/v1/tasks", "tasks")?;
    report.units_at_the_end = count("/v1/units", "units")?;
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print_line(&format!(
            "{} updates ({} added, {} changed, {} removed a task), {:.0} ms each, {:.0} ms at most",
            report.updates,
            report.added,
            report.changed,
            report.removed,
            report.update_median_ms,
            report.update_most_ms
        ))?;
        output::print_line(&format!(
            "the task that stays: {} requests, {} failed, slowest {:.0} ms {:?}",
            report.requests.asked,
            report.failed,
            report.requests.slowest_ms,
            report.requests.errors
        ))?;
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(Error::engine(format!("{failed} requests of the task that stays failed"))),
    }
}
