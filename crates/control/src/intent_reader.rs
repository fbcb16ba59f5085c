//! Reads intent from JSON, and finds everything that is wrong with it at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;
use tessera_core::{Device, Result};
use tessera_deploy::{Batching, BatchingChoice, Isolation, ResidencyChoice, ThresholdSetting};
use tessera_identity::NodeName;

use crate::intent::{
    BlockChoice, DeviceChoice, NodeChoice, PathStep, StepInput, System, TaskDefinition, TaskPath,
};
use crate::located_value::{LocatedValue, Problems};
use crate::names::{self, shorten_name};

pub(crate) const DEADLINE_MS: RangeInclusive<u64> = 1..=86_400_000;
/// Instances of each unit of a task.
pub const REPLICAS: RangeInclusive<u64> = 1..=64;
/// Rows of a request or a batch.
pub const ROWS: RangeInclusive<u64> = 1..=65_536;
/// Weights of tasks.
pub(crate) const WEIGHTS: RangeInclusive<u64> = 1..=1000;
/// Thresholds of an exit that may be chosen from.
pub(crate) const MOST_THRESHOLDS: usize = 16;
/// Milliseconds that a batch may wait for others.
pub const WAIT_MS: RangeInclusive<u64> = 0..=60_000;

/// Seconds for which a token lets a node in: up to 30 days.
pub(crate) const TOKEN_SECONDS: RangeInclusive<u64> = 1..=2_592_000;

/// What a device is called, as a regular expression.
pub(crate) const DEVICE_PATTERN: &str = "^(cpu|cuda:[0-9]{1,3})$";

const EXPECTED_DEVICE: &str = "\"cpu\" or \"cuda:N\"";
const EXPECTED_DEVICES: &str = "\"cpu\", \"cuda:N\", or a list with one for each block";
const EXPECTED_NODE: &str = "the name of a node";
const EXPECTED_NODES: &str = "the name of a node, or a list with one for each block";
const EXPECTED_BLOCK: &str = "the name of a model, MODEL/NUMBER, or the hash of a block";
const EXPECTED_STEP_INPUT: &str = "STEP, STEP.N or $N";
const SYSTEM_FIELDS: [&str; 4] = ["blocks", "tasks", "fusion", "isolation"];
const STEP_FIELDS: [&str; 4] = ["name", "block", "inputs", "device"];
const TASK_FIELDS: [&str; 17] = [
    "path",
    "model",
    "exits",
    "thresholds",
    "accuracy",
    "least_accuracy",
    "deadline_ms",
    "degrade",
    "weight",
    "isolation",
    "replicas",
    "device",
    "node",
    "input_node",
    "batching",
    "max_rows",
    "residency",
];

impl System {
    /// Reads the document of `PUT /v1/system`; the error names every field that is wrong.
    pub fn from_json(document: &Value) -> Result<Self> {
        let mut reader = IntentReader::default();
        let system = reader.read_system(&LocatedValue::at_root(document));
        reader.problems.into_result()?;
        Ok(system)
    }
}

impl TaskDefinition {
    /// Reads the document of `PUT /v1/tasks/TASK`; the error names every field that is wrong.
    pub fn from_json(document: &Value) -> Result<Self> {
        let mut reader = IntentReader::default();
        let task = reader.read_task(&LocatedValue::at_root(document));
        reader.problems.into_result()?;
        Ok(task)
    }
}

/// Reads `{"threshold": 0.3}`.
pub(crate) fn read_threshold(document: &Value) -> Result<f32> {
    let mut problems = Problems::default();
    let located = LocatedValue::at_root(document);
    let mut threshold = None;
    if located.is_object_of(&["threshold"], &mut problems) {
        match located.get_field("threshold") {
            Some(located) => threshold = located.expect_threshold(&mut problems),
            None => problems.add_problem("threshold", "it is missing, expected 0 to 1"),
        }
    }
    problems.into_result()?;
    // Without a problem there is one.
    Ok(threshold.unwrap_or_default())
}

