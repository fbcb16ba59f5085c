//! `tessera profile`

use std::time::Duration;

use serde::Serialize;
use tessera_core::{ContentHash, Result};
use tessera_graph::{Partition, Split, block_cost};
use tessera_node::{Loader, RunOptions, Summary};

use crate::arguments::Profile;
use crate::model_file::ModelFile;
use crate::output::{self, Table};
use crate::{commands, inputs};

#[derive(Serialize)]
struct Report {
    model: String,
    engine: Option<String>,
    threads: usize,
    runs: usize,
    layers: Vec<Row>,
    blocks: Vec<Row>,
    total: Row,
}

#[derive(Clone, Serialize)]
struct Row {
    index: Option<usize>,
    block: Option<ContentHash>,
    /// The tensors that leave it.
    outputs: Vec<String>,
    nodes: usize,
    parameters: u64,
    flops: u64,
    weight_bytes: u64,
    /// Input, weights and output.
    memory_bytes: u64,
    output_bytes: u64,
    /// Whether every shape was known, so that the counts are exact.
    exact: bool,
    median_ms: Option<f64>,
}

pub(super) fn run(arguments: &Profile) -> Result<()> {
    let shapes = arguments.arguments.shapes()?;
    let model = ModelFile::read(&arguments.model, &shapes, &arguments.arguments.exits()?)?;
    let blocks = model.split(&arguments.split)?;
    let layers = tessera_graph::split(&model.graph, &model.types, &Split::Every, &model.exits)?;
    let (mut layer_rows, mut block_rows) = (rows(&model, &layers), rows(&model, &blocks));
    let mut engine = None;
    if arguments.runs > 0 {
        let chosen = commands::engine(&arguments.engine)?;
        engine = Some(format!("{} {}", chosen.name(), chosen.version()));
        let loader = Loader::new(chosen, arguments.engine.options());
        let bar = output::progress(2 * (arguments.runs as u64 + 1), "measuring");
        for (partition, rows) in [(&layers, &mut layer_rows), (&blocks, &mut block_rows)] {
            measure(arguments, &loader, partition, rows, &|| bar.inc(1))?;
        }
        bar.finish_and_clear();
    }
    let report = Report {
        model: model.path.display().to_string(),
        engine,
        threads: arguments.engine.threads.get(),
        runs: arguments.runs,
        total: total(&block_rows),
        layers: layer_rows,
        blocks: block_rows,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    if arguments.csv {
        return csv(&report);
    }
    output::print("Layers")?;
    table(&report.layers, None).print()?;
    output::print("")?;
    output::print("Blocks")?;
    table(&report.blocks, Some(&report.total)).print()?;
    if let Some(engine) = &report.engine {
        let (runs, threads) = (report.runs, report.threads);
        output::print(&format!("medians of {runs} runs on {engine}, {threads} threads"))?;
    }
    if !report.total.exact {
        output::print("open dimensions are counted as 1; fix them with --shape")?;
    }
    Ok(())
}

fn rows(model: &ModelFile, partition: &Partition) -> Vec<Row> {
    let blocks = partition.graph.blocks.iter().enumerate();
    blocks
        .map(|(index, node)| {
            let (cost, exact) = block_cost(&model.graph, &model.types, partition, index);
            Row {
                index: Some(index),
                block: Some(node.block),
                outputs: node.outputs.iter().map(|port| port.name.clone()).collect(),
                nodes: partition.nodes[index].len(),
                parameters: cost.parameters,
                flops: cost.flops,
                weight_bytes: cost.weight_bytes,
                memory_bytes: cost.memory_bytes(),
                output_bytes: cost.output_bytes,
                exact,
                median_ms: None,
            }
        })
        .collect()
}

fn total(rows: &[Row]) -> Row {
    let sum = |value: fn(&Row) -> u64| rows.iter().map(value).fold(0, u64::saturating_add);
    Row {
        index: None,
        block: None,
        outputs: vec!["total".to_owned()],
        nodes: rows.iter().map(|row| row.nodes).sum(),
        parameters: sum(|row| row.parameters),
        flops: sum(|row| row.flops),
        weight_bytes: sum(|row| row.weight_bytes),
        memory_bytes: sum(|row| row.memory_bytes),
        output_bytes: sum(|row| row.output_bytes),
        exact: rows.iter().all(|row| row.exact),
        median_ms: rows.iter().map(|row| row.median_ms).sum(),
    }
}

/// Runs the blocks in turn, and notes the median time of each.
fn measure(
    arguments: &Profile,
    loader: &Loader,
    partition: &Partition,
    rows: &mut [Row],
    done: &dyn Fn(),
) -> Result<()> {
    let ranges = inputs::parse_ranges(&arguments.ranges, &partition.graph.inputs)?;
    let given = inputs::random(&partition.graph.inputs, &ranges, 0)?;
    let model = loader.load(&partition.graph, partition)?;
    model.run(&given, RunOptions::AllExits)?;
    done();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); rows.len()];
    for _ in 0..arguments.runs {
        let result = model.run(&given, RunOptions::AllExits)?;
        for (times, time) in times.iter_mut().zip(result.times) {
            times.extend(time);
        }
        done();
    }
    for (row, times) in rows.iter_mut().zip(&times) {
        row.median_ms = Summary::of(times).map(|summary| summary.median_ms);
    }
    Ok(())
}

fn table(rows: &[Row], total: Option<&Row>) -> Table {
    let mut table = Table::new(&[
        ">#",
        "output",
        ">nodes",
        ">parameters",
        ">FLOPs",
        ">weights",
        ">memory",
        ">output bytes",
        ">time",
    ]);
    for row in rows.iter().chain(total) {
        table.row([
            row.index.map_or(String::new(), |index| index.to_string()),
            row.outputs.join(", "),
            row.nodes.to_string(),
            output::count(row.parameters),
            output::count(row.flops),
            output::bytes(row.weight_bytes),
            output::bytes(row.memory_bytes),
            output::bytes(row.output_bytes),
            row.median_ms.map_or("-".to_owned(), output::milliseconds),
        ]);
    }
    table
}

fn csv(report: &Report) -> Result<()> {
    let mut table = Table::new(&[
        "kind",
        "index",
        "block",
        "output",
        "nodes",
        "parameters",
        "flops",
        "weight_bytes",
        "memory_bytes",
        "output_bytes",
        "median_ms",
    ]);
    for (kind, rows) in [("layer", &report.layers), ("block", &report.blocks)] {
        for row in rows {
            table.row([
                kind.to_owned(),
                row.index.map_or(String::new(), |index| index.to_string()),
                row.block.map_or(String::new(), |block| block.to_string()),
                row.outputs.join(" "),
                row.nodes.to_string(),
                row.parameters.to_string(),
                row.flops.to_string(),
                row.weight_bytes.to_string(),
                row.memory_bytes.to_string(),
                row.output_bytes.to_string(),
                row.median_ms.map_or(String::new(), |ms| format!("{ms:.6}")),
            ]);
        }
    }
    table.print_csv()
}
