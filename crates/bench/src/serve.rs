//! `tessera bench serve`: a server with blocks against the bare engine with the whole model.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_report::{Table, format_bytes, format_milliseconds, output};

use clap::Args;
use serde::Serialize;
use tessera_command::{EngineArguments, SplitArguments};
use tessera_core::{Error, Result, Tensor, lock};
use tessera_engine::{Engine, EngineSession, LoadOptions};
use tessera_node::{LatencySummary, median_of_sorted};
use tessera_repository::ModelFile;
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::{Architecture, BatchSize, Recipe, SharedStages, random_inputs};

use super::test_client::{TestClient, TestInferRequest};
use super::test_server::TestServer;
use crate::zoo_file;

/// Options of `tessera bench serve`.
#[derive(Args)]
pub struct BenchServe {
    /// ONNX file with one input, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Measured requests of one client
    #[arg(long, default_value_t = 100)]
    pub(crate) runs: usize,
    /// Clients for the throughput
    #[arg(long, default_value_t = 8)]
    pub(crate) clients: usize,
    /// Seconds of each measurement of throughput
    #[arg(long, default_value_t = 4.0)]
    pub(crate) seconds: f64,
    /// How often each is measured, in turns
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Requests before the measured ones.
const WARM_UP: usize = 5;

#[derive(Serialize)]
struct ServeBenchReport {
    model: String,
    blocks: usize,
    engine: String,
    cores: usize,
    latency: ServeLatency,
    throughput: ServeThroughput,
    idle: IdleMemory,
}

/// One client: an answer through the gateway over a run of the bare engine.
#[derive(Serialize)]
struct ServeLatency {
    bare: LatencySummary,
    threads: LatencySummary,
    processes: LatencySummary,
    /// Medians of the ratios of neighbouring runs.
    threads_over_bare: f64,
    processes_over_bare: f64,
}

/// Several clients, in answers per second.
#[derive(Serialize)]
struct ServeThroughput {
    clients: usize,
    /// The engine alone: one run at a time on all cores, and one per core on one thread each.
    bare_one_at_a_time: f64,
    bare_one_per_core: f64,
    threads: f64,
    processes: f64,
    /// Ten tasks that have three of four stages in common.
    siblings: f64,
    threads_over_best_bare: f64,
    processes_over_best_bare: f64,
    siblings_over_threads: f64,
}

/// A server with one task that nobody asks for anything.
#[derive(Serialize)]
struct IdleMemory {
    resident_bytes: u64,
    weight_bytes: u64,
    engine_bytes: u64,
    beyond_bytes: i64,
}

pub(crate) fn bench_serve(arguments: &BenchServe) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let folder = temporary_folder()?;
    let path = zoo_file::find_or_write(&arguments.model, BatchSize::Fixed(1), folder.path())?;
    let model = ModelFile::read_file(&path, &Default::default(), &[])?;
    let engine = arguments.engine.choose_engine()?;
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let partition = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
    let given = random_inputs(&partition.graph.inputs, &HashMap::new(), 0)?;
    let request = single_input_request(&model.name(), &partition.graph.inputs[0].name, &given)?;
    let blocks = arguments.split.blocks.unwrap_or(4).to_string();
    let model_path = path.display().to_string();
    let engine_name = arguments.engine.engine.to_string();
    let start = |name: &str, more: &[&str]| {
        let mut all = vec!["--engine", &engine_name, "--blocks", &blocks, "--no-fusion"];
        all.extend(more);
        TestServer::start_server(&folder.path().join(name), &all)
    };
    let threads = start("threads", &[&model_path])?;
    let idle = measure_idle(&threads)?;
    let processes = start("processes", &["--isolation", "process", &model_path])?;
    working.finish_and_clear();

