//! `tessera verify`

use std::collections::{BTreeMap, HashMap};

use crate::arguments::VerifyArguments;
use serde::Serialize;
use tessera_command::inputs;
use tessera_core::{Dim, Error, ErrorKind, Result, Tensor};
use tessera_engine::LoadOptions;
use tessera_graph::{Precision, Split, TensorPort};
use tessera_node::{ExitPolicy, ModelLoader, OutputDifference, WholeModel, compare_output};
use tessera_report::{Table, output};
use tessera_repository::ModelFile;
use tessera_zoo::random_inputs;

/// What open dimensions are taken for: the first of these with which the model runs.
const USUAL_SIZES: [usize; 7] = [1, 16, 64, 224, 512, 640, 16000];

/// Models with more nodes than this differ more.
const SHALLOW: usize = 50;

#[derive(Serialize)]
struct VerifyReport {
    model: String,
    engine: String,
    /// How many cut points the model has.
    cut_points: usize,
    /// How many blocks it was cut into, heads of exits included.
    blocks: usize,
    inputs: u64,
    /// The shapes of the inputs.
    shapes: BTreeMap<String, Vec<usize>>,
    max_absolute_difference: f64,
    max_relative_difference: f64,
    /// Whether the largest element of every output is at the same place.
    same_top: bool,
    /// Whether all values that the uncut model computed are finite.
    finite: bool,
    /// Differences up to this share of the largest element are no failure,
    tolerance: f64,
    /// plus this.
    absolute_tolerance: f64,
    /// Whether no output differs by more.
    same: bool,
    /// Outputs whose elements are all below the absolute tolerance: these can't differ by more, and
    /// being the same proves nothing of them.
    too_small_to_compare: Vec<String>,
    outputs: Vec<OutputDifference>,
    /// The first block whose output differs by more; with --bisect.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<FirstDifference>,
}

/// Where a difference begins.
#[derive(Serialize)]
struct FirstDifference {
    /// The block, counted from 0.
    block: usize,
    /// Its operators.
    operators: Vec<String>,
    /// Its output that differs.
    difference: OutputDifference,
}

/// What is no failure.
#[derive(Clone, Copy)]
struct Tolerance {
    relative: f64,
    absolute: f64,
}

impl Tolerance {
    fn of_model(arguments: &VerifyArguments, model: &ModelFile) -> Self {
        let usual = Precision::of_graph(&model.graph, &model.types).usual_difference();
        let depth = model.graph.nodes().len().max(SHALLOW) as f64 / SHALLOW as f64;
        let relative = arguments.tolerance.unwrap_or(usual * depth.sqrt());
        let absolute = arguments.absolute_tolerance.unwrap_or(relative / 10.0);
        Self { relative, absolute }
    }

    fn accepts(self, difference: &OutputDifference) -> bool {
        // NaN is accepted by no comparison.
        difference.max_absolute <= self.absolute + self.relative * difference.largest
    }
}

