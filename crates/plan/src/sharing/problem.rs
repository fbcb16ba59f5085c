//! Tasks, the blocks on their paths, and what is known of them.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::strategies::SharingStrategy;
use crate::validation::{require_figure, require_unique_names};

/// How many units a planner may have to choose from: every run of blocks of every path is one.
const MOST_CANDIDATES: usize = 1_000_000;

/// What no count of tasks exceeds.
const MOST_TASKS: f64 = 1e9;

/// What starts a step that is a task's own; no block is called so.
const OWN: &str = "own ";

/// Tasks with paths through shared and own blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingProblem {
    /// What every process takes before it holds anything (a CUDA context, say).
    pub context_bytes: f64,
    /// The blocks.
    pub blocks: Vec<SharingBlock>,
    /// The tasks.
    pub tasks: Vec<SharingTask>,
    /// How long a hop takes.
    #[serde(default)]
    pub hop_us: f64,
    /// What hops are worth: bytes that may be spent to save one microsecond of hops per second.
    #[serde(default)]
    pub hop_price_bytes: f64,
    /// The same tasks in other numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scenarios: Vec<SharingScenario>,
}

/// A block, and what it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingBlock {
    /// Its name; it does not start with "own ".
    pub name: String,
    /// Its weights.
    pub bytes: f64,
    /// What it needs besides while it runs. Blocks of one unit run one after the other: the unit
    /// needs that of the one that needs most.
    #[serde(default)]
    pub overhead_bytes: f64,
    /// How long it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_us: Option<f64>,
    /// The device that it runs on; where none is given, one for all of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A task, or a class of tasks that only differ in what is in their own blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingTask {
    /// Its name.
    pub name: String,
    /// How many there are.
    #[serde(default = "one")]
    pub count: f64,
    /// Requests to each of them; what hops are worth depends on it.
    #[serde(default = "one")]
    pub rate_per_second: f64,
    /// Its blocks in order: `[b1, b2, own b3]`.
    pub path: Vec<SharingStep>,
    /// The block that is its whole model in one piece, where that was measured. Else the whole
    /// model is what the blocks of its path are together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// A block on a path: `b3`, or `own b3` where every task has weights of its own in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct SharingStep {
    /// The block.
    pub block: String,
    /// Whether every task has its own. Else all who use it share it.
    pub own: bool,
}

impl From<String> for SharingStep {
    fn from(text: String) -> Self {
        match text.strip_prefix(OWN) {
            Some(block) => Self { block: block.trim().to_owned(), own: true },
            None => Self { block: text, own: false },
        }
    }
}

impl From<SharingStep> for String {
    fn from(step: SharingStep) -> Self {
        step.to_string()
    }
}

impl fmt::Display for SharingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.own { write!(f, "{OWN}{}", self.block) } else { f.write_str(&self.block) }
    }
}

/// The same tasks in other numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingScenario {
    /// Its name.
    pub name: String,
    /// How many of each task; those that are not named stay as they are.
    pub counts: BTreeMap<String, f64>,
    /// What somebody else found, by strategy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub published: BTreeMap<String, PublishedFigures>,
    /// What there is to say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Figures that were published, to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigures {
    /// The memory.
    pub bytes: f64,
    /// What it saves against the traditional deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving_percent: Option<f64>,
}

