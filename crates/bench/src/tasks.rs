//! `tessera bench tasks`: a server with more and more tasks that share a trunk.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tessera_core::{DType, Dim, Random, Result};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{Split, onnx};
use tessera_node::median_of_sorted;
use tessera_report::{Table, format_bytes, output};
use tessera_repository::Repository;
use tessera_repository::unfinished_files::temporary_folder;

use super::stored_model::store_model;
use super::test_client::{TestClient, TestInferRequest};
use super::test_server::TestServer;

/// Features of the trunk.
const WIDTH: usize = 512;

/// Layers of the trunk.
const LAYERS: usize = 4;

/// Classes of a head.
const CLASSES: usize = 10;

/// Options of `tessera bench tasks`.
#[derive(Args)]
pub struct BenchTasks {
    /// How many tasks, one server for each number
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
    pub(crate) count: Vec<usize>,
    /// How many changes: a task is added, or taken away again
    #[arg(long, default_value_t = 20)]
    pub(crate) changes: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct TasksReport {
    rows: Vec<TasksRow>,
}

#[derive(Serialize)]
struct TasksRow {
    tasks: usize,
    /// Bytes of the distinct weights of all tasks.
    weight_bytes: u64,
    /// Memory of the server.
    resident_bytes: u64,
    /// What a task takes beyond its own weights, compared with the first row.
    bytes_per_task: Option<f64>,
    /// Until all tasks are served.
    start_ms: f64,
    /// One task more.
    add_median_ms: f64,
    add_most_ms: f64,
    /// One task less.
    remove_median_ms: f64,
    remove_most_ms: f64,
    /// A request, one client.
    request_median_us: f64,
}

/// Serves more and more tasks, and measures memory and changes.
pub(crate) fn bench_tasks(arguments: &BenchTasks) -> Result<()> {
    let most = arguments.count.iter().copied().max().unwrap_or(1);
    let folder = temporary_folder()?;
    let repository = folder.path().join("repository");
    store_siblings(&repository, most + 1)?;
    let mut rows: Vec<TasksRow> = Vec::new();
    for &count in &arguments.count {
        let working = output::spinner(format!("{count} tasks"));
        let mut row = measure_tasks(&repository, count.max(1), arguments.changes.max(1))?;
        row.bytes_per_task = rows.first().filter(|first| first.tasks < row.tasks).map(|first| {
            let beyond = |row: &TasksRow| row.resident_bytes as f64 - row.weight_bytes as f64;
            (beyond(&row) - beyond(first)) / (row.tasks - first.tasks) as f64
        });
        rows.push(row);
        working.finish_and_clear();
    }
    let report = TasksReport { rows };
    if arguments.json {
        return output::print_json(&report);
    }
    print_tasks(&report)
}

/// A trunk that all have in common, and a head of its own for each.
fn sibling(seed: u64) -> onnx::ModelProto {
    let mut graph = GraphBuilder::new("sibling");
    let dims = |width: usize| [Dim::Symbol("batch".to_owned()), Dim::Fixed(width)];
    let mut value = graph.add_input("x", DType::F32, dims(WIDTH));
    let weights = |seed: u64, count: usize| {
        let mut random = Random::new(seed);
        let number = |_| (random.next_below(2_001) as f32 - 1_000.0) / 20_000.0;
        (0..count).map(number).collect::<Vec<f32>>()
    };
    for layer in 0..LAYERS {
        let weight = weights(layer as u64 + 1, WIDTH * WIDTH);
        let weight = graph.add_weight("w", &[WIDTH, WIDTH], weight);
        let product = graph.add_node("MatMul", &[&value, &weight], []);
        value = format!("trunk{layer}");
        graph.add_node_into(&format!("relu{layer}"), "Relu", &[&product], &[&value], []);
    }
    let head = graph.add_weight("head", &[WIDTH, CLASSES], weights(1_000 + seed, WIDTH * CLASSES));
    graph.add_node_into("scores", "MatMul", &[&value, &head], &["y"], []);
    graph.add_typed_output("y", DType::F32, dims(CLASSES));
    graph.build_model()
}

fn store_siblings(repository: &Path, count: usize) -> Result<()> {
    let bar = output::progress_bar(count as u64, "preparing");
    let repository = Repository::open_or_create(repository)?;
    let split = Split::At(vec![format!("trunk{}", LAYERS - 1)]);
    for number in 0..count {
        store_model(&repository, &format!("task{number}"), &sibling(number as u64), &split)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

fn measure_tasks(repository: &Path, count: usize, changes: usize) -> Result<TasksRow> {
    // With a store, as servers have: a change is on the disk when it is answered.
    let server = TestServer::start_server(repository, &[])?;
    let definition = |number: usize| json!({ "model": format!("task{number}") });
    let tasks: serde_json::Map<String, Value> =
        (0..count).map(|number| (format!("task{number}"), definition(number))).collect();
    let start = Instant::now();
    server.call_control("PUT", "/v1/system", Some(&json!({ "tasks": tasks })))?;
    let start_ms = start.elapsed().as_secs_f64() * 1e3;
    let request_median_us = measure_requests(&server, count)?;
    let resident_bytes = server.resident_bytes()?;
    let (mut adding, mut removing) = (Vec::new(), Vec::new());
    for _ in 0..changes {
        let extra = definition(count);
        for (times, method, body) in
            [(&mut adding, "PUT", Some(&extra)), (&mut removing, "DELETE", None)]
        {
            let start = Instant::now();
            server.call_control(method, "/v1/tasks/extra", body)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [add, remove] = [adding, removing].map(|mut times| {
        times.sort_by(f64::total_cmp);
        (median_of_sorted(&times).unwrap_or(0.0), times.last().copied().unwrap_or(0.0))
    });
    Ok(TasksRow {
        tasks: count,
        weight_bytes: ((LAYERS * WIDTH * WIDTH + count * WIDTH * CLASSES) * 4) as u64,
        resident_bytes,
        bytes_per_task: None,
        start_ms,
        add_median_ms: add.0,
        add_most_ms: add.1,
        remove_median_ms: remove.0,
        remove_most_ms: remove.1,
        request_median_us,
    })
}

/// Every task is asked once, and some often.
fn measure_requests(server: &TestServer, count: usize) -> Result<f64> {
    let mut client = TestClient::connect(server.announced.http)?;
    let tensor = vec![0u8; WIDTH * 4];
    let mut times = Vec::new();
    for round in 0..200.max(count) {
        let task = format!("task{}", round % count);
        let request = TestInferRequest::new(&task, "x", &[1, WIDTH], &tensor);
        let (time, answer) = request.send_to(&mut client)?;
        answer.require_ok(&task)?;
        times.push(time.as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(median_of_sorted(&times).unwrap_or(0.0))
}

fn print_tasks(report: &TasksReport) -> Result<()> {
    let mut table = Table::new(&[
        ">tasks",
        ">distinct weights",
        ">memory",
        ">a task more",
        ">start",
        ">one more",
        ">most",
        ">one less",
        ">most",
        ">request",
    ]);
    for row in &report.rows {
        table.add_row([
            row.tasks.to_string(),
            format_bytes(row.weight_bytes),
            format_bytes(row.resident_bytes),
            row.bytes_per_task.map_or(String::new(), |bytes| format_bytes(bytes.max(0.0) as u64)),
            format!("{:.0} ms", row.start_ms),
            format!("{:.1} ms", row.add_median_ms),
            format!("{:.1} ms", row.add_most_ms),
            format!("{:.1} ms", row.remove_median_ms),
            format!("{:.1} ms", row.remove_most_ms),
            format!("{:.0} µs", row.request_median_us),
        ]);
    }
    table.print_table()
}
