//! From a task's definition to what a site serves: names become blocks, and steps one path.

use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_graph::BlockGraph;
use tessera_plan::{Part, PartInput, TaskSettings, compose};

use crate::intent::{Step, StepInput, System, Task, TaskPath};
use crate::manager::Defaults;
use crate::names::shown;
use crate::site::Catalogue;

/// The path of a task through blocks, with the thresholds that the task wants.
pub(crate) fn graph(task: &Task, catalogue: &dyn Catalogue) -> Result<BlockGraph> {
    let mut graph = match &task.path {
        TaskPath::Model(model) => catalogue.find(model)?,
        TaskPath::Path(steps) => {
            let mut parts = Vec::with_capacity(steps.len());
            for step in steps {
                let inputs = step.inputs.as_ref().map(|inputs| part_inputs(steps, inputs));
                parts.push(Part {
                    name: step.name.clone(),
                    graph: catalogue.find(&step.block)?,
                    inputs: inputs.transpose()?,
                });
            }
            compose(&parts)?
        }
    };
    for (exit, threshold) in &task.exits {
        set_threshold(&mut graph, exit, *threshold)?;
    }
    Ok(graph)
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
pub(crate) fn settings(task: &Task, system: &System, defaults: &Defaults) -> TaskSettings {
    let usual = TaskSettings::default();
    TaskSettings {
        deadline: task.deadline_ms.map_or(defaults.deadline, Duration::from_millis),
        degrade: task.degrade,
        isolation: task.isolation.or(system.isolation).unwrap_or(defaults.isolation),
        replicas: task.replicas.unwrap_or(usual.replicas),
        device: task.device.unwrap_or(defaults.device),
        batching: task.batching.unwrap_or(usual.batching),
        max_rows: task.max_rows.unwrap_or(usual.max_rows),
    }
}