    let bare = BareEngine { engine: engine.as_ref(), model: &model, given: &given };
    let latency =
        measure_serve_latency(&bare, cores, &request, [&threads, &processes], arguments.runs)?;
    let siblings = start_siblings(arguments, folder.path(), &engine_name)?;
    let throughput = measure_serve_throughput(
        &bare,
        cores,
        &request,
        [&threads, &processes],
        &siblings,
        arguments,
    )?;
    let report = ServeBenchReport {
        model: arguments.model.clone(),
        blocks: partition.graph.blocks.len(),
        engine: format!("{} {}", engine.name(), engine.version()),
        cores: cores.get(),
        latency,
        throughput,
        idle,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    print_serve_report(&report)
}

fn single_input_request(task: &str, input: &str, given: &[Tensor]) -> Result<TestInferRequest> {
    let [tensor] = given else {
        return Err(Error::unsupported("a model with several inputs, expected one"));
    };
    let bytes = tensor.bytes().ok_or_else(|| Error::unsupported("an input of strings"))?;
    Ok(TestInferRequest::new(task, input, tensor.shape(), bytes))
}

/// The engine with the whole model, without anything around it.
struct BareEngine<'a> {
    engine: &'a dyn Engine,
    model: &'a ModelFile,
    given: &'a [Tensor],
}

