//! `tessera verify`

use crate::arguments::VerifyArguments;
use serde::Serialize;
use tessera_command::inputs;
use tessera_core::{Error, Result};
use tessera_engine::LoadOptions;
use tessera_node::{ExitPolicy, ModelLoader, OutputDifference, WholeModel, compare_output};
use tessera_report::{Table, output};
use tessera_repository::ModelFile;
use tessera_zoo::random_inputs;

#[derive(Serialize)]
struct VerifyReport {
    model: String,
    engine: String,
    /// How many cut points the model has.
    cut_points: usize,
    /// How many blocks it was cut into, heads of exits included.
    blocks: usize,
    inputs: u64,
    max_absolute_difference: f64,
    max_relative_difference: f64,
    /// Whether the largest element of every output is at the same place.
    same_top: bool,
    /// Whether all values that the uncut model computed are finite.
    finite: bool,
    tolerance: f64,
    outputs: Vec<OutputDifference>,
}

pub(super) fn run_verify(arguments: &VerifyArguments) -> Result<()> {
    let shapes = arguments.arguments.parse_shapes()?;
    let model =
        ModelFile::read_file(&arguments.model, &shapes, &arguments.arguments.parse_exits()?)?;
    let partition = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
    let ranges = inputs::parse_ranges(&arguments.ranges, &partition.graph.inputs)?;
    let engine = arguments.engine.choose_engine()?;
    let options = arguments.engine.load_options();
    let bar = output::progress_bar(partition.blocks.len() as u64 + arguments.inputs, "verifying");
    let device = arguments.against.unwrap_or(options.device);
    let reference = LoadOptions { device, ..options.clone() };
    let mut whole = WholeModel::load_file(&model, &partition, engine.as_ref(), &reference)?;
    let loader = ModelLoader::new(engine, options);
    let chain = loader.load_model(&partition.graph, &partition)?;
    bar.inc(partition.blocks.len() as u64);
    let mut worst: Vec<OutputDifference> = Vec::new();
    let mut finite = true;
    for number in 0..arguments.inputs.max(1) {
        let given = random_inputs(&partition.graph.inputs, &ranges, arguments.seed + number)?;
        let expected = whole.infer_outputs(&given)?;
        let result = chain.run_model(&given, ExitPolicy::AllExits)?;
        for (name, found) in result.outputs.iter().chain(&result.exits) {
            let expected = expected.get(name).ok_or_else(|| {
                Error::engine(format!("the uncut model gave no output \"{name}\""))
            })?;
            finite &= expected.to_f64().is_none_or(|values| values.iter().all(|v| v.is_finite()));
            keep_worst(&mut worst, compare_output(name, found, expected)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let most = |value: fn(&OutputDifference) -> f64| worst.iter().map(value).fold(0.0, f64::max);
    let report = VerifyReport {
        model: model.path.display().to_string(),
        engine: format!("{} {}", loader.engine().name(), loader.engine().version()),
        cut_points: model.cut_points()?.cuts.len(),
        blocks: partition.graph.blocks.len(),
        inputs: arguments.inputs.max(1),
        max_absolute_difference: most(|difference| difference.max_absolute),
        max_relative_difference: most(|difference| difference.max_relative),
        same_top: worst.iter().all(|difference| difference.same_top),
        finite,
        tolerance: arguments.tolerance,
        outputs: worst,
    };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_verification(&report)?;
    }
    let apart = report.max_relative_difference;
    if apart.is_nan() || apart > arguments.tolerance {
        return Err(Error::engine(format!(
            "{}: the blocks differ from the uncut model by {apart:.3e}, expected at most {:e}",
            report.model, arguments.tolerance
        )));
    }
    Ok(())
}

/// Keeps the largest difference seen of each output.
fn keep_worst(worst: &mut Vec<OutputDifference>, found: OutputDifference) {
    match worst.iter_mut().find(|known| known.output == found.output) {
        Some(known) => {
            known.max_absolute = known.max_absolute.max(found.max_absolute);
            known.max_relative = known.max_relative.max(found.max_relative);
            known.same_top &= found.same_top;
        }
        None => worst.push(found),
    }
}

fn print_verification(report: &VerifyReport) -> Result<()> {
    let mut table = Table::new(&["output", ">largest difference", ">relative", "same top"]);
    for output in &report.outputs {
        table.add_row([
            output.output.clone(),
            format!("{:.3e}", output.max_absolute),
            format!("{:.3e}", output.max_relative),
            if output.same_top { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.print_table()?;
    output::print_line("")?;
    let finite = if report.finite { "" } else { "; some values are not finite" };
    output::print_line(&format!(
        "{}: {} blocks at {} cut points on {}, largest relative difference {:.3e}{finite}",
        report.model,
        report.blocks,
        report.cut_points,
        report.engine,
        report.max_relative_difference
    ))
}
