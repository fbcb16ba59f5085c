//! Reads intent from JSON, and finds everything that is wrong with it at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;
use tessera_core::{Device, Result};
use tessera_plan::{Batching, BatchingChoice, Isolation};

use crate::intent::{DeviceChoice, Step, StepInput, System, Task, TaskPath};
use crate::names::{self, shown};
use crate::place::{Place, Problems};

pub(crate) const DEADLINE_MS: RangeInclusive<u64> = 1..=86_400_000;
pub(crate) const REPLICAS: RangeInclusive<u64> = 1..=64;
pub(crate) const ROWS: RangeInclusive<u64> = 1..=65_536;
pub(crate) const WAIT_MS: RangeInclusive<u64> = 0..=60_000;

/// What a device is called, as a regular expression.
pub(crate) const DEVICE: &str = "^(cpu|cuda:[0-9]{1,3})$";

const ONE: &str = "\"cpu\" or \"cuda:N\"";
const ONE_OR_EACH: &str = "\"cpu\", \"cuda:N\", or a list with one for each block";
const BLOCK: &str = "the name of a model, MODEL/NUMBER, or the hash of a block";
const STEP_INPUT: &str = "STEP, STEP.N or $N";
const SYSTEM_FIELDS: [&str; 4] = ["blocks", "tasks", "fusion", "isolation"];
const STEP_FIELDS: [&str; 4] = ["name", "block", "inputs", "device"];
const TASK_FIELDS: [&str; 10] = [
    "path",
    "model",
    "exits",
    "deadline_ms",
    "degrade",
    "isolation",
    "replicas",
    "device",
    "batching",
    "max_rows",
];

impl System {
    /// Reads the document of `PUT /v1/system`; the error names every field that is wrong.
    pub fn from_json(document: &Value) -> Result<Self> {
        let mut reader = Reader::default();
        let system = reader.system(&Place::root(document));
        reader.problems.finish()?;
        Ok(system)
    }
}

impl Task {
    /// Reads the document of `PUT /v1/tasks/TASK`; the error names every field that is wrong.
    pub fn from_json(document: &Value) -> Result<Self> {
        let mut reader = Reader::default();
        let task = reader.task(&Place::root(document));
        reader.problems.finish()?;
        Ok(task)
    }
}

/// Reads `{"threshold": 0.3}`.
pub(crate) fn threshold(document: &Value) -> Result<f32> {
    let mut problems = Problems::default();
    let place = Place::root(document);
    let mut threshold = None;
    if place.is_object_of(&["threshold"], &mut problems) {
        match place.field("threshold") {
            Some(place) => threshold = place.threshold(&mut problems),
            None => problems.add("threshold", "it is missing, expected 0 to 1"),
        }
    }
    problems.finish()?;
    // Without a problem there is one.
    Ok(threshold.unwrap_or_default())
}

/// Values that are wrong are left out of what it returns: there is an error then anyway.
#[derive(Default)]
struct Reader {
    problems: Problems,
    /// The blocks that paths may name, where the document lists them.
    blocks: Option<HashSet<String>>,
}

impl Reader {
    fn system(&mut self, place: &Place<'_>) -> System {
        let mut system = System::default();
        if !place.is_object_of(&SYSTEM_FIELDS, &mut self.problems) {
            return system;
        }
        if let Some(place) = place.field("blocks") {
            let blocks = self.blocks(&place);
            self.blocks = Some(blocks.iter().cloned().collect());
            system.blocks = Some(blocks);
        }
        if let Some(place) = place.field("fusion") {
            system.fusion = place.boolean(&mut self.problems).unwrap_or_default();
        }
        system.isolation = place.field("isolation").and_then(|place| self.isolation(&place));
        let Some(place) = place.field("tasks") else {
            self.problems.add("tasks", "it is missing, expected an object");
            return system;
        };
        for (name, place) in place.entries(&mut self.problems) {
            if !names::is_name(name) {
                let what = format!("this is no name for a task, expected {}", names::EXPECTED);
                self.problems.add(&place.at, what);
            }
            let task = self.task(&place);
            system.tasks.insert(name.to_owned(), task);
        }
        system
    }

    fn blocks(&mut self, place: &Place<'_>) -> Vec<String> {
        let mut blocks: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        for place in place.items(&mut self.problems) {
            let Some(name) = self.block(&place) else { continue };
            if !seen.insert(name.clone()) {
                self.problems.add(&place.at, format!("\"{name}\" is there twice"));
            }
            blocks.push(name);
        }
        blocks
    }