pub(super) fn run_verify(arguments: &VerifyArguments) -> Result<()> {
    let shapes = arguments.arguments.parse_shapes()?;
    let exits = arguments.arguments.parse_exits()?;
    let model = ModelFile::read_file(&arguments.model, &BTreeMap::new(), &exits)?;
    let split = arguments.split.chosen_split();
    let partition = model.split_into_blocks(split.as_ref())?;
    let ports = model.inputs_with_shapes(&shapes)?;
    let ranges = inputs::parse_ranges(&arguments.ranges, &ports)?;
    let engine = arguments.engine.choose_engine()?;
    let options = arguments.engine.load_options();
    let bar = output::progress_bar(partition.blocks.len() as u64 + arguments.inputs, "verifying");
    let device = arguments.against.unwrap_or(options.device);
    let reference = LoadOptions { device, ..options.clone() };
    let mut whole = WholeModel::load_file(&model, &partition, engine.as_ref(), &reference)?;
    let ports = usual_ports(&ports, &mut |ports| {
        let given = random_inputs(ports, &ranges, arguments.seed)?;
        whole.infer_outputs(&given).map(|_| ())
    })?;
    let loader = ModelLoader::new(engine, options);
    let chain = loader.load_model(&partition.graph, &partition)?;
    bar.inc(partition.blocks.len() as u64);
    let mut worst: Vec<OutputDifference> = Vec::new();
    let mut finite = true;
    for number in 0..arguments.inputs.max(1) {
        let given = random_inputs(&ports, &ranges, arguments.seed + number)?;
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
    let tolerance = Tolerance::of_model(arguments, &model);
    let first_difference = if arguments.bisect {
        let given = random_inputs(&ports, &ranges, arguments.seed)?;
        find_first_difference(&model, split.as_ref(), &loader, &given, tolerance)?
    } else {
        None
    };
    bar.finish_and_clear();
    let most = |value: fn(&OutputDifference) -> f64| worst.iter().map(value).fold(0.0, f64::max);
    let report = VerifyReport {
        model: model.path.display().to_string(),
        engine: format!("{} {}", loader.engine().name(), loader.engine().version()),
        cut_points: model.cut_points()?.cuts.len(),
        blocks: partition.graph.blocks.len(),
        inputs: arguments.inputs.max(1),
        shapes: ports
            .iter()
            .filter_map(|port| Some((port.name.clone(), port.tensor_type.fixed_shape()?)))
            .collect(),
        max_absolute_difference: most(|difference| difference.max_absolute),
        max_relative_difference: most(|difference| difference.max_relative),
        same_top: worst.iter().all(|difference| difference.same_top),
        finite,
        tolerance: tolerance.relative,
        absolute_tolerance: tolerance.absolute,
        same: worst.iter().all(|difference| tolerance.accepts(difference)),
        too_small_to_compare: worst
            .iter()
            .filter(|difference| difference.max_absolute > 0.0)
            .filter(|difference| difference.largest <= tolerance.absolute)
            .map(|difference| difference.output.clone())
            .collect(),
        outputs: worst,
        first_difference,
    };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_verification(&report, arguments.bisect)?;
    }
    match report.outputs.iter().find(|difference| !tolerance.accepts(difference)) {
        None => Ok(()),
        Some(found) => Err(Error::engine(format!(
            "{}: output \"{}\" of the blocks differs from the uncut model's by {:.3e}, expected at \
             most {:.1e} and {:.1e} of the largest element, {:.3e}{}",
            report.model,
            found.output,
            found.max_absolute,
            tolerance.absolute,
            tolerance.relative,
            found.largest,
            if arguments.bisect { "" } else { "; --bisect finds where that begins" }
        ))),
    }
}