impl BareEngine<'_> {
    fn load_session(&self, threads: NonZeroUsize) -> Result<Box<dyn EngineSession>> {
        let graph = &self.model.graph;
        let name = |id: &tessera_graph::ValueId| graph.value_name(*id).to_owned();
        let inputs: Vec<String> = graph.inputs().iter().map(name).collect();
        let outputs = graph.outputs().iter().map(|id| {
            let known = self.model.types.get(*id);
            let dtype = known.map(|known| known.dtype);
            dtype
                .map(|dtype| (name(id), dtype))
                .ok_or_else(|| Error::invalid(format!("output \"{}\" has no dtype", name(id))))
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let options = LoadOptions { threads, ..LoadOptions::default() };
        self.engine.load_file(&self.model.path, &inputs, &outputs, &options)
    }

    fn time_run(&self, session: &mut dyn EngineSession) -> Result<Duration> {
        let outputs = self.model.graph.outputs().iter().map(|_| None).collect();
        let start = Instant::now();
        session.run_inference(self.given, outputs)?;
        Ok(start.elapsed())
    }

    /// Runs per second of these sessions, each on a thread of its own.
    fn runs_per_second(
        &self,
        sessions: &mut [Box<dyn EngineSession>],
        duration: Duration,
    ) -> Result<f64> {
        let done = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let runs: Vec<_> = sessions
                .iter_mut()
                .map(|session| {
                    let done = &done;
                    scope.spawn(move || -> Result<()> {
                        while start.elapsed() < duration {
                            self.time_run(session.as_mut())?;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            runs.into_iter().try_for_each(|run| {
                run.join().unwrap_or_else(|_| Err(Error::engine("a run panicked")))
            })
        })?;
        Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
    }
}

fn measure_serve_latency(
    bare: &BareEngine<'_>,
    cores: NonZeroUsize,
    request: &TestInferRequest,
    servers: [&TestServer; 2],
    runs: usize,
) -> Result<ServeLatency> {
    let mut session = bare.load_session(cores)?;
    let mut clients = [
        TestClient::connect(servers[0].announced.http)?,
        TestClient::connect(servers[1].announced.http)?,
    ];
    let mut times: [Vec<Duration>; 3] = Default::default();
    let bar = output::progress_bar((runs + WARM_UP) as u64, "one client");
    for number in 0..runs.max(1) + WARM_UP {
        // In turns, and who goes first changes too.
        for turn in 0..3 {
            let who = (turn + number) % 3;
            let took = match who {
                0 => bare.time_run(session.as_mut())?,
                _ => time_answer(request, &mut clients[who - 1])?,
            };
            if number >= WARM_UP {
                times[who].push(took);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let ratio = |who: usize| {
        let pairs = times[0].iter().zip(&times[who]);
        let mut ratios: Vec<f64> =
            pairs.map(|(bare, served)| served.as_secs_f64() / bare.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        median_of_sorted(&ratios).unwrap_or(f64::NAN)
    };
    let summary = |who: usize| {
        LatencySummary::from_times(&times[who]).ok_or_else(|| Error::usage("no runs were measured"))
    };
    Ok(ServeLatency {
        threads_over_bare: ratio(1),
        processes_over_bare: ratio(2),
        bare: summary(0)?,
        threads: summary(1)?,
        processes: summary(2)?,
    })
}

fn time_answer(request: &TestInferRequest, client: &mut TestClient) -> Result<Duration> {
    let (took, answer) = request.send_to(client)?;
    answer.require_ok("a request")?;
    Ok(took)
}

/// A server with ten tasks that have three of four stages in common, and a request to each.
struct SiblingServer {
    server: TestServer,
    requests: Vec<TestInferRequest>,
}

const SIBLING_COUNT: u64 = 10;

fn start_siblings(
    arguments: &BenchServe,
    folder: &std::path::Path,
    engine: &str,
) -> Result<Option<SiblingServer>> {
    let Ok(architecture) = arguments.model.parse::<Architecture>() else {
        return Ok(None);
    };
    let mut files = Vec::new();
    let mut requests = Vec::new();
    for seed in 1..=SIBLING_COUNT {
        let shared_stages = Some(SharedStages { seed: 0, stages: 3 });
        let path = folder.join(format!("sibling{seed}.onnx"));
        let recipe = Recipe { seed, shared_stages, ..Recipe::new(architecture) };
        zoo_file::write_recipe(&recipe, &path)?;
        let model = ModelFile::read_file(&path, &Default::default(), &[])?;
        let ports: Vec<tessera_graph::TensorPort> = model
            .graph
            .inputs()
            .iter()
            .filter_map(|id| {
                Some(tessera_graph::TensorPort {
                    name: model.graph.value_name(*id).to_owned(),
                    tensor_type: model.types.get(*id)?.clone(),
                    is_row_wise: false,
                    default: None,
                })
            })
            .collect();
        let given = random_inputs(&ports, &HashMap::new(), seed)?;
        requests.push(single_input_request(&model.name(), &ports[0].name, &given)?);
        files.push(path.display().to_string());
    }
    let mut all = vec!["--engine", engine];
    all.extend(files.iter().map(String::as_str));
    let server = TestServer::start_server(&folder.join("siblings"), &all)?;
    Ok(Some(SiblingServer { server, requests }))
}

fn measure_serve_throughput(
    bare: &BareEngine<'_>,
    cores: NonZeroUsize,
    request: &TestInferRequest,
    servers: [&TestServer; 2],
    siblings: &Option<SiblingServer>,
    arguments: &BenchServe,
) -> Result<ServeThroughput> {
    let mut wide = [bare.load_session(cores)?];
    let mut narrow: Vec<Box<dyn EngineSession>> =
        (0..cores.get()).map(|_| bare.load_session(NonZeroUsize::MIN)).collect::<Result<_>>()?;
    let slice = Duration::from_secs_f64(arguments.seconds);
    let mut rates: [Vec<f64>; 5] = Default::default();
    let rounds = arguments.rounds.max(1);
    let bar = output::progress_bar((rounds * 5) as u64, "several clients");
    for round in 0..rounds {
        for turn in 0..5 {
            let who = (turn + round) % 5;
            let rate = match who {
                0 => bare.runs_per_second(&mut wide, slice)?,
                1 => bare.runs_per_second(&mut narrow, slice)?,
                2 | 3 => {
                    answers_per_second(servers[who - 2], &[request], arguments.clients, slice)?
                }
                _ => match siblings {
                    Some(siblings) => {
                        let requests: Vec<&TestInferRequest> = siblings.requests.iter().collect();
                        answers_per_second(&siblings.server, &requests, arguments.clients, slice)?
                    }
                    None => f64::NAN,
                },
            };
            rates[who].push(rate);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let middle = |who: usize| {
        let mut seen = rates[who].clone();
        seen.sort_by(f64::total_cmp);
        median_of_sorted(&seen).unwrap_or(f64::NAN)
    };
    let best = middle(0).max(middle(1));
    Ok(ServeThroughput {
        clients: arguments.clients,
        bare_one_at_a_time: middle(0),
        bare_one_per_core: middle(1),
        threads: middle(2),
        processes: middle(3),
        siblings: middle(4),
        threads_over_best_bare: middle(2) / best,
        processes_over_best_bare: middle(3) / best,
        siblings_over_threads: middle(4) / middle(2),
    })
}

/// Answers per second that so many clients get, each asking again when it has its answer.
fn answers_per_second(
    server: &TestServer,
    requests: &[&TestInferRequest],
    clients: usize,
    duration: Duration,
) -> Result<f64> {
    let done = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let failed: Arc<Mutex<Option<Error>>> = Arc::default();
    // All are connected and have asked once before the time begins.
    let ready = std::sync::Barrier::new(clients + 1);
    let rate = std::thread::scope(|scope| {
        for client in 0..clients {
            let (done, over, ready, failed) = (&done, &over, &ready, Arc::clone(&failed));
            scope.spawn(move || {
                let mut connection = TestClient::connect(server.announced.http);
                ready.wait();
                let mut number = client;
                while !over.load(Ordering::Relaxed) {
                    let request = requests[number % requests.len()];
                    number += 1;
                    let asked = match &mut connection {
                        Ok(connection) => time_answer(request, connection),
                        Err(_) => Err(Error::lost("no connection to the server")),
                    };
                    if let Err(error) = asked {
                        *lock(&failed) = Some(error);
                        return;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        ready.wait();
        // The pipeline fills first.
        std::thread::sleep(duration / 5);
        let before = done.load(Ordering::Relaxed);
        let start = Instant::now();
        std::thread::sleep(duration);
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        rate
    });
    match lock(&failed).take() {
        Some(error) => Err(error),
        None => Ok(rate),
    }
}

/// What a server that has just started holds.
fn measure_idle(server: &TestServer) -> Result<IdleMemory> {
    // What loading needed is given back by then.
    std::thread::sleep(Duration::from_secs(2));
    let resident = server.resident_bytes()?;
    let weights = server.announced.units.iter().map(|unit| unit.weight_bytes).sum();
    let engine = library_bytes(server.announced.process)?;
    Ok(IdleMemory {
        resident_bytes: resident,
        weight_bytes: weights,
        engine_bytes: engine,
        beyond_bytes: resident as i64 - weights as i64 - engine as i64,
    })
}

/// What of the engine's library is resident in a process.
fn library_bytes(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::from_io(&path, &error))?;
    let (mut within, mut sum) = (false, 0);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kilobytes = rest.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0);
            sum += if within { kilobytes * 1024 } else { 0 };
        } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            within = line.contains("libonnxruntime");
        }
    }
    Ok(sum)
}

fn print_serve_report(report: &ServeBenchReport) -> Result<()> {
    let ServeBenchReport { latency, throughput, idle, .. } = report;
    let mut table = Table::new(&["one client", ">median", ">p99", ">over the bare engine"]);
    let rows = [
        ("bare engine, whole model", &latency.bare, 1.0),
        ("gateway, units on threads", &latency.threads, latency.threads_over_bare),
        ("gateway, units in processes", &latency.processes, latency.processes_over_bare),
    ];
    for (name, summary, ratio) in rows {
        let shown = [summary.median_ms, summary.p99_ms].map(format_milliseconds);
        table.add_row([name.to_owned()].into_iter().chain(shown).chain([format!("{ratio:.3}")]));
    }
    table.print_table()?;
    output::print_line("")?;
    let head = "several clients, answers per second";
    let mut table = Table::new(&[head, ">rate", ">over the best bare"]);
    let best = throughput.bare_one_at_a_time.max(throughput.bare_one_per_core);
    for (name, rate) in [
        ("bare engine, one run at a time on all cores", throughput.bare_one_at_a_time),
        ("bare engine, one run per core", throughput.bare_one_per_core),
        ("gateway, units on threads", throughput.threads),
        ("gateway, units in processes", throughput.processes),
        ("gateway, 10 tasks with 3 of 4 stages in common", throughput.siblings),
    ] {
        table.add_row([name.to_owned(), format!("{rate:.2}"), format!("{:.3}", rate / best)]);
    }
    table.print_table()?;
    output::print_line("")?;
    output::print_line(&format!(
        "idle: {} resident, of which {} weights and {} the engine's library: {:.1} MB beyond",
        format_bytes(idle.resident_bytes),
        format_bytes(idle.weight_bytes),
        format_bytes(idle.engine_bytes),
        idle.beyond_bytes as f64 / 1e6
    ))?;
    output::print_line(&format!(
        "{} in {} blocks, {}, {} cores, {} clients",
        report.model, report.blocks, report.engine, report.cores, throughput.clients
    ))
}
