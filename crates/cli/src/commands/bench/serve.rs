//! `tessera bench serve`: a server with blocks against the bare engine with the whole model.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::{Engine, LoadOptions, Session};
use tessera_node::{Summary, median};

use super::chain::model_path;
use super::server::{Client, InferRequest, TestServer};
use crate::arguments::bench::BenchServe;
use crate::model_file::ModelFile;
use crate::{commands, inputs, interrupt, output};

/// Requests before the measured ones.
const WARM_UP: usize = 5;

#[derive(Serialize)]
struct Report {
    model: String,
    blocks: usize,
    engine: String,
    cores: usize,
    latency: Latency,
    throughput: Throughput,
    idle: Idle,
}

/// One client: an answer through the gateway over a run of the bare engine.
#[derive(Serialize)]
struct Latency {
    bare: Summary,
    threads: Summary,
    processes: Summary,
    /// Medians of the ratios of neighbouring runs.
    threads_over_bare: f64,
    processes_over_bare: f64,
}

/// Several clients, in answers per second.
#[derive(Serialize)]
struct Throughput {
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
struct Idle {
    resident_bytes: u64,
    weight_bytes: u64,
    engine_bytes: u64,
    beyond_bytes: i64,
}

pub(super) fn run(arguments: &BenchServe) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let (path, _model_folder) = model_path(&arguments.model)?;
    let model = ModelFile::read(&path, &Default::default(), &[])?;
    let folder = tempfile::Builder::new()
        .prefix(&interrupt::mark())
        .tempdir()
        .map_err(|error| Error::io("a temporary folder", &error))?;
    let engine = commands::engine(&arguments.engine)?;
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let partition = model.split(&arguments.split)?;
    let given = inputs::random(&partition.graph.inputs, &HashMap::new(), 0)?;
    let request = request(&model.name(), &partition.graph.inputs[0].name, &given)?;
    let blocks = arguments.split.blocks.unwrap_or(4).to_string();
    let model_path = path.display().to_string();
    let engine_name = arguments.engine.engine.to_string();
    let start = |name: &str, more: &[&str]| {
        let mut all = vec!["--engine", &engine_name, "--blocks", &blocks, "--no-fusion"];
        all.extend(more);
        TestServer::start(&folder.path().join(name), &all)
    };
    let threads = start("threads", &[&model_path])?;
    let idle = idle(&threads)?;
    let processes = start("processes", &["--isolation", "process", &model_path])?;
    working.finish_and_clear();

    let bare = Bare { engine: engine.as_ref(), model: &model, given: &given };
    let latency = latency(&bare, cores, &request, [&threads, &processes], arguments.runs)?;
    let siblings = siblings(arguments, folder.path(), &engine_name)?;
    let throughput =
        throughput(&bare, cores, &request, [&threads, &processes], &siblings, arguments)?;
    let report = Report {
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
    print(&report)
}

fn request(task: &str, input: &str, given: &[Tensor]) -> Result<InferRequest> {
    let [tensor] = given else {
        return Err(Error::unsupported("a model with several inputs, expected one"));
    };
    let bytes = tensor.bytes().ok_or_else(|| Error::unsupported("an input of strings"))?;
    Ok(InferRequest::new(task, input, tensor.shape(), bytes))
}

/// The engine with the whole model, without anything around it.
struct Bare<'a> {
    engine: &'a dyn Engine,
    model: &'a ModelFile,
    given: &'a [Tensor],
}

