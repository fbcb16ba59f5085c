//! `tessera bench change` and `tessera bench faults`: a server under load whose tasks are changed, or
//! whose blocks are killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};
use tessera_core::{Error, Random, Result};
use tessera_node::median;
use tessera_zoo::{Architecture, Recipe, Share};

use super::server::{Client, InferRequest, TestServer};
use crate::arguments::bench::{BenchChange, BenchFaults};
use crate::model_file::{self, ModelFile};
use crate::{inputs, interrupt, output};

/// How long an answer may take before it counts as never coming.
const NEVER: Duration = Duration::from_secs(40);

/// What became of the requests of a load.
#[derive(Clone, Debug, Default, Serialize)]
struct Answers {
    asked: u64,
    answered: u64,
    /// By status and reason.
    errors: BTreeMap<String, u64>,
    /// Requests whose answer never came.
    unanswered: u64,
    slowest_ms: f64,
}

/// Clients that ask on until they are told to stop.
struct Clients {
    over: Arc<AtomicBool>,
    answers: Arc<Mutex<Answers>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Clients {
    fn start(count: usize, server: &TestServer, request: &Arc<InferRequest>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let answers: Arc<Mutex<Answers>> = Arc::default();
        let threads = (0..count)
            .map(|_| {
                let (over, answers) = (Arc::clone(&over), Arc::clone(&answers));
                let (request, address) = (Arc::clone(request), server.told.http);
                std::thread::spawn(move || {
                    let mut client = None;
                    while !over.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        let asked = match client.take() {
                            Some(client) => Ok(client),
                            None => Client::connect(address),
                        };
                        let result = asked.and_then(|mut connected| {
                            let (_, answer) = request.send(&mut connected)?;
                            client = Some(connected);
                            Ok(answer)
                        });
                        let took = start.elapsed();
                        let mut answers =
                            answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        answers.asked += 1;
                        answers.slowest_ms = answers.slowest_ms.max(took.as_secs_f64() * 1e3);
                        match result {
                            Ok(answer) if answer.status == 200 => answers.answered += 1,
                            Ok(answer) => {
                                let text = String::from_utf8_lossy(&answer.body);
                                let text: String = text.chars().take(120).collect();
                                let key = format!("{} {text}", answer.status);
                                *answers.errors.entry(key).or_default() += 1;
                            }
                            Err(_) => answers.unanswered += 1,
                        }
                    }
                })
            })
            .collect();
        Self { over, answers, threads }
    }

    fn end(self) -> Answers {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok();
        }
        self.answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Siblings of a model, written to files, the first with a request for it.
fn siblings(model: &str, count: u64, folder: &Path) -> Result<(Vec<PathBuf>, Arc<InferRequest>)> {
    let architecture: Architecture = model.parse()?;
    let mut files = Vec::new();
    for seed in 0..count {
        let share = (seed > 0).then_some(Share { seed: 0, stages: 3 });
        let made = Recipe { seed, share, ..Recipe::new(architecture) }.build()?;
        let path = folder.join(format!("task{seed}.onnx"));
        model_file::write_whole(&path, &made.model.encode_to_vec())?;
        files.push(path);
    }
    let first = ModelFile::read(&files[0], &BTreeMap::new(), &[])?;
    let partition =
        tessera_graph::split(&first.graph, &first.types, &tessera_graph::Split::Blocks(1), &[])?;
    let given = inputs::random(&partition.graph.inputs, &std::collections::HashMap::new(), 0)?;
    let bytes = given[0].bytes().unwrap_or_default();
    let name = &partition.graph.inputs[0].name;
    let request = InferRequest::new("task0", name, given[0].shape(), bytes);
    Ok((files, Arc::new(request)))
}

fn temporary() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(&interrupt::mark())
        .tempdir()
        .map_err(|error| Error::io("a temporary folder", &error))
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
    requests: Answers,
    failed: u64,
    tasks_at_the_end: usize,
    blocks_at_the_end: usize,
}

