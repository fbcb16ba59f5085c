//! From a task's definition to what a site serves: names become blocks, and steps one path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tessera_core::{Device, Error, Result};
use tessera_graph::BlockGraph;
use tessera_plan::{Part, PartInput, TaskSettings, compose};

use crate::intent::{DeviceChoice, Step, StepInput, System, Task, TaskPath};
use crate::manager::Defaults;
use crate::names::shown;
use crate::site::Catalogue;

/// The blocks that run on something else than others, by their number in a path.
pub(crate) type Devices = BTreeMap<usize, Device>;

/// The path of a task through blocks, with the thresholds that the task wants, and what blocks run on where it says so for
/// each.
pub(crate) fn graph(task: &Task, catalogue: &dyn Catalogue) -> Result<(BlockGraph, Devices)> {
    let mut of_steps = Devices::new();
    let mut graph = match &task.path {
        TaskPath::Model(model) => catalogue.find(model)?,
        TaskPath::Path(steps) => {
            let mut parts = Vec::with_capacity(steps.len());
            let mut start = 0;
            for step in steps {
                let inputs = step.inputs.as_ref().map(|inputs| part_inputs(steps, inputs));
                let graph = catalogue.find(&step.block)?;
                let blocks = start..start + graph.blocks.len();
                start = blocks.end;
                if let Some(choice) = &step.device {
                    let devices = devices(choice, blocks);
                    let what = || format!("step \"{}\"", step.name);
                    of_steps.extend(devices.map_err(|error| error.within(what()))?);
                }
                parts.push(Part { name: step.name.clone(), graph, inputs: inputs.transpose()? });
            }
            compose(&parts)?
        }
    };
    for (exit, threshold) in &task.exits {
        set_threshold(&mut graph, exit, *threshold)?;
    }
    let mut elsewhere = match &task.device {
        Some(choice @ DeviceChoice::Each(_)) => devices(choice, 0..graph.blocks.len())?,
        Some(DeviceChoice::All(_)) | None => Devices::new(),
    };
    elsewhere.extend(of_steps);
    Ok((graph, elsewhere))
}

/// What each of these blocks runs on.
fn devices(choice: &DeviceChoice, blocks: Range<usize>) -> Result<Devices> {
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

fn part_inputs(steps: &[Step], inputs: &[StepInput]) -> Result<Vec<PartInput>> {
    let find = |input: &StepInput| -> Result<PartInput> {
        match input {
            StepInput::Task(number) => Ok(PartInput::Task(*number)),
            StepInput::Step { name, output } => {
                let part = steps.iter().position(|step| step.name == *name);
                let unknown = || Error::usage(format!("there is no step \"{name}\""));
                Ok(PartInput::Part { part: part.ok_or_else(unknown)?, output: *output })
            }
        }
    };
    inputs.iter().map(find).collect()
}

/// Sets the threshold of an exit and returns the one that it had.
pub(crate) fn set_threshold(graph: &mut BlockGraph, exit: &str, threshold: f32) -> Result<f32> {
    if let Some(exit) = graph.exits.iter_mut().find(|known| known.output == exit) {
        return Ok(std::mem::replace(&mut exit.threshold, threshold));
    }
    let known: Vec<&str> = graph.exits.iter().map(|exit| exit.output.as_str()).collect();
    let expected = match known.as_slice() {
        [] => "and it has none".to_owned(),
        known => format!("expected one of: {}", known.join(", ")),
    };
    Err(Error::not_found(format!("there is no exit \"{}\", {expected}", shown(exit))))
}

/// How a task is served: as it says, or else as the document says, or else the server.
pub(crate) fn settings(
    task: &Task,
    elsewhere: Devices,
    system: &System,
    defaults: &Defaults,
) -> TaskSettings {
    let usual = TaskSettings::default();
    let device = match task.device {
        Some(DeviceChoice::All(device)) => device,
        Some(DeviceChoice::Each(_)) | None => defaults.device,
    };
    TaskSettings {
        deadline: task.deadline_ms.map_or(defaults.deadline, Duration::from_millis),
        degrade: task.degrade,
        isolation: task.isolation.or(system.isolation).unwrap_or(defaults.isolation),
        replicas: task.replicas.unwrap_or(usual.replicas),
        device,
        elsewhere,
        batching: task.batching.unwrap_or(usual.batching),
        max_rows: task.max_rows.unwrap_or(usual.max_rows),
    }
}
