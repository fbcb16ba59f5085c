//! `tessera bench chain`: a chain of blocks against the whole model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use prost::Message;
use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_node::{Loader, RunOptions, Summary, median};
use tessera_zoo::{Architecture, Recipe};

use super::super::verify::load_whole;
use crate::arguments::bench::BenchChain;
use crate::model_file::ModelFile;
use crate::{commands, inputs, interrupt, model_file, output};

/// Runs before the measured ones.
const WARM_UP: usize = 3;

#[derive(Serialize)]
struct Report {
    model: String,
    engine: String,
    threads: usize,
    blocks: usize,
    runs: usize,
    whole: Summary,
    chain: Summary,
    /// Median of the chain over median of the whole.
    ratio: f64,
    /// Median of the ratios of neighbouring runs, which a machine that gets slower or faster
    /// meanwhile moves less.
    paired_ratio: f64,
}

pub(super) fn run(arguments: &BenchChain) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let (path, _folder) = model_path(&arguments.model)?;
    let (shapes, exits) = (arguments.arguments.shapes()?, arguments.arguments.exits()?);
    let model = ModelFile::read(&path, &shapes, &exits)?;
    let partition = model.split(&arguments.split)?;
    let engine = commands::engine(&arguments.engine)?;
    let options = arguments.engine.options();
    let mut whole = load_whole(&model, &partition, engine.as_ref(), &options)?;
    let loader = Loader::new(engine, options);
    let chain = loader.load(&partition.graph, &partition)?;
    let given = inputs::random(&partition.graph.inputs, &HashMap::new(), 0)?;
    working.finish_and_clear();
    let bar = output::progress((arguments.runs + WARM_UP) as u64, "measuring");
    let (mut whole_times, mut chain_times) = (Vec::new(), Vec::new());
    for number in 0..arguments.runs.max(1) + WARM_UP {
        let mut run_whole = || -> Result<Duration> {
            let start = Instant::now();
            whole.run(&given)?;
            Ok(start.elapsed())
        };
        let run_chain = || -> Result<Duration> {
            let start = Instant::now();
            chain.run(&given, RunOptions::SkipExits)?;
            Ok(start.elapsed())
        };
        // In turns, and who goes first changes too.
        let (first, second) = match number % 2 {
            0 => {
                let first = run_whole()?;
                (first, run_chain()?)
            }
            _ => {
                let second = run_chain()?;
                (run_whole()?, second)
            }
        };
        if number >= WARM_UP {
            whole_times.push(first);
            chain_times.push(second);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let sum = |times: &[Duration]| {
        Summary::of(times).ok_or_else(|| Error::usage("no runs were measured"))
    };
    let (whole, chain_summary) = (sum(&whole_times)?, sum(&chain_times)?);
    let report = Report {
        model: arguments.model.clone(),
        engine: format!("{} {}", loader.engine().name(), loader.engine().version()),
        threads: arguments.engine.threads.get(),
        blocks: partition.graph.blocks.len(),
        runs: whole_times.len(),
        ratio: chain_summary.median_ms / whole.median_ms,
        paired_ratio: paired_ratio(&whole_times, &chain_times),
        whole,
        chain: chain_summary,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = output::Table::new(&["", ">median", ">min", ">p99"]);
    for (name, summary) in [("whole model", &report.whole), ("chain", &report.chain)] {
        let shown = [summary.median_ms, summary.min_ms, summary.p99_ms].map(output::milliseconds);
        table.row([name.to_owned()].into_iter().chain(shown));
    }
    table.print()?;
    output::print(&format!(
        "{} in {} blocks on {}, {} threads, {} runs each in turns: ratio {:.4}, paired {:.4}",
        report.model,
        report.blocks,
        report.engine,
        report.threads,
        report.runs,
        report.ratio,
        report.paired_ratio
    ))
}

fn paired_ratio(whole: &[Duration], chain: &[Duration]) -> f64 {
    let pairs = whole.iter().zip(chain);
    let mut ratios: Vec<f64> =
        pairs.map(|(whole, chain)| chain.as_secs_f64() / whole.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    median(&ratios).unwrap_or(f64::NAN)
}

/// The file to measure; an architecture of the zoo is written to a folder that is gone afterwards.
pub(super) fn model_path(model: &str) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    let path = PathBuf::from(model);
    if path.is_file() {
        return Ok((path, None));
    }
    let architecture: Architecture = model
        .parse()
        .map_err(|error: Error| error.within(format!("\"{model}\" is no file, and in the zoo")))?;
    let folder = tempfile::Builder::new()
        .prefix(&interrupt::mark())
        .tempdir()
        .map_err(|error| Error::io("a temporary folder", &error))?;
    let path = folder.path().join(format!("{model}.onnx"));
    let made = Recipe::new(architecture).build()?;
    model_file::write_whole(&path, &made.model.encode_to_vec())?;
    Ok((path, Some(folder)))
}