/// The inputs with a shape for each, with which the model runs.
fn usual_ports(
    ports: &[TensorPort],
    run: &mut dyn FnMut(&[TensorPort]) -> Result<()>,
) -> Result<Vec<TensorPort>> {
    let is_open = |port: &TensorPort| port.tensor_type.fixed_shape().is_none();
    let mut first_error = None;
    for (size, which) in USUAL_SIZES
        .into_iter()
        .flat_map(|size| [(size, OpenDims::AllButBatch), (size, OpenDims::LastOnly)])
    {
        let sized = with_sizes(ports, size, which);
        match run(&sized) {
            Ok(()) => return Ok(sized),
            Err(error) if error.kind() == ErrorKind::Usage || !ports.iter().any(is_open) => {
                return Err(error);
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    let open = ports.iter().filter(|port| is_open(port));
    let open: Vec<String> =
        open.map(|port| format!("\"{}\" {}", port.name, port.tensor_type)).collect();
    let tried: Vec<String> = USUAL_SIZES.iter().map(usize::to_string).collect();
    let hint = format!(
        "the uncut model runs with none of {} for the open dimensions of {}; say --shape NAME=d,d,…, \
         and --range for integers",
        tried.join(", "),
        open.join(", ")
    );
    match first_error {
        Some(error) => Err(error.with_context(hint)),
        None => Err(Error::usage(hint)),
    }
}

/// Which open dimensions get a size; all others are 1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenDims {
    /// All but the first, and those that have its name.
    AllButBatch,
    /// The last.
    LastOnly,
}

fn with_sizes(ports: &[TensorPort], size: usize, which: OpenDims) -> Vec<TensorPort> {
    let mut sized = ports.to_vec();
    let is_batch = |dim: &Dim| {
        let first = |port: &TensorPort| port.tensor_type.dims.as_ref()?.first().cloned();
        *dim != Dim::Unknown && ports.iter().filter_map(first).any(|known| known == *dim)
    };
    for port in &mut sized {
        let Some(dims) = &mut port.tensor_type.dims else { continue };
        let last = dims.len().saturating_sub(1);
        for (axis, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| dim.fixed_size().is_none())
        {
            let has_size = match which {
                OpenDims::AllButBatch => axis > 0 && !is_batch(dim),
                OpenDims::LastOnly => axis > 0 && axis == last && !is_batch(dim),
            };
            *dim = Dim::Fixed(if has_size { size } else { 1 });
        }
    }
    sized
}

/// Runs the model as one block and cut, both with all that is handed on, and compares that in order.
fn find_first_difference(
    model: &ModelFile,
    split: Option<&Split>,
    loader: &ModelLoader,
    given: &[Tensor],
    tolerance: Tolerance,
) -> Result<Option<FirstDifference>> {
    let tapped = model.with_cuts_as_outputs(&model.cut_points()?);
    let one = tapped.split_into_blocks(Some(&Split::Blocks(model.exits.len() + 1)))?;
    let cut = tapped.split_into_blocks(split)?;
    let run = |partition: &tessera_graph::Partition| -> Result<HashMap<String, Tensor>> {
        let loaded = loader.load_model(&partition.graph, partition)?;
        let result = loaded.run_model(given, ExitPolicy::AllExits)?;
        Ok(result.outputs.into_iter().chain(result.exits).collect())
    };
    let (expected, found) = (run(&one)?, run(&cut)?);
    for (block, node) in cut.graph.blocks.iter().enumerate() {
        for port in &node.outputs {
            let (Some(found), Some(expected)) = (found.get(&port.name), expected.get(&port.name))
            else {
                continue;
            };
            let difference = compare_output(&port.name, found, expected)?;
            if !tolerance.accepts(&difference) {
                let operators = cut.blocks.get(&node.block).map(|block| block.operators().to_vec());
                return Ok(Some(FirstDifference {
                    block,
                    operators: operators.unwrap_or_default(),
                    difference,
                }));
            }
        }
    }
    Ok(None)
}

/// Keeps the largest difference seen of each output.
fn keep_worst(worst: &mut Vec<OutputDifference>, found: OutputDifference) {
    match worst.iter_mut().find(|known| known.output == found.output) {
        Some(known) => {
            known.max_absolute = known.max_absolute.max(found.max_absolute);
            known.max_relative = known.max_relative.max(found.max_relative);
            known.largest = known.largest.max(found.largest);
            known.same_top &= found.same_top;
        }
        None => worst.push(found),
    }
}

fn print_verification(report: &VerifyReport, bisect: bool) -> Result<()> {
    let mut table =
        Table::new(&["output", ">largest difference", ">relative", ">largest element", "same top"]);
    for output in &report.outputs {
        table.add_row([
            output.output.clone(),
            format!("{:.3e}", output.max_absolute),
            format!("{:.3e}", output.max_relative),
            format!("{:.3e}", output.largest),
            if output.same_top { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.print_table()?;
    output::print_line("")?;
    if let Some(first) = &report.first_difference {
        output::print_line(&format!(
            "the difference begins in block {} ({}): \"{}\" differs by {:.3e}, relative {:.3e}",
            first.block,
            first.operators.join(", "),
            first.difference.output,
            first.difference.max_absolute,
            first.difference.max_relative
        ))?;
    }
    if bisect && !report.same && report.first_difference.is_none() {
        output::print_line(
            "no block differs from the model as one block that hands out the same tensors: what the \
             engine optimises across cuts makes the difference",
        )?;
    }
    for output in &report.too_small_to_compare {
        output::print_line(&format!(
            "the elements of \"{output}\" are all below the absolute tolerance, {:.1e}: this proves \
             nothing; try other inputs, or --absolute-tolerance",
            report.absolute_tolerance
        ))?;
    }
    let shapes = report.shapes.iter().map(|(name, shape)| {
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        format!("{name}={}", sizes.join(","))
    });
    let shapes: Vec<String> = shapes.collect();
    let finite = if report.finite { "" } else { "; some values are not finite" };
    output::print_line(&format!(
        "{}: {} blocks at {} cut points on {}, {}, largest relative difference {:.3e}{finite}",
        report.model,
        report.blocks,
        report.cut_points,
        report.engine,
        shapes.join(" "),
        report.max_relative_difference
    ))
}