impl SharingProblem {
    /// Whether it makes sense; the error names the field.
    pub fn check_consistency(&self) -> Result<()> {
        require_figure("context_bytes", self.context_bytes)?;
        require_figure("hop_us", self.hop_us)?;
        require_figure("hop_price_bytes", self.hop_price_bytes)?;
        self.check_blocks()?;
        self.check_tasks()?;
        require_unique_names(
            "scenarios",
            self.scenarios.iter().map(|scenario| scenario.name.as_str()),
        )?;
        for (number, scenario) in self.scenarios.iter().enumerate() {
            self.check_scenario(&format!("scenarios[{number}]"), scenario)?;
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<()> {
        if self.blocks.is_empty() {
            return Err(Error::invalid("blocks: none, expected at least one"));
        }
        require_unique_names("blocks", self.blocks.iter().map(|block| block.name.as_str()))?;
        for (number, block) in self.blocks.iter().enumerate() {
            let name = &block.name;
            if name.trim() != name || name.starts_with(OWN) {
                return Err(Error::invalid(format!(
                    "blocks[{number}].name: \"{name}\", expected one without spaces at its ends that \
                     does not start with \"own \""
                )));
            }
            require_figure(&format!("blocks[{number}].bytes"), block.bytes)?;
            require_figure(&format!("blocks[{number}].overhead_bytes"), block.overhead_bytes)?;
            if let Some(time) = block.time_us {
                require_figure(&format!("blocks[{number}].time_us"), time)?;
            }
        }
        Ok(())
    }

    fn check_tasks(&self) -> Result<()> {
        if self.tasks.is_empty() {
            return Err(Error::invalid("tasks: none, expected at least one"));
        }
        require_unique_names("tasks", self.tasks.iter().map(|task| task.name.as_str()))?;
        let blocks: HashSet<&str> = self.blocks.iter().map(|block| block.name.as_str()).collect();
        let known = |field: &str, name: &str| {
            if blocks.contains(name) {
                Ok(())
            } else {
                Err(Error::invalid(format!("{field}: there is no block \"{name}\"")))
            }
        };
        let mut candidates = 0_usize;
        for (number, task) in self.tasks.iter().enumerate() {
            require_whole_number(&format!("tasks[{number}].count"), task.count)?;
            require_figure(&format!("tasks[{number}].rate_per_second"), task.rate_per_second)?;
            if task.path.is_empty() {
                return Err(Error::invalid(format!(
                    "tasks[{number}].path: no blocks, expected at least one"
                )));
            }
            let mut seen = HashSet::new();
            for (at, step) in task.path.iter().enumerate() {
                let field = format!("tasks[{number}].path[{at}]");
                known(&field, &step.block)?;
                if !seen.insert(&step.block) {
                    return Err(Error::invalid(format!(
                        "{field}: \"{}\" is there twice",
                        step.block
                    )));
                }
            }
            if let Some(whole) = &task.whole {
                known(&format!("tasks[{number}].whole"), whole)?;
            }
            let length = task.path.len();
            candidates = candidates.saturating_add(length.saturating_mul(length + 1) / 2);
        }
        if candidates > MOST_CANDIDATES {
            return Err(Error::invalid(format!(
                "tasks: their paths have {candidates} runs of blocks, expected at most \
                 {MOST_CANDIDATES}"
            )));
        }
        Ok(())
    }

    fn check_scenario(&self, field: &str, scenario: &SharingScenario) -> Result<()> {
        for (name, &count) in &scenario.counts {
            if !self.tasks.iter().any(|task| task.name == *name) {
                return Err(Error::invalid(format!("{field}.counts: there is no task \"{name}\"")));
            }
            require_whole_number(&format!("{field}.counts.{name}"), count)?;
        }
        for (name, published) in &scenario.published {
            name.parse::<SharingStrategy>()
                .map_err(|error| error.with_context(format!("{field}.published")))?;
            require_figure(&format!("{field}.published.{name}.bytes"), published.bytes)?;
            if let Some(percent) = published.saving_percent.filter(|percent| !percent.is_finite()) {
                return Err(Error::invalid(format!(
                    "{field}.published.{name}.saving_percent: {percent}, expected a number"
                )));
            }
        }
        Ok(())
    }

    /// The problem with the counts of `scenario`, and without scenarios.
    #[must_use]
    pub fn in_scenario(&self, scenario: &SharingScenario) -> Self {
        let tasks = self.tasks.iter().map(|task| {
            let count = scenario.counts.get(&task.name).copied().unwrap_or(task.count);
            SharingTask { count, ..task.clone() }
        });
        let tasks = tasks.collect();
        Self { tasks, scenarios: Vec::new(), blocks: self.blocks.clone(), ..*self }
    }
}

fn require_whole_number(field: &str, value: f64) -> Result<f64> {
    if (0.0..=MOST_TASKS).contains(&value) && value.fract() == 0.0 {
        Ok(value)
    } else {
        Err(Error::invalid(format!(
            "{field}: {value}, expected a whole number from 0 to 1000000000"
        )))
    }
}
