//! From a task's definition to what a site serves: names become blocks, and steps one path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tessera_core::{Device, Error, Result};
use tessera_deploy::{
    AccuracyGoal, Isolation, PathPart, PathPartInput, TaskSettings, ThresholdChoice, compose_path,
};
use tessera_graph::{BlockGraph, Exit};

use crate::intent::{DeviceChoice, NodeChoice, PathStep, StepInput, TaskDefinition, TaskPath};
use crate::names::shorten_name;
use crate::site::Catalogue;
use crate::task_defaults::TaskDefaults;

/// The blocks that run on something else than others, by their number in a path.
pub(crate) type BlockDevices = BTreeMap<usize, Device>;

/// The path of a task through blocks, with the thresholds that the task wants, and what blocks run
/// on where it says so for each.
pub(crate) fn resolve_graph(
    task: &TaskDefinition,
    catalogue: &dyn Catalogue,
) -> Result<(BlockGraph, BlockDevices)> {
    let mut of_steps = BlockDevices::new();
    let mut graph = match &task.path {
        TaskPath::Model(model) => catalogue.find_graph(model)?,
        TaskPath::Path(steps) => {
            let mut parts = Vec::with_capacity(steps.len());
            let mut start = 0;
            for step in steps {
                let inputs = step.inputs.as_ref().map(|inputs| part_inputs(steps, inputs));
                let graph = catalogue.find_graph(&step.block)?;
                let blocks = start..start + graph.blocks.len();
                start = blocks.end;
                if let Some(choice) = &step.device {
                    let devices = block_devices(choice, blocks);
                    let what = || format!("step \"{}\"", step.name);
                    of_steps.extend(devices.map_err(|error| error.with_context(what()))?);
                }
                parts.push(PathPart {
                    name: step.name.clone(),
                    graph,
                    inputs: inputs.transpose()?,
                });
            }
            compose_path(&parts)?
        }
    };
    for (exit, settings) in &task.thresholds {
        let first = settings.first().map_or(0.0, |setting| setting.threshold);
        replace_threshold(&mut graph, exit, first)?;
    }
    check_thresholds(task, &graph)?;
    for (exit, threshold) in &task.exits {
        replace_threshold(&mut graph, exit, *threshold)?;
    }
    let mut device_overrides = match &task.device {
        Some(choice @ DeviceChoice::Each(_)) => block_devices(choice, 0..graph.blocks.len())?,
        Some(DeviceChoice::All(_)) | None => BlockDevices::new(),
    };
    device_overrides.extend(of_steps);
    Ok((graph, device_overrides))
}

/// Most combinations of the thresholds of a task's exits that are chosen from.
const MOST_COMBINATIONS: usize = 1000;

/// Whether it is known of every exit what could be chosen, where thresholds are chosen at all.
fn check_thresholds(task: &TaskDefinition, graph: &BlockGraph) -> Result<()> {
    if task.least_accuracy.is_none() {
        return Ok(());
    }
    if task.node.is_some() {
        return Err(Error::usage(
            "least_accuracy: thresholds are chosen with the nodes of blocks, and node says them; \
             expected one of both",
        ));
    }
    let is_unknown = |exit: &&Exit| !task.thresholds.contains_key(&exit.output);
    if let Some(exit) = graph.exits.iter().find(is_unknown) {
        return Err(Error::usage(format!(
            "thresholds: none for exit \"{}\", expected some for each exit",
            exit.output
        )));
    }
    let counts = task.thresholds.values().map(Vec::len);
    let combinations = counts.fold(1usize, usize::saturating_mul);
    if combinations > MOST_COMBINATIONS {
        return Err(Error::usage(format!(
            "thresholds: {combinations} combinations, expected at most {MOST_COMBINATIONS}"
        )));
    }
    Ok(())
}

/// What each of these blocks runs on.
fn block_devices(choice: &DeviceChoice, blocks: Range<usize>) -> Result<BlockDevices> {
    match choice {
        DeviceChoice::All(device) => Ok(blocks.map(|block| (block, *device)).collect()),
        DeviceChoice::Each(devices) if devices.len() == blocks.len() => {
            Ok(blocks.zip(devices.iter().copied()).collect())
        }
        DeviceChoice::Each(devices) => Err(Error::usage(format!(
            "device: a list of {}, expected one for each of its {} blocks",
            devices.len(),
            blocks.len()
        ))),
    }
}

fn part_inputs(steps: &[PathStep], inputs: &[StepInput]) -> Result<Vec<PathPartInput>> {
    let find = |input: &StepInput| -> Result<PathPartInput> {
        match input {
            StepInput::Task(number) => Ok(PathPartInput::Task(*number)),
            StepInput::Step { name, output } => {
                let part = steps.iter().position(|step| step.name == *name);
                let unknown = || Error::usage(format!("there is no step \"{name}\""));
                Ok(PathPartInput::Part { part: part.ok_or_else(unknown)?, output: *output })
            }
        }
    };
    inputs.iter().map(find).collect()
}

/// Sets the threshold of an exit.
pub(crate) fn replace_threshold(graph: &mut BlockGraph, exit: &str, threshold: f32) -> Result<()> {
    if let Some(exit) = graph.exits.iter_mut().find(|known| known.output == exit) {
        exit.threshold = threshold;
        return Ok(());
    }
    let known: Vec<&str> = graph.exits.iter().map(|exit| exit.output.as_str()).collect();
    let expected = match known.as_slice() {
        [] => "and it has none".to_owned(),
        known => format!("expected one of: {}", known.join(", ")),
    };
    Err(Error::not_found(format!("there is no exit \"{}\", {expected}", shorten_name(exit))))
}

/// How a task is served: as it says, or else as the document says, or else the server.
pub(crate) fn resolve_settings(
    task: &TaskDefinition,
    device_overrides: BlockDevices,
    system_isolation: Option<Isolation>,
    defaults: &TaskDefaults,
) -> TaskSettings {
    let usual = TaskSettings::default();
    let device = match task.device {
        Some(DeviceChoice::All(device)) => device,
        Some(DeviceChoice::Each(_)) | None => defaults.device,
    };
    TaskSettings {
        deadline: task.deadline_ms.map_or(defaults.deadline, Duration::from_millis),
        degrade: task.degrade,
        weight: task.weight.unwrap_or(usual.weight),
        isolation: task.isolation.or(system_isolation).unwrap_or(defaults.isolation),
        replicas: task.replicas.unwrap_or(usual.replicas),
        device,
        device_overrides,
        nodes: match &task.node {
            None => usual.nodes,
            Some(NodeChoice::All(node)) => vec![node.as_str().into()],
            Some(NodeChoice::Each(nodes)) => {
                nodes.iter().map(|node| node.as_str().into()).collect()
            }
        },
        input_node: task.input_node.as_ref().map(|node| node.as_str().into()),
        accuracy_goal: accuracy_goal(task),
        batching: task.batching.unwrap_or(usual.batching),
        max_rows: task.max_rows.unwrap_or(usual.max_rows),
        residency: task.residency.unwrap_or(usual.residency),
    }
}

/// The accuracy that a task must have. A threshold that it says itself stays.
fn accuracy_goal(task: &TaskDefinition) -> Option<AccuracyGoal> {
    let choices = task.thresholds.iter().map(|(exit, settings)| {
        let is_pinned = task.exits.contains_key(exit);
        (exit.clone(), ThresholdChoice { settings: settings.clone(), is_pinned })
    });
    Some(AccuracyGoal {
        accuracy: task.accuracy?,
        least_accuracy: task.least_accuracy?,
        exits: choices.collect(),
    })
}
