//! `tessera bench change`: a server under load whose tasks are changed; and the load, which others use too.

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
use crate::arguments::bench::BenchChange;
use crate::model_file::{self, ModelFile};
use crate::{inputs, interrupt, output};

/// How long an answer may take before it counts as never coming.
pub(super) const NEVER: Duration = Duration::from_secs(40);

/// What became of the requests of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Answers {
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// Answers that are not what they were before.
    pub(super) wrong: u64,
    /// By status and reason.
    pub(super) errors: BTreeMap<String, u64>,
    /// Requests whose answer never came.
    pub(super) unanswered: u64,
    pub(super) slowest_ms: f64,
}

/// A request, and what its answer was when nothing was wrong.
pub(super) struct Asked {
    request: InferRequest,
    expected: Vec<f32>,
}

/// How far an answer may be from what it was, relative to its largest element: sums are taken in another order in batches.
const TOLERANCE: f32 = 1e-3;

impl Asked {
    /// Asks once, to know the answer.
    pub(super) fn new(request: InferRequest, server: &TestServer) -> Result<Self> {
        let (_, answer) = request.send(&mut Client::connect(server.told.http)?)?;
        if answer.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(Error::engine(format!("the first answer: {} {text}", answer.status)));
        }
        let expected = floats(&answer.body, usize::MAX);
        Ok(Self { request, expected })
    }

    fn is_right(&self, body: &[u8]) -> bool {
        let found = floats(body, self.expected.len());
        let largest = self.expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        found.len() == self.expected.len()
            && found.iter().zip(&self.expected).all(|(a, b)| (a - b).abs() <= TOLERANCE * largest)
    }
}

/// The numbers at the end of an answer, where its tensor is: so many, or all after the text.
fn floats(body: &[u8], count: usize) -> Vec<f32> {
    // The text before it ends where its outermost brace does.
    let mut text = serde_json::Deserializer::from_slice(body).into_iter::<Value>();
    let is_text = matches!(text.next(), Some(Ok(_)));
    let end = if is_text { text.byte_offset() } else { 0 };
    let tensor = body.get(end..).unwrap_or_default();
    let numbers = tensor.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    numbers.take(count).collect()
}

/// Clients that ask on until they are told to stop.
pub(super) struct Clients {
    over: Arc<AtomicBool>,
    answers: Arc<Mutex<Answers>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Clients {
    /// Starts so many; each asks one of these after the other.
    pub(super) fn start(count: usize, server: &TestServer, requests: &Arc<Vec<Asked>>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let answers: Arc<Mutex<Answers>> = Arc::default();
        let threads = (0..count)
            .map(|number| {
                let (over, answers) = (Arc::clone(&over), Arc::clone(&answers));
                let (requests, address) = (Arc::clone(requests), server.told.http);
                std::thread::spawn(move || {
                    let mut client = None;
                    for asked in requests.iter().cycle().skip(number) {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let start = Instant::now();
                        let connection = match client.take() {
                            Some(client) => Ok(client),
                            None => Client::connect(address),
                        };
                        let result = connection.and_then(|mut connected| {
                            let (_, answer) = asked.request.send(&mut connected)?;
                            client = Some(connected);
                            Ok(answer)
                        });
                        let took = start.elapsed();
                        let mut answers =
                            answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        answers.asked += 1;
                        answers.slowest_ms = answers.slowest_ms.max(took.as_secs_f64() * 1e3);
                        match result {
                            Ok(answer) if answer.status == 200 => {
                                answers.answered += 1;
                                answers.wrong += u64::from(!asked.is_right(&answer.body));
                            }
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

    /// Tells them to stop, and waits for that.
    pub(super) fn end(self) -> Answers {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok();
        }
        self.answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Requests with different inputs.
const DIFFERENT: u64 = 8;

/// Siblings of a model, written to files, and requests for the first.
pub(super) fn siblings(
    model: &str,
    count: u64,
    folder: &Path,
) -> Result<(Vec<PathBuf>, Vec<InferRequest>)> {
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
    let name = &partition.graph.inputs[0].name;
    let requests = (0..DIFFERENT).map(|seed| {
        let ports = &partition.graph.inputs;
        let given = inputs::random(ports, &std::collections::HashMap::new(), seed)?;
        let bytes = given[0].bytes().unwrap_or_default();
        Ok(InferRequest::new("task0", name, given[0].shape(), bytes))
    });
    Ok((files, requests.collect::<Result<_>>()?))
}

pub(super) fn temporary() -> Result<tempfile::TempDir> {
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
    let requests = request.into_iter().map(|request| Asked::new(request, &server));
    let requests = Arc::new(requests.collect::<Result<Vec<_>>>()?);
    let clients = Clients::start(arguments.clients, &server, &requests);
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
