//! `tessera profile --residency`: what a run on a GPU takes for each part of the weights.

use std::time::Duration;

use tessera_command::inputs;
use tessera_core::{Device, Error, Result};
use tessera_engine::{LoadOptions, PartTimes, WeightLoading};
use tessera_graph::Split;
use tessera_node::ProgramSource;
use tessera_plan::residency::{ResidencyLayer, ResidencyProblem};
use tessera_report::{Table, format_bytes, output};
use tessera_repository::ModelFile;
use tessera_zoo::random_inputs;

use crate::arguments::ProfileArguments;

/// The share of the loading rate that is lost while a kernel reads from the host, as it was measured
/// on an H200: of 51 GB/s the kernel takes 44 and leaves 7.5 to copies.
const DIRECT_CONTENTION: f64 = 0.85;

pub(super) fn profile_parts(arguments: &ProfileArguments, model: &ModelFile) -> Result<()> {
    if arguments.engine.device == Device::Cpu {
        return Err(Error::usage("--residency needs a GPU: --device cuda:0"));
    }
    let one = model.split_into_blocks(Some(&Split::Blocks(1)))?;
    let [node] = &one.graph.blocks[..] else {
        return Err(Error::unsupported("the residency of a model that is not one block"));
    };
    let ranges = inputs::parse_ranges(&arguments.ranges, &one.graph.inputs)?;
    let given = random_inputs(&one.graph.inputs, &ranges, 0)?;
    let types: Vec<_> = one.graph.inputs.iter().map(|port| port.tensor_type.clone()).collect();
    let program = one.fetch_program(node.block)?.with_input_types(&types)?;
    let engine = arguments.engine.choose_engine()?;
    let options =
        LoadOptions { weights: WeightLoading::Pipeline, ..arguments.engine.load_options() };
    let working = output::spinner("measuring parts of the weights".to_owned());
    let mut session = engine.load_cuda_program(&program, &options)?;
    let times = session.measure_part_times(&given, arguments.runs.max(1))?;
    working.finish_and_clear();
    if times.is_empty() {
        return Err(Error::unsupported("a model without weights that come in parts"));
    }
    if arguments.json {
        return output::print_json(&residency_problem(&times));
    }
    part_table(&times).print_table()
}

/// What the planner takes.
fn residency_problem(times: &[PartTimes]) -> ResidencyProblem {
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let layer = |(number, part): (usize, &PartTimes)| ResidencyLayer {
        name: part_name(number, part),
        bytes: part.bytes as f64,
        load_us: if part.bytes == 0 { 0.0 } else { microseconds(part.load) },
        in_memory_us: microseconds(part.in_memory),
        direct_us: (part.bytes > 0).then(|| microseconds(part.direct)),
    };
    let layers = times.iter().enumerate().map(layer).collect();
    ResidencyProblem {
        direct_contention: DIRECT_CONTENTION,
        ..ResidencyProblem::with_one_gpu(layers)
    }
}

/// The part's number, and what it begins with.
fn part_name(number: usize, part: &PartTimes) -> String {
    format!("{number} {}", part.first_weight).trim_end().to_owned()
}

fn part_table(times: &[PartTimes]) -> Table {
    let mut table = Table::new(&["part", ">weights", ">load", ">in memory", ">from the host"]);
    let microseconds = |time: Duration| format!("{:.1} µs", time.as_secs_f64() * 1e6);
    let mut add = |name: String, part: &PartTimes| {
        table.add_row([
            name,
            format_bytes(part.bytes as u64),
            microseconds(part.load),
            microseconds(part.in_memory),
            microseconds(part.direct),
        ]);
    };
    for (number, part) in times.iter().enumerate() {
        add(part_name(number, part), part);
    }
    let sum = |value: fn(&PartTimes) -> Duration| times.iter().map(value).sum();
    let total = PartTimes {
        first_weight: String::new(),
        bytes: times.iter().map(|part| part.bytes).sum(),
        load: sum(|part| part.load),
        in_memory: sum(|part| part.in_memory),
        direct: sum(|part| part.direct),
    };
    add("total".to_owned(), &total);
    table
}
