//! Clients that ask a server meanwhile, and count what comes of it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Result, lock};
use tessera_repository::ModelFile;
use tessera_zoo::{Architecture, Recipe, SharedStages, random_inputs};

use super::test_client::{HttpAnswer, TestClient, TestInferRequest};
use super::test_server::TestServer;
use crate::zoo_file;

/// How long an answer may take before it counts as never coming.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// What became of the requests of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AnswerCounts {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// Answers that are not what they were before.
    pub(crate) wrong: u64,
    /// By status and reason.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Requests whose answer never came.
    pub(crate) unanswered: u64,
    pub(crate) slowest_ms: f64,
}

/// A request, and what its answer was when nothing was wrong.
pub(crate) struct CheckedRequest {
    pub(crate) request: TestInferRequest,
    expected: Vec<f32>,
}

/// How far an answer may be from what it was, relative to its largest element: sums are taken in
/// another order in batches.
const TOLERANCE: f32 = 1e-3;

impl CheckedRequest {
    /// Asks once, to know the answer.
    pub(crate) fn new(request: TestInferRequest, server: &TestServer) -> Result<Self> {
        Self::ask_first(request, server.announced.http)
    }

    /// The same of a server at this address.
    pub(crate) fn ask_first(request: TestInferRequest, address: SocketAddr) -> Result<Self> {
        let (_, answer) = request.send_to(&mut TestClient::connect(address)?)?;
        let answer = answer.require_ok("the first request")?;
        let expected = trailing_floats(&answer, usize::MAX);
        Ok(Self { request, expected })
    }

    /// Whether an answer is what it was.
    pub(crate) fn is_right(&self, answer: &HttpAnswer) -> bool {
        let found = trailing_floats(answer, self.expected.len());
        let largest = self.expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        found.len() == self.expected.len()
            && found.iter().zip(&self.expected).all(|(a, b)| (a - b).abs() <= TOLERANCE * largest)
    }
}

/// The numbers of an answer's tensor: so many, or all.
fn trailing_floats(answer: &HttpAnswer, count: usize) -> Vec<f32> {
    let (_, tensor) = answer.json_and_tensors();
    let numbers = tensor.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    numbers.take(count).collect()
}

/// Clients that ask on until they are told to stop.
pub(crate) struct BackgroundClients {
    over: Arc<AtomicBool>,
    answers: Arc<Mutex<AnswerCounts>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl BackgroundClients {
    /// Starts so many; each asks one of these after the other.
    pub(crate) fn start_clients(
        count: usize,
        server: &TestServer,
        requests: &Arc<Vec<CheckedRequest>>,
    ) -> Self {
        Self::start_at(count, server.announced.http, requests, || ())
    }

    /// The same for a server at this address; `prepare_thread` is called on each client's thread.
    pub(crate) fn start_at(
        count: usize,
        address: SocketAddr,
        requests: &Arc<Vec<CheckedRequest>>,
        prepare_thread: impl Fn() + Clone + Send + 'static,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let answers: Arc<Mutex<AnswerCounts>> = Arc::default();
        let threads = (0..count)
            .map(|number| {
                let (over, answers) = (Arc::clone(&over), Arc::clone(&answers));
                let requests = Arc::clone(requests);
                let prepare_thread = prepare_thread.clone();
                std::thread::spawn(move || {
                    prepare_thread();
                    let mut client = None;
                    for asked in requests.iter().cycle().skip(number) {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let start = Instant::now();
                        let connection = match client.take() {
                            Some(client) => Ok(client),
                            None => TestClient::connect(address),
                        };
                        let result = connection.and_then(|mut connected| {
                            let (_, answer) = asked.request.send_to(&mut connected)?;
                            client = Some(connected);
                            Ok(answer)
                        });
                        let took = start.elapsed();
                        let mut answers = lock(&answers);
                        answers.asked += 1;
                        answers.slowest_ms = answers.slowest_ms.max(took.as_secs_f64() * 1e3);
                        match result {
                            Ok(answer) if answer.status == 200 => {
                                answers.answered += 1;
                                answers.wrong += u64::from(!asked.is_right(&answer));
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
    pub(crate) fn stop_and_count(self) -> AnswerCounts {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok();
        }
        lock(&self.answers).clone()
    }
}

/// Requests with different inputs.
const DISTINCT_INPUTS: u64 = 8;

/// Siblings of a model, written to files, and requests for the first.
pub(crate) fn write_siblings(
    model: &str,
    count: u64,
    folder: &Path,
) -> Result<(Vec<PathBuf>, Vec<TestInferRequest>)> {
    let architecture: Architecture = model.parse()?;
    let mut files = Vec::new();
    for seed in 0..count {
        let shared_stages = (seed > 0).then_some(SharedStages { seed: 0, stages: 3 });
        let path = folder.join(format!("task{seed}.onnx"));
        let recipe = Recipe { seed, shared_stages, ..Recipe::new(architecture) };
        zoo_file::write_recipe(&recipe, &path)?;
        files.push(path);
    }
    let first = ModelFile::read_file(&files[0], &BTreeMap::new(), &[])?;
    let partition = tessera_graph::split_into_chain(
        &first.graph,
        &first.types,
        &tessera_graph::Split::Blocks(1),
        &[],
    )?;
    let name = &partition.graph.inputs[0].name;
    let requests = (0..DISTINCT_INPUTS).map(|seed| {
        let ports = &partition.graph.inputs;
        let given = random_inputs(ports, &HashMap::new(), seed)?;
        let bytes = given[0].bytes().unwrap_or_default();
        Ok(TestInferRequest::new("task0", name, given[0].shape(), bytes))
    });
    Ok((files, requests.collect::<Result<_>>()?))
}
