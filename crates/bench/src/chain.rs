//! `tessera bench chain`: a chain of blocks against the whole model.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tessera_report::{Table, format_milliseconds, output};

use clap::Args;
use serde::Serialize;
use tessera_command::{EngineArguments, ModelArguments, SplitArguments};
use tessera_core::{Error, Result};
use tessera_node::{ExitPolicy, LatencySummary, ModelLoader, WholeModel, median_of_sorted};
use tessera_repository::ModelFile;
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::{BatchSize, random_inputs};

use crate::zoo_file;

/// Options of `tessera bench chain`.
#[derive(Args)]
pub struct BenchChain {
    /// ONNX file, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Measured runs of each
    #[arg(long, default_value_t = 100)]
    pub(crate) runs: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs before the measured ones.
const WARM_UP: usize = 3;

#[derive(Serialize)]
struct ChainReport {
    model: String,
    engine: String,
    threads: usize,
    blocks: usize,
    runs: usize,
    whole: LatencySummary,
    chain: LatencySummary,
    /// Median of the chain over median of the whole.
    ratio: f64,
    /// Median of the ratios of neighbouring runs, which a machine that gets slower or faster
    /// meanwhile moves less.
    paired_ratio: f64,
}

pub(crate) fn bench_chain(arguments: &BenchChain) -> Result<()> {
    let working = output::spinner(format!("preparing {}", arguments.model));
    let folder = temporary_folder()?;
    let path = zoo_file::find_or_write(&arguments.model, BatchSize::Fixed(1), folder.path())?;
    let (shapes, exits) = (arguments.arguments.parse_shapes()?, arguments.arguments.parse_exits()?);
    let model = ModelFile::read_file(&path, &shapes, &exits)?;
    let partition = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
    let engine = arguments.engine.choose_engine()?;
    let options = arguments.engine.load_options();
    let mut whole = WholeModel::load_file(&model, &partition, engine.as_ref(), &options)?;
    let loader = ModelLoader::new(engine, options);
    let chain = loader.load_model(&partition.graph, &partition)?;
    let given = random_inputs(&partition.graph.inputs, &HashMap::new(), 0)?;
    working.finish_and_clear();
    let bar = output::progress_bar((arguments.runs + WARM_UP) as u64, "measuring");
    let (mut whole_times, mut chain_times) = (Vec::new(), Vec::new());
    for number in 0..arguments.runs.max(1) + WARM_UP {
        let mut run_whole = || -> Result<Duration> {
            let start = Instant::now();
            whole.infer_outputs(&given)?;
            Ok(start.elapsed())
        };
        let run_chain = || -> Result<Duration> {
            let start = Instant::now();
            chain.run_model(&given, ExitPolicy::SkipExits)?;
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
        LatencySummary::from_times(times).ok_or_else(|| Error::usage("no runs were measured"))
    };
    let (whole, chain_summary) = (sum(&whole_times)?, sum(&chain_times)?);
    let report = ChainReport {
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
    let mut table = Table::new(&["", ">median", ">min", ">p99"]);
    for (name, summary) in [("whole model", &report.whole), ("chain", &report.chain)] {
        let shown = [summary.median_ms, summary.min_ms, summary.p99_ms].map(format_milliseconds);
        table.add_row([name.to_owned()].into_iter().chain(shown));
    }
    table.print_table()?;
    output::print_line(&format!(
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
    median_of_sorted(&ratios).unwrap_or(f64::NAN)
}
