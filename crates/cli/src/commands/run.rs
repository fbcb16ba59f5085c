//! `tessera run`

use std::path::Path;
use tessera_report::{Table, format_duration, output};

use crate::arguments::RunArguments;
use serde::Serialize;
use serde_json::json;
use tessera_command::{inputs, npy};
use tessera_core::{ContentHash, Error, Result, Tensor, display_shape};
use tessera_node::{ExitPolicy, LoadedModel, ModelLoader, RunResult};
use tessera_repository::{ModelFile, Repository};

/// Outputs with more elements than this are summed up rather than printed.
const MAX_PRINTED: usize = 1000;
/// An output `[batch, classes]` with at least this many classes is taken for a classification.
const MIN_CLASSES: usize = 5;

pub(super) fn run_model(arguments: &RunArguments) -> Result<()> {
    let engine = arguments.engine.choose_engine()?;
    let working = output::spinner(format!("loading {}", arguments.model));
    let loader = ModelLoader::new(engine, arguments.engine.load_options());
    let model = load_model(arguments, &loader)?;
    working.finish_and_clear();
    let ports = &model.graph().inputs;
    let ranges = inputs::parse_ranges(&arguments.ranges, ports)?;
    let given = inputs::from_arguments(&arguments.inputs, ports, &ranges, arguments.seed)
        .map_err(|error| error.with_context(&arguments.model))?;
    let options = if arguments.no_exits { ExitPolicy::SkipExits } else { ExitPolicy::TakeExits };
    // The first run of a session allocates; the time that counts is that of the next.
    let result = model.run_model(&given, options).and_then(|_| model.run_model(&given, options));
    let result =
        result.map_err(|error| error.with_context(format!("model \"{}\"", arguments.model)))?;
    if let Some(folder) = &arguments.output {
        write_outputs(folder, &result)?;
    }
    if arguments.json {
        print_result_json(&model, &result, loader.engine().name())
    } else {
        print_result(&model, &result, loader.engine().name())
    }
}

fn load_model(arguments: &RunArguments, loader: &ModelLoader) -> Result<LoadedModel> {
    let path = Path::new(&arguments.model);
    if path.is_file() {
        let (shapes, exits) =
            (arguments.arguments.parse_shapes()?, arguments.arguments.parse_exits()?);
        let partition = ModelFile::read_file(path, &shapes, &exits)?
            .split_into_blocks(arguments.split.chosen_split().as_ref())?;
        return loader.load_model(&partition.graph, &partition);
    }
    let looks_like_file = path.extension().is_some_and(|ending| ending == "onnx");
    if looks_like_file || arguments.model.contains('/') {
        return Err(Error::not_found(format!("{}: no such file", arguments.model)));
    }
    let repository = Repository::open(&arguments.repository.repo).map_err(|error| {
        error
            .with_context(format!("\"{}\" is no file, and as the name of a model", arguments.model))
    })?;
    if arguments.split.chosen_split().is_some() || !arguments.arguments.shapes.is_empty() {
        return Err(Error::usage(format!(
            "\"{}\" is stored as it was cut: --blocks, --at, --every and --shape are for files",
            arguments.model
        )));
    }
    let mut graph = repository.read_model(&arguments.model)?;
    for exit in arguments.arguments.parse_exits()? {
        let known = graph.exits.iter_mut().find(|known| known.output == exit.output);
        let known = known.ok_or_else(|| {
            Error::usage(format!("model \"{}\" has no exit \"{}\"", arguments.model, exit.output))
        })?;
        known.threshold = exit.threshold;
    }
    loader.load_model(&graph, &repository)
}

fn write_outputs(folder: &Path, result: &RunResult) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::from_io(folder.display(), &error))?;
    for (name, tensor) in &result.outputs {
        let file: String = name
            .chars()
            .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        npy::write_npy(&folder.join(format!("{file}.npy")), tensor)?;
    }
    Ok(())
}

/// A class and its score.
#[derive(Serialize)]
struct ScoredClass {
    class: usize,
    score: f64,
    probability: f64,
}