/// Reads `{"life_seconds": 3600}`; an hour where nothing is said.
pub(crate) fn read_token_life(document: &Value) -> Result<Duration> {
    const HOUR: u64 = 3600;
    let mut problems = Problems::default();
    let located = LocatedValue::at_root(document);
    let mut seconds = None;
    if located.is_object_of(&["life_seconds"], &mut problems) {
        let field = located.get_field("life_seconds");
        seconds = field.and_then(|field| field.expect_integer(TOKEN_SECONDS, &mut problems));
    }
    problems.into_result()?;
    Ok(Duration::from_secs(seconds.unwrap_or(HOUR)))
}

/// Values that are wrong are left out of what it returns: there is an error then anyway.
#[derive(Default)]
struct IntentReader {
    problems: Problems,
    /// The blocks that paths may name, where the document lists them.
    blocks: Option<HashSet<String>>,
}

impl IntentReader {
    fn read_system(&mut self, located: &LocatedValue<'_>) -> System {
        let mut system = System::default();
        if !located.is_object_of(&SYSTEM_FIELDS, &mut self.problems) {
            return system;
        }
        if let Some(located) = located.get_field("blocks") {
            let blocks = self.read_blocks(&located);
            self.blocks = Some(blocks.iter().cloned().collect());
            system.blocks = Some(blocks);
        }
        if let Some(located) = located.get_field("fusion") {
            system.fusion = located.expect_boolean(&mut self.problems).unwrap_or_default();
        }
        system.isolation =
            located.get_field("isolation").and_then(|located| self.read_isolation(&located));
        let Some(located) = located.get_field("tasks") else {
            self.problems.add_problem("tasks", "it is missing, expected an object");
            return system;
        };
        for (name, located) in located.object_entries(&mut self.problems) {
            if !names::is_name(name) {
                let what = format!("this is no name for a task, expected {}", names::EXPECTED_NAME);
                self.problems.add_problem(&located.path, what);
            }
            let task = self.read_task(&located);
            system.tasks.insert(name.to_owned(), task);
        }
        system
    }

    fn read_blocks(&mut self, located: &LocatedValue<'_>) -> Vec<String> {
        let mut blocks: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        for located in located.array_items(&mut self.problems) {
            let Some(name) = self.read_block_name(&located) else { continue };
            if !seen.insert(name.clone()) {
                self.problems.add_problem(&located.path, format!("\"{name}\" is there twice"));
            }
            blocks.push(name);
        }
        blocks
    }

    fn read_block_name(&mut self, located: &LocatedValue<'_>) -> Option<String> {
        let name = located.expect_text(EXPECTED_BLOCK, &mut self.problems)?;
        if !names::is_block_name(name) {
            located.report_unexpected(EXPECTED_BLOCK, &mut self.problems);
            return None;
        }
        Some(name.to_owned())
    }

    fn read_task(&mut self, located: &LocatedValue<'_>) -> TaskDefinition {
        let mut task = TaskDefinition::new(TaskPath::Path(Vec::new()));
        if located.value.is_array() {
            task.path = TaskPath::Path(self.read_steps(located, false));
            return task;
        }
        if !located.value.is_object() {
            located.report_unexpected("an array of names or an object", &mut self.problems);
            return task;
        }
        located.is_object_of(&TASK_FIELDS, &mut self.problems);
        match (located.get_field("path"), located.get_field("model")) {
            (Some(path), None) => task.path = TaskPath::Path(self.read_steps(&path, true)),
            (None, Some(model)) => {
                task.path = TaskPath::Model(self.read_block_name(&model).unwrap_or_default());
            }
            (Some(_), Some(_)) => {
                self.problems
                    .add_problem(&located.path, "it has a path and a model, expected one of them");
            }
            (None, None) => {
                self.problems.add_problem(&located.path, "it has no path, expected path or model");
            }
        }
        if let Some(located) = located.get_field("exits") {
            task.exits = self.read_exits(&located);
        }
        self.read_accuracy_goal(located, &mut task);
        if let Some(located) = located.get_field("degrade") {
            task.degrade = located.expect_boolean(&mut self.problems).unwrap_or_default();
        }
        task.isolation =
            located.get_field("isolation").and_then(|located| self.read_isolation(&located));
        task.residency =
            located.get_field("residency").and_then(|located| self.read_residency(&located));
        task.device = located.get_field("device").and_then(|located| self.read_devices(&located));
        task.node = located.get_field("node").and_then(|located| self.read_nodes(&located));
        task.input_node =
            located.get_field("input_node").and_then(|located| self.read_node(&located));
        task.batching =
            located.get_field("batching").and_then(|located| self.read_batching(&located));
        task.deadline_ms = self.read_integer(located, "deadline_ms", DEADLINE_MS);
        task.replicas = self.read_count(located, "replicas", REPLICAS);
        task.max_rows = self.read_count(located, "max_rows", ROWS);
        task.weight = self.read_integer(located, "weight", WEIGHTS);
        task
    }

