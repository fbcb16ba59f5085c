//! What is served: the intent that is kept, and what became of it.

use std::collections::BTreeMap;

use tessera_core::{ContentHash, Error, Result};
use tessera_deploy::{PlannedTask, TaskSettings};
use tessera_graph::BlockGraph;

use crate::intent::TaskDefinition;
use crate::names::shorten_name;
use crate::resolve;
use crate::store::{StoredIntent, TaskVersion};

/// What is served.
#[derive(Clone, Default)]
pub(crate) struct ServedState {
    pub(crate) stored: StoredIntent,
    /// The tasks that are served, by name.
    pub(crate) planned: BTreeMap<String, PlannedTask>,
    /// The tasks that should be and can't, and why.
    pub(crate) left_out: BTreeMap<String, String>,
}

impl ServedState {
    pub(crate) fn planned_tasks(&self) -> Vec<PlannedTask> {
        self.planned.values().cloned().collect()
    }

    /// Puts a task in; its version goes up where it is not what it was in `before`.
    pub(crate) fn put_task(
        &mut self,
        before: &StoredIntent,
        name: &str,
        task: &TaskDefinition,
        (graph, settings): (BlockGraph, TaskSettings),
    ) -> Result<()> {
        let content = path_hash(&graph)?;
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

    pub(crate) fn task_versions(&self) -> BTreeMap<String, String> {
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
            return Err(unknown_task(task));
        };
        let before = resolve::replace_threshold(&mut planned.graph, exit, threshold)
            .map_err(|error| error.with_context(format!("task \"{task}\"")))?;
        definition.exits.insert(exit.to_owned(), threshold);
        if let Some(version) = self.stored.versions.get_mut(task) {
            version.content = path_hash(&planned.graph)?;
        }
        Ok(before)
    }
}

/// The hash of what a path stands for.
fn path_hash(graph: &BlockGraph) -> Result<ContentHash> {
    let bytes = serde_json::to_vec(graph);
    let bytes =
        bytes.map_err(|error| Error::invalid(format!("the path can't be kept: {error}")))?;
    Ok(ContentHash::of_content(&bytes))
}

pub(crate) fn unknown_task(name: &str) -> Error {
    Error::not_found(format!("there is no task \"{}\"", shorten_name(name)))
}
