//! `tessera verify`

use std::collections::HashMap;

use serde::Serialize;
use tessera_core::{Error, Result, Tensor};
use tessera_engine::{LoadOptions, Session, to_host};
use tessera_graph::{Partition, Source};
use tessera_node::{Difference, Loader, ProgramSource, RunOptions, compare};

use crate::arguments::Verify;
use crate::model_file::ModelFile;
use crate::output::{self, Table};
use crate::{commands, inputs};

#[derive(Serialize)]
struct Report {
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
    outputs: Vec<Difference>,
}

pub(super) fn run(arguments: &Verify) -> Result<()> {
    let shapes = arguments.arguments.shapes()?;
    let model = ModelFile::read(&arguments.model, &shapes, &arguments.arguments.exits()?)?;
    let partition = model.split(&arguments.split)?;
    let ranges = inputs::parse_ranges(&arguments.ranges, &partition.graph.inputs)?;
    let engine = commands::engine(&arguments.engine)?;
    let options = arguments.engine.options();
    let bar = output::progress(partition.blocks.len() as u64 + arguments.inputs, "verifying");
    let device = arguments.against.unwrap_or(options.device);
    let reference = LoadOptions { device, ..options.clone() };
    let mut whole = load_whole(&model, &partition, engine.as_ref(), &reference)?;
    let loader = Loader::new(engine, options);
    let chain = loader.load(&partition.graph, &partition)?;
    bar.inc(partition.blocks.len() as u64);
    let mut worst: Vec<Difference> = Vec::new();
    let mut finite = true;
    for number in 0..arguments.inputs.max(1) {
        let given = inputs::random(&partition.graph.inputs, &ranges, arguments.seed + number)?;
        let expected = whole.run(&given)?;
        let result = chain.run(&given, RunOptions::AllExits)?;
        for (name, found) in result.outputs.iter().chain(&result.exits) {
            let expected = expected.get(name).ok_or_else(|| {
                Error::engine(format!("the uncut model gave no output \"{name}\""))
            })?;
            finite &= expected.to_f64().is_none_or(|values| values.iter().all(|v| v.is_finite()));
            note(&mut worst, compare(name, found, expected)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let most = |value: fn(&Difference) -> f64| worst.iter().map(value).fold(0.0, f64::max);
    let report = Report {
        model: model.path.display().to_string(),
        engine: format!("{} {}", loader.engine().name(), loader.engine().version()),
        cut_points: model.points()?.cuts.len(),
        blocks: partition.graph.blocks.len(),
        inputs: arguments.inputs.max(1),
        max_absolute_difference: most(|difference| difference.max_absolute),
        max_relative_difference: most(|difference| difference.max_relative),
        same_top: worst.iter().all(|difference| difference.same_top),
        finite,
        tolerance: arguments.tolerance,
        outputs: worst,
    };
    match arguments.json {
        true => output::print_json(&report)?,
        false => print(&report)?,
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
fn note(worst: &mut Vec<Difference>, found: Difference) {
    match worst.iter_mut().find(|known| known.output == found.output) {
        Some(known) => {
            known.max_absolute = known.max_absolute.max(found.max_absolute);
            known.max_relative = known.max_relative.max(found.max_relative);
            known.same_top &= found.same_top;
        }
        None => worst.push(found),
    }
}

/// The whole model in one session.
pub(super) struct Whole {
    session: Box<dyn Session>,
    outputs: Vec<String>,
}

/// The file as it is.
pub(super) fn load_whole(
    model: &ModelFile,
    partition: &Partition,
    engine: &dyn tessera_engine::Engine,
    options: &LoadOptions,
) -> Result<Whole> {
    let inputs: Vec<String> = partition.graph.inputs.iter().map(|port| port.name.clone()).collect();
    let graph = &model.graph;
    let outputs: Vec<_> = graph
        .outputs()
        .iter()
        .filter_map(|&id| Some((graph.value_name(id).to_owned(), model.types.get(id)?.dtype)))
        .collect();
    let session = engine.load_file(&model.path, &inputs, &outputs, options)?;
    Ok(Whole { session, outputs: outputs.into_iter().map(|(name, _)| name).collect() })
}

/// The model as one block whose runs are recorded, where the device has that.
pub(super) fn load_recorded(
    one: &Partition,
    engine: &dyn tessera_engine::Engine,
    options: &LoadOptions,
) -> Result<Whole> {
    let graph = &one.graph;
    let [node] = &graph.blocks[..] else {
        return Err(Error::usage("a model in several blocks is not recorded as one"));
    };
    let types = graph.inputs.iter().map(|port| port.tensor_type.clone()).collect::<Vec<_>>();
    let program = one.program(node.block)?.with_input_types(&types)?;
    let names = program.block().outputs().iter().enumerate().map(|(index, port)| {
        let is_it = |source: &Source| *source == Source::Block { block: 0, output: index };
        let found = graph.outputs.iter().find(|(_, source)| is_it(source));
        found.map_or_else(|| port.name.clone(), |(port, _)| port.name.clone())
    });
    let outputs = names.collect();
    let mut session = engine.load(&program, options)?;
    session.record_runs();
    Ok(Whole { session, outputs })
}

impl Whole {
    /// How many runs were played from a recording.
    pub(super) fn played(&self) -> u64 {
        self.session.played_runs()
    }

    /// Runs it.
    pub(super) fn run(&mut self, inputs: &[Tensor]) -> Result<HashMap<String, Tensor>> {
        let bound = self.outputs.iter().map(|_| None).collect();
        let results = self.session.run(inputs, bound)?;
        let results = results.iter().map(to_host).collect::<Result<Vec<_>>>()?;
        let settled = results.into_iter().map(Tensor::settled).collect::<Result<Vec<_>>>()?;
        Ok(self.outputs.iter().cloned().zip(settled).collect())
    }
}

fn print(report: &Report) -> Result<()> {
    let mut table = Table::new(&["output", ">largest difference", ">relative", "same top"]);
    for output in &report.outputs {
        table.row([
            output.output.clone(),
            format!("{:.3e}", output.max_absolute),
            format!("{:.3e}", output.max_relative),
            if output.same_top { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.print()?;
    output::print("")?;
    let finite = if report.finite { "" } else { "; some values are not finite" };
    output::print(&format!(
        "{}: {} blocks at {} cut points on {}, largest relative difference {:.3e}{finite}",
        report.model,
        report.blocks,
        report.cut_points,
        report.engine,
        report.max_relative_difference
    ))
}