    fn read_integer(
        &mut self,
        located: &LocatedValue<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        located.get_field(name)?.expect_integer(range, &mut self.problems)
    }

    fn read_count(
        &mut self,
        located: &LocatedValue<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<usize> {
        self.read_integer(located, name, range).and_then(|count| usize::try_from(count).ok())
    }

    fn read_exits(&mut self, located: &LocatedValue<'_>) -> BTreeMap<String, f32> {
        let mut exits = BTreeMap::new();
        for (name, located) in located.object_entries(&mut self.problems) {
            if let Some(threshold) = located.expect_threshold(&mut self.problems) {
                exits.insert(name.to_owned(), threshold);
            }
        }
        exits
    }

    /// The accuracy that a task must have, and what can be chosen for it: all of it or nothing.
    fn read_accuracy_goal(&mut self, located: &LocatedValue<'_>, task: &mut TaskDefinition) {
        if let Some(located) = located.get_field("thresholds") {
            for (exit, located) in located.object_entries(&mut self.problems) {
                let settings = self.read_threshold_settings(&located);
                task.thresholds.insert(exit.to_owned(), settings);
            }
        }
        let mut read =
            |name: &str| located.get_field(name)?.expect_share("an accuracy", &mut self.problems);
        (task.accuracy, task.least_accuracy) = (read("accuracy"), read("least_accuracy"));
        let names = ["least_accuracy", "accuracy", "thresholds"];
        let is_there = |name: &&str| located.get_field(name).is_some();
        if names.iter().any(is_there) {
            for name in names.iter().filter(|name| !is_there(name)) {
                let what = "it is missing, and thresholds are chosen with it";
                self.problems.add_problem(&located.field_path(name), what);
            }
        }
    }

    /// The thresholds that may be chosen for an exit.
    fn read_threshold_settings(&mut self, located: &LocatedValue<'_>) -> Vec<ThresholdSetting> {
        let items = located.array_items(&mut self.problems);
        if items.is_empty() && located.value.is_array() {
            self.problems.add_problem(&located.path, "the list is empty, expected thresholds");
        }
        if items.len() > MOST_THRESHOLDS {
            let what = format!("a list of {}, expected at most {MOST_THRESHOLDS}", items.len());
            self.problems.add_problem(&located.path, what);
        }
        let mut settings: Vec<ThresholdSetting> = Vec::with_capacity(items.len());
        for located in &items {
            let Some(setting) = self.read_threshold_setting(located) else { continue };
            if settings.iter().any(|known| known.threshold == setting.threshold) {
                let what = format!("threshold {} is there twice", setting.threshold);
                self.problems.add_problem(&located.path, what);
            }
            settings.push(setting);
        }
        settings
    }

    fn read_threshold_setting(&mut self, located: &LocatedValue<'_>) -> Option<ThresholdSetting> {
        const FIELDS: [&str; 2] = ["threshold", "accuracy"];
        if !located.is_object_of(&FIELDS, &mut self.problems) {
            return None;
        }
        for name in FIELDS.iter().filter(|name| located.get_field(name).is_none()) {
            self.problems.add_problem(&located.field_path(name), "it is missing");
        }
        let threshold = located.get_field("threshold")?.expect_threshold(&mut self.problems);
        let accuracy =
            located.get_field("accuracy")?.expect_share("an accuracy", &mut self.problems);
        Some(ThresholdSetting { threshold: threshold?, accuracy: accuracy? })
    }

    fn read_isolation(&mut self, located: &LocatedValue<'_>) -> Option<Isolation> {
        let isolation = located.value.as_str().and_then(|text| text.parse().ok());
        if isolation.is_none() {
            located.report_unexpected("\"thread\" or \"process\"", &mut self.problems);
        }
        isolation
    }

    fn read_residency(&mut self, located: &LocatedValue<'_>) -> Option<ResidencyChoice> {
        let residency = located.value.as_str().and_then(|text| text.parse().ok());
        if residency.is_none() {
            let expected = "\"auto\", \"pinned\", \"on-demand\" or \"direct\"";
            located.report_unexpected(expected, &mut self.problems);
        }
        residency
    }

    /// A device for all blocks, or a list with one for each.
    fn read_devices(&mut self, located: &LocatedValue<'_>) -> Option<DeviceChoice> {
        self.read_choice(located, |reader, located, is_one| {
            reader.read_device(located, if is_one { EXPECTED_DEVICES } else { EXPECTED_DEVICE })
        })
    }

    /// A node for all blocks, or a list with one for each.
    fn read_nodes(&mut self, located: &LocatedValue<'_>) -> Option<NodeChoice> {
        self.read_choice(located, |reader, located, is_one| {
            let node = located.value.as_str().and_then(|text| text.parse().ok());
            if node.is_none() {
                let expected = if is_one { EXPECTED_NODES } else { EXPECTED_NODE };
                located.report_unexpected(expected, &mut reader.problems);
            }
            node
        })
    }

    fn read_node(&mut self, located: &LocatedValue<'_>) -> Option<NodeName> {
        let node = located.value.as_str().and_then(|text| text.parse().ok());
        if node.is_none() {
            located.report_unexpected(EXPECTED_NODE, &mut self.problems);
        }
        node
    }

    /// Something for all blocks, or a list with one for each; `read` learns which it is.
    fn read_choice<T>(
        &mut self,
        located: &LocatedValue<'_>,
        mut read: impl FnMut(&mut Self, &LocatedValue<'_>, bool) -> Option<T>,
    ) -> Option<BlockChoice<T>> {
        if !located.value.is_array() {
            return read(self, located, true).map(BlockChoice::All);
        }
        let items = located.array_items(&mut self.problems);
        if items.is_empty() {
            self.problems
                .add_problem(&located.path, "the list is empty, expected one for each block");
        }
        let each = items.iter().map(|located| read(self, located, false));
        // All of them are looked at, so that all that is wrong is told.
        let each: Vec<Option<T>> = each.collect();
        each.into_iter().collect::<Option<Vec<_>>>().map(BlockChoice::Each)
    }

    fn read_device(&mut self, located: &LocatedValue<'_>, expected: &str) -> Option<Device> {
        let is_device = |text: &&str| {
            let number = text.strip_prefix("cuda:");
            *text == "cpu" || number.is_some_and(|number| names::is_number(number, 3))
        };
        let device = located.value.as_str().filter(is_device).and_then(|text| text.parse().ok());
        if device.is_none() {
            located.report_unexpected(expected, &mut self.problems);
        }
        device
    }

    fn read_batching(&mut self, located: &LocatedValue<'_>) -> Option<BatchingChoice> {
        match located.value {
            Value::String(text) if text == "auto" => Some(BatchingChoice::Auto),
            Value::String(text) if text == "off" => Some(BatchingChoice::Off),
            Value::Object(_) => {
                located.is_object_of(&["max_rows", "max_wait_ms"], &mut self.problems);
                for name in ["max_rows", "max_wait_ms"] {
                    if located.get_field(name).is_none() {
                        self.problems.add_problem(&located.field_path(name), "it is missing");
                    }
                }
                let max_rows = self.read_count(located, "max_rows", ROWS);
                let max_wait = self.read_integer(located, "max_wait_ms", WAIT_MS);
                let max_wait = max_wait.map(Duration::from_millis);
                Some(BatchingChoice::On(Batching { max_rows: max_rows?, max_wait: max_wait? }))
            }
            _ => {
                let expected = "\"auto\", \"off\" or an object with max_rows and max_wait_ms";
                located.report_unexpected(expected, &mut self.problems);
                None
            }
        }
    }

    /// The steps of a path; `rich` where they may be more than names.
    fn read_steps(&mut self, located: &LocatedValue<'_>, rich: bool) -> Vec<PathStep> {
        let items = located.array_items(&mut self.problems);
        if items.is_empty() && located.value.is_array() {
            self.problems
                .add_problem(&located.path, "the path has no steps, expected at least one");
        }
        let mut steps: Vec<PathStep> = Vec::with_capacity(items.len());
        let mut wired = Vec::new();
        let mut first: HashMap<String, usize> = HashMap::new();
        for (number, located) in items.iter().enumerate() {
            let Some(step) = self.read_step(located, rich) else { continue };
            if self.blocks.as_ref().is_some_and(|blocks| !blocks.contains(&step.block)) {
                self.problems
                    .add_problem(&located.path, format!("\"{}\" is not among blocks", step.block));
            }
            if let Some(other) = first.insert(step.name.clone(), number) {
                let what = format!(
                    "\"{}\" is also step {other}, counted from 0, which makes the path a cycle (where a \
                     block is meant to run twice, give its steps different names)",
                    step.name
                );
                self.problems.add_problem(&located.path, what);
            }
            if let Some(inputs) = located.get_field("inputs") {
                wired.push((steps.len(), inputs));
            }
            steps.push(step);
        }
        for (number, located) in wired {
            let inputs = self.read_step_inputs(&located, &steps);
            steps[number].inputs = Some(inputs);
        }
        steps
    }

    /// A step, without its inputs.
    fn read_step(&mut self, located: &LocatedValue<'_>, rich: bool) -> Option<PathStep> {
        if !(rich && located.value.is_object()) {
            return self.read_block_name(located).map(PathStep::from_block);
        }
        located.is_object_of(&STEP_FIELDS, &mut self.problems);
        let block = match located.get_field("block") {
            Some(block) => self.read_block_name(&block),
            None => {
                self.problems.add_problem(
                    &located.field_path("block"),
                    format!("it is missing, expected {EXPECTED_BLOCK}"),
                );
                None
            }
        };
        let name = match located.get_field("name") {
            Some(name) => match name.value.as_str().filter(|name| names::is_name(name)) {
                Some(name) => Some(name.to_owned()),
                None => {
                    name.report_unexpected(names::EXPECTED_NAME, &mut self.problems);
                    None
                }
            },
            None => block.clone(),
        };
        let device = located.get_field("device").and_then(|located| self.read_devices(&located));
        Some(PathStep { name: name?, block: block?, inputs: None, device })
    }

    fn read_step_inputs(
        &mut self,
        located: &LocatedValue<'_>,
        steps: &[PathStep],
    ) -> Vec<StepInput> {
        let mut inputs = Vec::new();
        for located in located.array_items(&mut self.problems) {
            let Some(text) = located.expect_text(EXPECTED_STEP_INPUT, &mut self.problems) else {
                continue;
            };
            match parse_step_input(text, steps) {
                Some(input) => inputs.push(input),
                None => {
                    let known: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
                    let what = format!(
                        "there is no step \"{}\", expected {EXPECTED_STEP_INPUT} with one of the steps {}",
                        shorten_name(text),
                        shorten_name(&known.join(", "))
                    );
                    self.problems.add_problem(&located.path, what);
                }
            }
        }
        inputs
    }
}

/// `$N`, a step, or `STEP.N`; a step whose name looks like the latter comes first.
fn parse_step_input(text: &str, steps: &[PathStep]) -> Option<StepInput> {
    let number = |text: &str| names::is_number(text, 4).then(|| text.parse().ok()).flatten();
    let named = |name: &str| steps.iter().any(|step| step.name == name);
    if let Some(input) = text.strip_prefix('$').and_then(number) {
        return Some(StepInput::Task(input));
    }
    if named(text) {
        return Some(StepInput::Step { name: text.to_owned(), output: 0 });
    }
    let (name, output) = text.rsplit_once('.')?;
    let output = number(output)?;
    named(name).then(|| StepInput::Step { name: name.to_owned(), output })
}
