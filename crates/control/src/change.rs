//! What a change did, as `PUT /v1/system` answers it.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use tessera_deploy::{BatchingChoice, PlannedTask};

use crate::site::{AppliedUnits, UsedUnit};

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// Units that were started.
    pub started: Vec<String>,
    /// Of the units that the tasks use, those that ran before.
    pub kept: Vec<String>,
    /// Units that were stopped.
    pub stopped: Vec<String>,
    /// Of the units that the tasks use, those made of several blocks.
    pub fused: Vec<Fused>,
    /// Blocks that the document lists and no task uses.
    pub unused: Vec<String>,
    /// The tasks that the change is about, with their versions.
    pub tasks: BTreeMap<String, String>,
    /// What is not done as a task wants it, and why.
    pub warnings: Vec<String>,
}

/// Blocks that run as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fused {
    /// The unit.
    pub unit: String,
    /// The hashes of its blocks.
    pub blocks: Vec<String>,
}

impl Changed {
    pub(crate) fn new(
        applied: AppliedUnits,
        units: Vec<UsedUnit>,
        unused: Vec<String>,
        tasks: BTreeMap<String, String>,
        warnings: Vec<String>,
    ) -> Self {
        let AppliedUnits { started, stopped } = applied;
        let new: HashSet<&String> = started.iter().collect();
        let kept = units.iter().map(|unit| &unit.name).filter(|name| !new.contains(name));
        let kept = kept.cloned().collect();
        let fused = units.into_iter().filter(|unit| unit.blocks.len() > 1);
        let fused = fused.map(|UsedUnit { name, blocks }| Fused { unit: name, blocks }).collect();
        Self { started, kept, stopped, fused, unused, tasks, warnings }
    }
}

/// Tasks that want their requests put together where rows are not known to be independent: a request
/// would get another answer than alone.
pub(crate) fn batching_warnings<'a>(tasks: impl Iterator<Item = &'a PlannedTask>) -> Vec<String> {
    let wants = |task: &&PlannedTask| {
        matches!(task.settings.batching, BatchingChoice::On(_)) && !task.graph.is_row_wise()
    };
    let warning = |task: &PlannedTask| {
        let reason = match &task.graph.row_obstacle {
            Some(obstacle) => obstacle.to_string(),
            None => "it is not known whether rows are independent; add its model again".to_owned(),
        };
        let name = &task.name;
        format!("task \"{name}\": batching: not all of it puts requests together: {reason}")
    };
    tasks.filter(wants).map(warning).collect()
}