    fn block(&mut self, place: &Place<'_>) -> Option<String> {
        let name = place.text(BLOCK, &mut self.problems)?;
        if !names::is_block(name) {
            place.wrong(BLOCK, &mut self.problems);
            return None;
        }
        Some(name.to_owned())
    }

    fn task(&mut self, place: &Place<'_>) -> Task {
        let mut task = Task::new(TaskPath::Path(Vec::new()));
        if place.value.is_array() {
            task.path = TaskPath::Path(self.steps(place, false));
            return task;
        }
        if !place.value.is_object() {
            place.wrong("an array of names or an object", &mut self.problems);
            return task;
        }
        place.is_object_of(&TASK_FIELDS, &mut self.problems);
        match (place.field("path"), place.field("model")) {
            (Some(path), None) => task.path = TaskPath::Path(self.steps(&path, true)),
            (None, Some(model)) => {
                task.path = TaskPath::Model(self.block(&model).unwrap_or_default());
            }
            (Some(_), Some(_)) => {
                self.problems.add(&place.at, "it has a path and a model, expected one of them");
            }
            (None, None) => self.problems.add(&place.at, "it has no path, expected path or model"),
        }
        if let Some(place) = place.field("exits") {
            task.exits = self.exits(&place);
        }
        if let Some(place) = place.field("degrade") {
            task.degrade = place.boolean(&mut self.problems).unwrap_or_default();
        }
        task.isolation = place.field("isolation").and_then(|place| self.isolation(&place));
        task.device = place.field("device").and_then(|place| self.devices(&place));
        task.batching = place.field("batching").and_then(|place| self.batching(&place));
        task.deadline_ms = self.integer(place, "deadline_ms", DEADLINE_MS);
        task.replicas = self.count(place, "replicas", REPLICAS);
        task.max_rows = self.count(place, "max_rows", ROWS);
        task
    }

    fn integer(
        &mut self,
        place: &Place<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        place.field(name)?.integer(range, &mut self.problems)
    }