impl Bare<'_> {
    fn load(&self, threads: NonZeroUsize) -> Result<Box<dyn Session>> {
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

    fn run(&self, session: &mut dyn Session) -> Result<Duration> {
        let outputs = self.model.graph.outputs().iter().map(|_| None).collect();
        let start = Instant::now();
        session.run(self.given, outputs)?;
        Ok(start.elapsed())
    }

    /// Runs per second of these sessions, each on a thread of its own.
    fn throughput(&self, sessions: &mut [Box<dyn Session>], duration: Duration) -> Result<f64> {
        let done = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let runs: Vec<_> = sessions
                .iter_mut()
                .map(|session| {
                    let done = &done;
                    scope.spawn(move || -> Result<()> {
                        while start.elapsed() < duration {
                            self.run(session.as_mut())?;
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

fn latency(
    bare: &Bare<'_>,
    cores: NonZeroUsize,
    request: &InferRequest,
    servers: [&TestServer; 2],
    runs: usize,
) -> Result<Latency> {
    let mut session = bare.load(cores)?;
    let mut clients =
        [Client::connect(servers[0].told.http)?, Client::connect(servers[1].told.http)?];
    let mut times: [Vec<Duration>; 3] = Default::default();
    let bar = output::progress((runs + WARM_UP) as u64, "one client");
    for number in 0..runs.max(1) + WARM_UP {
        // In turns, and who goes first changes too.
        for turn in 0..3 {
            let who = (turn + number) % 3;
            let took = match who {
                0 => bare.run(session.as_mut())?,
                _ => answered(request, &mut clients[who - 1])?,
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
        median(&ratios).unwrap_or(f64::NAN)
    };
    let summary =
        |who: usize| Summary::of(&times[who]).ok_or_else(|| Error::usage("no runs were measured"));
    Ok(Latency {
        threads_over_bare: ratio(1),
        processes_over_bare: ratio(2),
        bare: summary(0)?,
        threads: summary(1)?,
        processes: summary(2)?,
    })
}

fn answered(request: &InferRequest, client: &mut Client) -> Result<Duration> {
    let (took, answer) = request.send(client)?;
    if answer.status != 200 {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        return Err(Error::engine(format!("the server answered {}: {text}", answer.status)));
    }
    Ok(took)
}

/// A server with ten tasks that have three of four stages in common, and a request to each.
struct Siblings {
    server: TestServer,
    requests: Vec<InferRequest>,
}

const SIBLINGS: u64 = 10;

fn siblings(
    arguments: &BenchServe,
    folder: &std::path::Path,
    engine: &str,
) -> Result<Option<Siblings>> {
    use prost::Message;
    use tessera_zoo::{Architecture, Recipe, Share};
    let Ok(architecture) = arguments.model.parse::<Architecture>() else {
        return Ok(None);
    };
    let mut files = Vec::new();
    let mut requests = Vec::new();
    for seed in 1..=SIBLINGS {
        let share = Some(Share { seed: 0, stages: 3 });
        let made = Recipe { seed, share, ..Recipe::new(architecture) }.build()?;
        let path = folder.join(format!("sibling{seed}.onnx"));
        crate::model_file::write_whole(&path, &made.model.encode_to_vec())?;
        let model = ModelFile::read(&path, &Default::default(), &[])?;
        let ports: Vec<tessera_graph::Port> = model
            .graph
            .inputs()
            .iter()
            .filter_map(|id| {
                Some(tessera_graph::Port {
                    name: model.graph.value_name(*id).to_owned(),
                    tensor_type: model.types.get(*id)?.clone(),
                })
            })
            .collect();
        let given = inputs::random(&ports, &HashMap::new(), seed)?;
        requests.push(request(&model.name(), &ports[0].name, &given)?);
        files.push(path.display().to_string());
    }
    let mut all = vec!["--engine", engine];
    all.extend(files.iter().map(String::as_str));
    let server = TestServer::start(&folder.join("siblings"), &all)?;
    Ok(Some(Siblings { server, requests }))
}

fn throughput(
    bare: &Bare<'_>,
    cores: NonZeroUsize,
    request: &InferRequest,
    servers: [&TestServer; 2],
    siblings: &Option<Siblings>,
    arguments: &BenchServe,
) -> Result<Throughput> {
    let mut wide = [bare.load(cores)?];
    let mut narrow: Vec<Box<dyn Session>> =
        (0..cores.get()).map(|_| bare.load(NonZeroUsize::MIN)).collect::<Result<_>>()?;
    let slice = Duration::from_secs_f64(arguments.seconds);
    let mut rates: [Vec<f64>; 5] = Default::default();
    let rounds = arguments.rounds.max(1);
    let bar = output::progress((rounds * 5) as u64, "several clients");
    for round in 0..rounds {
        for turn in 0..5 {
            let who = (turn + round) % 5;
            let rate = match who {
                0 => bare.throughput(&mut wide, slice)?,
                1 => bare.throughput(&mut narrow, slice)?,
                2 | 3 => crowd(servers[who - 2], &[request], arguments.clients, slice)?,
                _ => match siblings {
                    Some(siblings) => {
                        let requests: Vec<&InferRequest> = siblings.requests.iter().collect();
                        crowd(&siblings.server, &requests, arguments.clients, slice)?
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
        median(&seen).unwrap_or(f64::NAN)
    };
    let best = middle(0).max(middle(1));
    Ok(Throughput {
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
fn crowd(
    server: &TestServer,
    requests: &[&InferRequest],
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
                let mut connection = Client::connect(server.told.http);
                ready.wait();
                let mut number = client;
                while !over.load(Ordering::Relaxed) {
                    let request = requests[number % requests.len()];
                    number += 1;
                    let asked = match &mut connection {
                        Ok(connection) => answered(request, connection),
                        Err(_) => Err(Error::lost("no connection to the server")),
                    };
                    if let Err(error) = asked {
                        *failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                            Some(error);
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
    match failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
        Some(error) => Err(error),
        None => Ok(rate),
    }
}

/// What a server that has just started holds.
fn idle(server: &TestServer) -> Result<Idle> {
    // What loading needed is given back by then.
    std::thread::sleep(Duration::from_secs(2));
    let resident = server.resident()?;
    let weights = server.told.blocks.iter().map(|block| block.weight_bytes).sum();
    let engine = library_bytes(server.told.process)?;
    Ok(Idle {
        resident_bytes: resident,
        weight_bytes: weights,
        engine_bytes: engine,
        beyond_bytes: resident as i64 - weights as i64 - engine as i64,
    })
}

/// What of the engine's library is resident in a process.
fn library_bytes(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io(&path, &error))?;
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

fn print(report: &Report) -> Result<()> {
    let Report { latency, throughput, idle, .. } = report;
    let mut table = output::Table::new(&["one client", ">median", ">p99", ">over the bare engine"]);
    let rows = [
        ("bare engine, whole model", &latency.bare, 1.0),
        ("gateway, blocks on threads", &latency.threads, latency.threads_over_bare),
        ("gateway, blocks in processes", &latency.processes, latency.processes_over_bare),
    ];
    for (name, summary, ratio) in rows {
        let shown = [summary.median_ms, summary.p99_ms].map(output::milliseconds);
        table.row([name.to_owned()].into_iter().chain(shown).chain([format!("{ratio:.3}")]));
    }
    table.print()?;
    output::print("")?;
    let head = "several clients, answers per second";
    let mut table = output::Table::new(&[head, ">rate", ">over the best bare"]);
    let best = throughput.bare_one_at_a_time.max(throughput.bare_one_per_core);
    for (name, rate) in [
        ("bare engine, one run at a time on all cores", throughput.bare_one_at_a_time),
        ("bare engine, one run per core", throughput.bare_one_per_core),
        ("gateway, blocks on threads", throughput.threads),
        ("gateway, blocks in processes", throughput.processes),
        ("gateway, 10 tasks with 3 of 4 stages in common", throughput.siblings),
    ] {
        table.row([name.to_owned(), format!("{rate:.2}"), format!("{:.3}", rate / best)]);
    }
    table.print()?;
    output::print("")?;
    output::print(&format!(
        "idle: {} resident, of which {} weights and {} the engine's library: {:.1} MB beyond",
        output::bytes(idle.resident_bytes),
        output::bytes(idle.weight_bytes),
        output::bytes(idle.engine_bytes),
        idle.beyond_bytes as f64 / 1e6
    ))?;
    output::print(&format!(
        "{} in {} blocks, {}, {} cores, {} clients",
        report.model, report.blocks, report.engine, report.cores, throughput.clients
    ))
}
