//! `tessera profile`

use std::time::Duration;
use tessera_report::{Table, format_bytes, format_count, format_milliseconds, output};

use crate::arguments::ProfileArguments;
use serde::Serialize;
use tessera_command::inputs;
use tessera_core::{ContentHash, Result};
use tessera_graph::{Partition, Split, block_cost};
use tessera_node::{ExitPolicy, LatencySummary, ModelLoader};
use tessera_repository::ModelFile;
use tessera_zoo::random_inputs;

#[derive(Serialize)]
struct ProfileReport {
    model: String,
    engine: Option<String>,
    threads: usize,
    runs: usize,
    layers: Vec<CostRow>,
    blocks: Vec<CostRow>,
    total: CostRow,
}

#[derive(Clone, Serialize)]
struct CostRow {
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

pub(super) fn run_profile(arguments: &ProfileArguments) -> Result<()> {
    let shapes = arguments.arguments.parse_shapes()?;
    let model =
        ModelFile::read_file(&arguments.model, &shapes, &arguments.arguments.parse_exits()?)?;
    if arguments.residency {
        return super::part_profile::profile_parts(arguments, &model);
    }
    let blocks = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
    let layers =
        tessera_graph::split_into_chain(&model.graph, &model.types, &Split::Every, &model.exits)?;
    let (mut layer_rows, mut block_rows) = (cost_rows(&model, &layers), cost_rows(&model, &blocks));
    let mut engine = None;
    if arguments.runs > 0 {
        let chosen = arguments.engine.choose_engine()?;
        engine = Some(format!("{} {}", chosen.name(), chosen.version()));
        let loader = ModelLoader::new(chosen, arguments.engine.load_options());
        let bar = output::progress_bar(2 * (arguments.runs as u64 + 1), "measuring");
        for (partition, rows) in [(&layers, &mut layer_rows), (&blocks, &mut block_rows)] {
            measure_blocks(arguments, &loader, partition, rows, &|| bar.inc(1))?;
        }
        bar.finish_and_clear();
    }
    let report = ProfileReport {
        model: model.path.display().to_string(),
        engine,
        threads: arguments.engine.threads.get(),
        runs: arguments.runs,
        total: total_row(&block_rows),
        layers: layer_rows,
        blocks: block_rows,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    if arguments.csv {
        return print_cost_csv(&report);
    }
    output::print_line("Layers")?;
    cost_table(&report.layers, None).print_table()?;
    output::print_line("")?;
    output::print_line("Blocks")?;
    cost_table(&report.blocks, Some(&report.total)).print_table()?;
    if let Some(engine) = &report.engine {
        let (runs, threads) = (report.runs, report.threads);
        output::print_line(&format!("medians of {runs} runs on {engine}, {threads} threads"))?;
    }
    if !report.total.exact {
        output::print_line("open dimensions are counted as 1; fix them with --shape")?;
    }
    Ok(())
}

fn cost_rows(model: &ModelFile, partition: &Partition) -> Vec<CostRow> {
    let blocks = partition.graph.blocks.iter().enumerate();
    blocks
        .map(|(index, node)| {
            let (cost, exact) = block_cost(&model.graph, &model.types, partition, index);
            CostRow {
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

fn total_row(rows: &[CostRow]) -> CostRow {
    let sum = |value: fn(&CostRow) -> u64| rows.iter().map(value).fold(0, u64::saturating_add);
    CostRow {
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
fn measure_blocks(
    arguments: &ProfileArguments,
    loader: &ModelLoader,
    partition: &Partition,
    rows: &mut [CostRow],
    done: &dyn Fn(),
) -> Result<()> {
    let ranges = inputs::parse_ranges(&arguments.ranges, &partition.graph.inputs)?;
    let given = random_inputs(&partition.graph.inputs, &ranges, 0)?;
    let model = loader.load_model(&partition.graph, partition)?;
    model.run_model(&given, ExitPolicy::AllExits)?;
    done();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); rows.len()];
    for _ in 0..arguments.runs {
        let result = model.run_model(&given, ExitPolicy::AllExits)?;
        for (times, time) in times.iter_mut().zip(result.times) {
            times.extend(time);
        }
        done();
    }
    for (row, times) in rows.iter_mut().zip(&times) {
        row.median_ms = LatencySummary::from_times(times).map(|summary| summary.median_ms);
    }
    Ok(())
}

fn cost_table(rows: &[CostRow], total: Option<&CostRow>) -> Table {
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
        table.add_row([
            row.index.map_or(String::new(), |index| index.to_string()),
            row.outputs.join(", "),
            row.nodes.to_string(),
            format_count(row.parameters),
            format_count(row.flops),
            format_bytes(row.weight_bytes),
            format_bytes(row.memory_bytes),
            format_bytes(row.output_bytes),
            row.median_ms.map_or("-".to_owned(), format_milliseconds),
        ]);
    }
    table
}

fn print_cost_csv(report: &ProfileReport) -> Result<()> {
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
            table.add_row([
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