    fn count(
        &mut self,
        place: &Place<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<usize> {
        self.integer(place, name, range).and_then(|count| usize::try_from(count).ok())
    }

    fn exits(&mut self, place: &Place<'_>) -> BTreeMap<String, f32> {
        let mut exits = BTreeMap::new();
        for (name, place) in place.entries(&mut self.problems) {
            if let Some(threshold) = place.threshold(&mut self.problems) {
                exits.insert(name.to_owned(), threshold);
            }
        }
        exits
    }

    fn isolation(&mut self, place: &Place<'_>) -> Option<Isolation> {
        let isolation = place.value.as_str().and_then(|text| text.parse().ok());
        if isolation.is_none() {
            place.wrong("\"thread\" or \"process\"", &mut self.problems);
        }
        isolation
    }

    /// A device for all blocks, or a list with one for each.
    fn devices(&mut self, place: &Place<'_>) -> Option<DeviceChoice> {
        if !place.value.is_array() {
            return self.device(place, ONE_OR_EACH).map(DeviceChoice::All);
        }
        let places = place.items(&mut self.problems);
        if places.is_empty() {
            self.problems.add(&place.at, "the list is empty, expected one for each block");
        }
        let devices = places.iter().map(|place| self.device(place, ONE));
        // All of them are looked at, so that all that is wrong is told.
        let devices: Vec<Option<Device>> = devices.collect();
        devices.into_iter().collect::<Option<Vec<_>>>().map(DeviceChoice::Each)
    }

    fn device(&mut self, place: &Place<'_>, expected: &str) -> Option<Device> {
        let is_device = |text: &&str| {
            let number = text.strip_prefix("cuda:");
            *text == "cpu" || number.is_some_and(|number| names::is_number(number, 3))
        };
        let device = place.value.as_str().filter(is_device).and_then(|text| text.parse().ok());
        if device.is_none() {
            place.wrong(expected, &mut self.problems);
        }
        device
    }

    fn batching(&mut self, place: &Place<'_>) -> Option<BatchingChoice> {
        match place.value {
            Value::String(text) if text == "auto" => Some(BatchingChoice::Auto),
            Value::String(text) if text == "off" => Some(BatchingChoice::Off),
            Value::Object(_) => {
                place.is_object_of(&["max_rows", "max_wait_ms"], &mut self.problems);
                for name in ["max_rows", "max_wait_ms"] {
                    if place.field(name).is_none() {
                        self.problems.add(&place.at_field(name), "it is missing");
                    }
                }
                let max_rows = self.count(place, "max_rows", ROWS);
                let max_wait = self.integer(place, "max_wait_ms", WAIT_MS);
                let max_wait = max_wait.map(Duration::from_millis);
                Some(BatchingChoice::On(Batching { max_rows: max_rows?, max_wait: max_wait? }))
            }
            _ => {
                let expected = "\"auto\", \"off\" or an object with max_rows and max_wait_ms";
                place.wrong(expected, &mut self.problems);
                None
            }
        }
    }

    /// The steps of a path; `rich` where they may be more than names.
    fn steps(&mut self, place: &Place<'_>, rich: bool) -> Vec<Step> {
        let places = place.items(&mut self.problems);
        if places.is_empty() && place.value.is_array() {
            self.problems.add(&place.at, "the path has no steps, expected at least one");
        }
        let mut steps: Vec<Step> = Vec::with_capacity(places.len());
        let mut wired = Vec::new();
        let mut first: HashMap<String, usize> = HashMap::new();
        for (number, place) in places.iter().enumerate() {
            let Some(step) = self.step(place, rich) else { continue };
            if self.blocks.as_ref().is_some_and(|blocks| !blocks.contains(&step.block)) {
                self.problems.add(&place.at, format!("\"{}\" is not among blocks", step.block));
            }
            if let Some(other) = first.insert(step.name.clone(), number) {
                let what = format!(
                    "\"{}\" is also step {other}, counted from 0, which makes the path a cycle (where a \
                     block is meant to run twice, give its steps different names)",
                    step.name
                );
                self.problems.add(&place.at, what);
            }
            if let Some(inputs) = place.field("inputs") {
                wired.push((steps.len(), inputs));
            }
            steps.push(step);
        }
        for (number, place) in wired {
            let inputs = self.step_inputs(&place, &steps);
            steps[number].inputs = Some(inputs);
        }
        steps
    }

    /// A step, without its inputs.
    fn step(&mut self, place: &Place<'_>, rich: bool) -> Option<Step> {
        if !(rich && place.value.is_object()) {
            return self.block(place).map(Step::plain);
        }
        place.is_object_of(&STEP_FIELDS, &mut self.problems);
        let block = match place.field("block") {
            Some(block) => self.block(&block),
            None => {
                self.problems
                    .add(&place.at_field("block"), format!("it is missing, expected {BLOCK}"));
                None
            }
        };
        let name = match place.field("name") {
            Some(name) => match name.value.as_str().filter(|name| names::is_name(name)) {
                Some(name) => Some(name.to_owned()),
                None => {
                    name.wrong(names::EXPECTED, &mut self.problems);
                    None
                }
            },
            None => block.clone(),
        };
        let device = place.field("device").and_then(|place| self.devices(&place));
        Some(Step { name: name?, block: block?, inputs: None, device })
    }

    fn step_inputs(&mut self, place: &Place<'_>, steps: &[Step]) -> Vec<StepInput> {
        let mut inputs = Vec::new();
        for place in place.items(&mut self.problems) {
            let Some(text) = place.text(STEP_INPUT, &mut self.problems) else { continue };
            match step_input(text, steps) {
                Some(input) => inputs.push(input),
                None => {
                    let known: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
                    let what = format!(
                        "there is no step \"{}\", expected {STEP_INPUT} with one of the steps {}",
                        shown(text),
                        shown(&known.join(", "))
                    );
                    self.problems.add(&place.at, what);
                }
            }
        }
        inputs
    }
}

/// `$N`, a step, or `STEP.N`; a step whose name looks like the latter comes first.
fn step_input(text: &str, steps: &[Step]) -> Option<StepInput> {
    let number = |text: &str| names::is_number(text, 4).then(|| text.parse().ok()).flatten();
    let named = |name: &str| steps.iter().any(|step| step.name == name);
    if let Some(input) = text.strip_prefix('$') {
        return number(input).map(StepInput::Task);
    }
    if named(text) {
        return Some(StepInput::Step { name: text.to_owned(), output: 0 });
    }
    let (name, output) = text.rsplit_once('.')?;
    let output = number(output)?;
    named(name).then(|| StepInput::Step { name: name.to_owned(), output })
}
