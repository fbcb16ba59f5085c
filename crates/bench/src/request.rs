//! `tessera bench request`: what a request costs where the model takes no time.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tessera_core::{DType, Dim, Error, Result, Tensor};
use tessera_deploy::Isolation;
use tessera_engine::{EngineName, LoadOptions};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{Partition, Split};
use tessera_node::{ExitPolicy, ModelLoader, median_of_sorted};
use tessera_report::{Table, output};
use tessera_repository::Repository;
use tessera_repository::unfinished_files::temporary_folder;

use super::stored_model::store_model;
use super::test_client::{TestClient, TestInferRequest};
use super::test_server::TestServer;

/// Elements of the input.
const WIDTH: usize = 4;

/// Options of `tessera bench request`.
#[derive(Args)]
pub struct BenchRequest {
    /// Clients that ask at the same time, one measurement for each number
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    pub(crate) clients: Vec<usize>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// Milliseconds between one answer and the next request, for one more measurement of one client
    #[arg(long, default_value_t = 5, value_name = "MS")]
    pub(crate) pause: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct RequestReport {
    /// A run of the engine, without a server.
    engine_us: f64,
    rows: Vec<RequestRow>,
}

#[derive(Serialize)]
struct RequestRow {
    isolation: String,
    /// What is asked: the model, or only whether the server is there.
    what: &'static str,
    clients: usize,
    pause_ms: u64,
    median_us: f64,
    p90_us: f64,
    per_second: f64,
}

/// Asks a model that does nothing.
pub(crate) fn bench_request(arguments: &BenchRequest) -> Result<()> {
    let folder = temporary_folder()?;
    let repository = folder.path().join("repository");
    let partition = store_nothing(&repository)?;
    let mut report = RequestReport { engine_us: measure_engine(&partition)?, rows: Vec::new() };
    let duration = Duration::from_secs_f64(arguments.seconds.clamp(0.1, 600.0));
    for isolation in [Isolation::Thread, Isolation::Process] {
        let working = output::spinner(format!("units on {isolation}"));
        let server = TestServer::start_server(&repository, &["--no-store"])?;
        let task = json!({ "model": "nothing", "isolation": isolation.to_string() });
        server.call_control("PUT", "/v1/tasks/nothing", Some(&task))?;
        let mut measure = |what, clients: usize, pause_ms: u64| -> Result<()> {
            let pause = Duration::from_millis(pause_ms);
            let mut times = ask_for(&server, what, clients, duration, pause)?;
            let count = times.len() as f64;
            times.sort_by(f64::total_cmp);
            report.rows.push(RequestRow {
                isolation: isolation.to_string(),
                what,
                clients,
                pause_ms,
                median_us: median_of_sorted(&times).unwrap_or(0.0),
                p90_us: times.get(times.len() * 9 / 10).copied().unwrap_or(0.0),
                per_second: count / duration.as_secs_f64(),
            });
            Ok(())
        };
        measure("live", 1, 0)?;
        for &clients in &arguments.clients {
            measure("infer", clients.max(1), 0)?;
        }
        measure("live", 1, arguments.pause)?;
        measure("infer", 1, arguments.pause)?;
        working.finish_and_clear();
    }
    if arguments.json {
        return output::print_json(&report);
    }
    print_requests(&report)
}

fn store_nothing(repository: &Path) -> Result<Partition> {
    let mut graph = GraphBuilder::new("nothing");
    let dims = [Dim::Symbol("batch".to_owned()), Dim::Fixed(WIDTH)];
    let x = graph.add_input("x", DType::F32, dims);
    graph.add_node_into("nothing", "Relu", &[&x], &["y"], []);
    graph.add_output("y");
    let repository = Repository::open_or_create(repository)?;
    store_model(&repository, "nothing", &graph.build_model(), &Split::Blocks(1))
}

fn measure_engine(partition: &Partition) -> Result<f64> {
    let (engine, _) = tessera_engine::choose_engine(EngineName::Auto)?;
    let model = ModelLoader::new(engine, LoadOptions::default());
    let model = model.load_model(&partition.graph, partition)?;
    let inputs = [Tensor::from_f32(&[1, WIDTH], &[0.0; WIDTH])?];
    let mut times = Vec::new();
    for _ in 0..2_000 {
        let start = Instant::now();
        model.run_model(&inputs, ExitPolicy::SkipExits)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(median_of_sorted(&times).unwrap_or(0.0))
}

/// Asks for a while, and tells how long each answer took, in microseconds.
fn ask_for(
    server: &TestServer,
    what: &str,
    clients: usize,
    duration: Duration,
    pause: Duration,
) -> Result<Vec<f64>> {
    let address = server.announced.http;
    let request = Arc::new(TestInferRequest::new("nothing", "x", &[1, WIDTH], &[0; WIDTH * 4]));
    let is_live = what == "live";
    let ask = move || -> Result<Vec<f64>> {
        let mut client = TestClient::connect(address)?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < duration {
            let asked = Instant::now();
            let answer = if is_live {
                client.send_http(&[b"GET /v2/health/live HTTP/1.1\r\nHost: tessera\r\n\r\n"])?
            } else {
                request.send_to(&mut client)?.1
            };
            times.push(asked.elapsed().as_secs_f64() * 1e6);
            answer.require_ok("a request")?;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        Ok(times)
    };
    let asking: Vec<_> = (0..clients).map(|_| std::thread::spawn(ask.clone())).collect();
    let mut times = Vec::new();
    for client in asking {
        let ended = client.join().map_err(|_| Error::lost("a client ended early"))?;
        times.extend(ended?);
    }
    Ok(times)
}

fn print_requests(report: &RequestReport) -> Result<()> {
    let mut table = Table::new(&[
        "units on",
        "asked for",
        ">clients",
        ">pause",
        ">median",
        ">p90",
        ">per second",
    ]);
    for row in &report.rows {
        table.add_row([
            row.isolation.clone(),
            row.what.to_owned(),
            row.clients.to_string(),
            format!("{} ms", row.pause_ms),
            format!("{:.0} µs", row.median_us),
            format!("{:.0} µs", row.p90_us),
            format!("{:.0}", row.per_second),
        ]);
    }
    table.print_table()?;
    output::print_line(&format!("the engine alone: {:.1} µs", report.engine_us))
}