/// The five likeliest classes of one sample.
fn top_five(scores: &[f64]) -> Vec<ScoredClass> {
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_distribution = scores.iter().all(|score| (0.0..=1.0).contains(score))
        && (scores.iter().sum::<f64>() - 1.0).abs() < 1e-3;
    let sum: f64 = scores.iter().map(|score| (score - highest).exp()).sum();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
        .into_iter()
        .take(5)
        .map(|class| {
            let score = scores[class];
            let probability = if is_distribution { score } else { (score - highest).exp() / sum };
            ScoredClass { class, score, probability }
        })
        .collect()
}

/// The samples of an output that is a classification.
fn classify_output(tensor: &Tensor) -> Option<Vec<Vec<ScoredClass>>> {
    let &[_, classes] = tensor.shape() else {
        return None;
    };
    if classes < MIN_CLASSES || !tensor.dtype().is_float() {
        return None;
    }
    Some(tensor.to_f64()?.chunks(classes).map(top_five).collect())
}

fn print_result_json(model: &LoadedModel, result: &RunResult, engine: &str) -> Result<()> {
    let outputs: Vec<_> = result
        .outputs
        .iter()
        .map(|(name, tensor)| {
            let small = tensor.element_count() <= MAX_PRINTED;
            json!({
                "name": name,
                "type": display_shape(tensor.dtype(), tensor.shape()),
                "top": classify_output(tensor),
                "values": small.then(|| tensor.to_f64()).flatten(),
            })
        })
        .collect();
    let blocks: Vec<_> = model
        .graph()
        .blocks
        .iter()
        .zip(&result.times)
        .map(|(node, time)| {
            json!({ "block": node.block, "ms": time.map(|time| time.as_secs_f64() * 1e3) })
        })
        .collect();
    let exit = result.exit.as_ref().map(|exit| {
        json!({ "output": exit.output, "entropy": exit.entropy, "threshold": exit.threshold })
    });
    output::print_json(&json!({
        "engine": engine, "outputs": outputs, "exit": exit, "blocks": blocks,
    }))
}

fn print_result(model: &LoadedModel, result: &RunResult, engine: &str) -> Result<()> {
    if let Some(exit) = &result.exit {
        output::print_line(&format!(
            "left at exit {}: entropy {:.4}, threshold {}",
            exit.output, exit.entropy, exit.threshold
        ))?;
    }
    for (name, tensor) in &result.outputs {
        output::print_line(&format!("{name} {}", display_shape(tensor.dtype(), tensor.shape())))?;
        match classify_output(tensor) {
            Some(samples) => {
                for (index, sample) in samples.iter().enumerate() {
                    if samples.len() > 1 {
                        output::print_line(&format!("sample {index}"))?;
                    }
                    let mut table = Table::new(&[">class", ">score", ">probability"]);
                    for class in sample {
                        table.add_row([
                            class.class.to_string(),
                            format!("{:.4}", class.score),
                            format!("{:.4}", class.probability),
                        ]);
                    }
                    table.print_table()?;
                }
            }
            None => output::print_line(&preview_elements(tensor))?,
        }
    }
    output::print_line("")?;
    let mut table = Table::new(&["block", ">time"]);
    let mut total = std::time::Duration::ZERO;
    for (node, time) in model.graph().blocks.iter().zip(&result.times) {
        total += time.unwrap_or_default();
        let shown = time.map_or("not run".to_owned(), format_duration);
        table.add_row([ContentHash::short_hex(&node.block), shown]);
    }
    table.add_row(["total".to_owned(), format_duration(total)]);
    table.print_table()?;
    output::print_line(&format!("on {engine}"))
}

/// The first elements of a tensor.
fn preview_elements(tensor: &Tensor) -> String {
    const SHOWN: usize = 8;
    let more = if tensor.element_count() > SHOWN { ", …" } else { "" };
    if let Some(strings) = tensor.strings() {
        let shown: Vec<String> = strings
            .iter()
            .take(SHOWN)
            .map(|text| format!("{:?}", String::from_utf8_lossy(text)))
            .collect();
        return format!("  {}{more}", shown.join(", "));
    }
    match tensor.to_f64() {
        Some(values) => {
            let shown: Vec<String> = values.iter().take(SHOWN).map(|v| format!("{v:.6}")).collect();
            format!("  {}{more}", shown.join(", "))
        }
        None => "  (elements not shown)".to_owned(),
    }
}
