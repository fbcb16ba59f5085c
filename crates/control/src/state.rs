//! What is served: the intent that is kept, and what became of it.

use std::collections::BTreeMap;

use tessera_core::{ContentHash, Error, Result};
use tessera_graph::BlockGraph;
use tessera_plan::{PlannedTask, TaskSettings};

use crate::intent::Task;
use crate::names::shown;
use crate::resolve;
use crate::store::{Stored, TaskVersion};

/// What is served.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) stored: Stored,
    /// The tasks that are served, by name.
    pub(crate) planned: BTreeMap<String, PlannedTask>,
    /// The tasks that should be and can't, and why.
    pub(crate) left_out: BTreeMap<String, String>,
}

impl State {
    pub(crate) fn tasks(&self) -> Vec<PlannedTask> {
        self.planned.values().cloned().collect()
    }

    /// Puts a task in; its version goes up where it is not what it was in `before`.
    pub(crate) fn put(
        &mut self,
        before: &Stored,
        name: &str,
        task: &Task,
        (graph, settings): (BlockGraph, TaskSettings),
    ) -> Result<()> {
        let content = content(&graph)?;
        let version = match (before.system.tasks.get(name), before.versions.get(name)) {
            (Some(known), Some(at)) if known == task && at.content == content => at.clone(),
            (_, Some(at)) => TaskVersion { number: at.number.saturating_add(1), content },
            (_, None) => TaskVersion { number: 1, content },
        };
        let planned = PlannedTask {
            name: name.to_owned(),
            version: version.number.to_string(),
            graph,
            settings,
        };
        self.planned.insert(name.to_owned(), planned);
        self.stored.versions.insert(name.to_owned(), version);
        self.stored.system.tasks.insert(name.to_owned(), task.clone());
        self.left_out.remove(name);
        Ok(())
    }

    pub(crate) fn versions(&self) -> BTreeMap<String, String> {
        let versions = self.stored.versions.iter();
        versions.map(|(name, version)| (name.clone(), version.number.to_string())).collect()
    }

    /// Sets a threshold and returns the one before.
    pub(crate) fn set_threshold(&mut self, task: &str, exit: &str, threshold: f32) -> Result<f32> {
        if let Some(reason) = self.left_out.get(task) {
            return Err(Error::lost(format!("task \"{task}\" can't be served: {reason}")));
        }
        let definition = self.stored.system.tasks.get_mut(task);
        let (Some(definition), Some(planned)) = (definition, self.planned.get_mut(task)) else {
            return Err(no_task(task));
        };
        let before = resolve::set_threshold(&mut planned.graph, exit, threshold)
            .map_err(|error| error.within(format!("task \"{task}\"")))?;
        definition.exits.insert(exit.to_owned(), threshold);
        if let Some(version) = self.stored.versions.get_mut(task) {
            version.content = content(&planned.graph)?;
        }
        Ok(before)
    }
}

/// The hash of what a path stands for.
fn content(graph: &BlockGraph) -> Result<ContentHash> {
    let bytes = serde_json::to_vec(graph);
    let bytes =
        bytes.map_err(|error| Error::invalid(format!("the path can't be kept: {error}")))?;
    Ok(ContentHash::of(&bytes))
}

pub(crate) fn no_task(name: &str) -> Error {
    Error::not_found(format!("there is no task \"{}\"", shown(name)))
}