/// Changes the tasks of a server again and again while one that stays is asked.
pub(super) fn change(arguments: &BenchChange) -> Result<()> {
    const SIBLINGS: u64 = 6;
    let working = output::spinner(format!("preparing siblings of {}", arguments.model));
    let folder = temporary()?;
    let (files, request) = siblings(&arguments.model, SIBLINGS, folder.path())?;
    let mut all = vec!["--isolation".to_owned(), arguments.isolation.to_string()];
    all.extend(files.iter().map(|file| file.display().to_string()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let server = TestServer::start(&folder.path().join("repository"), &all)?;
    working.finish_and_clear();
    let clients = Clients::start(arguments.clients, &server, &request);
    let bar = output::progress(arguments.count as u64, "changing");
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
        requests: Answers::default(),
        failed: 0,
        tasks_at_the_end: 0,
        blocks_at_the_end: 0,
    };
    let mut times = Vec::new();
    for _ in 0..arguments.count {
        let name = format!("guest{}", random.below(4));
        let model = format!("task{}", 1 + random.below(SIBLINGS - 1));
        let isolation = if random.below(4) == 0 { "process" } else { "thread" };
        let settings = json!({
            "model": model, "deadline_ms": 1000 + random.below(5) * 1000,
            "isolation": isolation, "replicas": 1 + random.below(2),
        });
        match (tasks.contains_key(&name), random.below(2)) {
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
        server.control("PUT", "/v1/system", Some(&json!({ "tasks": tasks })))?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(random.below(arguments.pause.max(1))));
        report.updates += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.requests = clients.end();
    report.failed = report.requests.asked - report.requests.answered;
    times.sort_by(f64::total_cmp);
    report.update_median_ms = median(&times).unwrap_or(0.0);
    report.update_most_ms = times.last().copied().unwrap_or(0.0);
    // What is drained is stopped a moment later.
    std::thread::sleep(Duration::from_secs(1));
    let count = |path: &str, key: &str| -> Result<usize> {
        let found = server.control("GET", path, None)?;
        Ok(found.get(key).and_then(Value::as_array).map_or(0, Vec::len))
    };
    report.tasks_at_the_end = count("/v1/tasks", "tasks")?;
    report.blocks_at_the_end = count("/v1/blocks", "blocks")?;
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!(
            "{} updates ({} added, {} changed, {} removed a task), {:.0} ms each, {:.0} ms at most",
            report.updates,
            report.added,
            report.changed,
            report.removed,
            report.update_median_ms,
            report.update_most_ms
        ))?;
        output::print(&format!(
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

#[derive(Serialize)]
struct FaultReport {
    kills: usize,
    /// How long until the block took requests again.
    back_median_ms: f64,
    back_most_ms: f64,
    back_late: usize,
    requests: Answers,
}

/// Kills blocks' processes again and again while the server is asked.
pub(super) fn faults(arguments: &BenchFaults) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let folder = temporary()?;
    let (files, request) = siblings(&arguments.model, 1, folder.path())?;
    let file = files[0].display().to_string();
    let all = ["--isolation", "process", "--blocks", "4", "--no-fusion", "--log", "error", &file];
    let server = TestServer::start(&folder.path().join("repository"), &all)?;
    working.finish_and_clear();
    let clients = Clients::start(arguments.clients, &server, &request);
    let bar = output::progress(arguments.count as u64, "killing");
    let mut random = Random::new(arguments.seed);
    let mut times = Vec::new();
    for _ in 0..arguments.count {
        std::thread::sleep(Duration::from_millis(20 + random.below(arguments.pause)));
        let (name, process) = loop {
            let processes = processes(&server)?;
            let index = usize::try_from(random.below(processes.len().max(1) as u64)).unwrap_or(0);
            if let Some((name, Some(process))) = processes.into_iter().nth(index) {
                break (name, process);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let start = Instant::now();
        let killed = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(process) = killed {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).ok();
        }
        // It is back when another process has its place.
        loop {
            let now = processes(&server)?;
            let back =
                now.iter().any(|(block, id)| *block == name && id.is_some_and(|id| id != process));
            if back || start.elapsed() > NEVER {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let requests = clients.end();
    times.sort_by(f64::total_cmp);
    let report = FaultReport {
        kills: times.len(),
        back_median_ms: median(&times).unwrap_or(0.0),
        back_most_ms: times.last().copied().unwrap_or(0.0),
        back_late: times.iter().filter(|&&ms| ms > 1000.0).count(),
        requests,
    };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!(
            "{} kills: back after {:.0} ms, {:.0} ms at most, {} later than 1 s",
            report.kills, report.back_median_ms, report.back_most_ms, report.back_late
        ))?;
        let errors: u64 = report.requests.errors.values().sum();
        output::print(&format!(
            "{} requests: {} answered, {errors} errors, {} without an answer, slowest {:.0} ms",
            report.requests.asked,
            report.requests.answered,
            report.requests.unanswered,
            report.requests.slowest_ms
        ))?;
        for (error, count) in report.requests.errors.iter().take(5) {
            output::print(&format!("  {count} × {error}"))?;
        }
    }
    match report.requests.unanswered {
        0 => Ok(()),
        left => Err(Error::engine(format!("{left} requests were never answered"))),
    }
}

/// The blocks of a server, each with its process where it is up.
fn processes(server: &TestServer) -> Result<Vec<(String, Option<u32>)>> {
    let found = server.control("GET", "/v1/blocks", None)?;
    let blocks = found.get("blocks").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(blocks
        .iter()
        .map(|block| {
            let name = block["name"].as_str().unwrap_or_default().to_owned();
            let instance = &block["instances"][0];
            let process = instance["process"].as_u64().and_then(|id| u32::try_from(id).ok());
            (name, process.filter(|_| instance["state"] == "up"))
        })
        .collect())
}
