//! What is served: the intent that is kept, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_core::{ContentHash, Error, Result};
use tessera_deploy::{PlannedTask, TaskChange, TaskSettings};
use tessera_graph::BlockGraph;

use crate::history::{TaskDifference, TaskDifferences};
use crate::intent::{SystemSettings, TaskDefinition};
use crate::names::shorten_name;
use crate::resolve;
use crate::site::ContentHold;
use crate::store::{IntentChange, StoredIntent, StoredTask, TaskVersion};

/// What is served.
#[derive(Default)]
pub(crate) struct ServedState {
    pub(crate) stored: StoredIntent,
    /// The tasks that are served, by name.
    pub(crate) planned: BTreeMap<String, Arc<PlannedTask>>,
    /// What keeps the content of each from being removed.
    pub(crate) held: BTreeMap<String, ContentHold>,
    /// The tasks that should be and can't, and why.
    pub(crate) left_out: BTreeMap<String, String>,
    /// Models that were cut further for what they have in common with others, and whose tasks run as
    /// they were cut before.
    pub(crate) recut: BTreeSet<String>,
    /// Whether `stored` is what the store has: it was read, or written as a whole.
    pub(crate) is_stored: bool,
}

/// What is to be served in another way; what is not in it stays.
#[derive(Clone)]
pub(crate) struct StateChange {
    pub(crate) settings: SystemSettings,
    /// Whether nothing stays of what the store has.
    pub(crate) replaces_all: bool,
    /// Tasks that are new or others than before.
    pub(crate) put: BTreeMap<String, (StoredTask, Arc<PlannedTask>)>,
    /// Tasks that are gone.
    pub(crate) removed: Vec<String>,
}

impl StateChange {
    /// Changes that put one task each, and together what this one puts.
    pub(crate) fn split_by_task(self) -> impl Iterator<Item = (String, Self)> {
        let Self { settings, put, .. } = self;
        put.into_iter().map(move |(name, task)| {
            let (settings, put) = (settings.clone(), BTreeMap::from([(name.clone(), task)]));
            (name, Self { settings, replaces_all: false, put, removed: Vec::new() })
        })
    }
}

impl ServedState {
    /// How tasks are defined before and after a change, as far as that is another.
    pub(crate) fn differences(&self, change: &StateChange) -> TaskDifferences {
        let tasks = &self.stored.system.tasks;
        let put = change.put.iter().map(|(name, (stored, _))| {
            let (before, after) = (tasks.get(name).cloned(), Some(stored.definition.clone()));
            (name.clone(), TaskDifference { before, after })
        });
        let removed = change.removed.iter().map(|name| {
            (name.clone(), TaskDifference { before: tasks.get(name).cloned(), after: None })
        });
        put.chain(removed).filter(|(_, task)| task.before != task.after).collect()
    }

    /// A change that changes nothing yet.
    pub(crate) fn begin_change(&self) -> StateChange {
        let settings = self.stored.system.settings();
        let (put, removed) = (BTreeMap::new(), Vec::new());
        StateChange { settings, replaces_all: false, put, removed }
    }

    /// What a task is at with this definition: its version goes up where it is not what it was.
    pub(crate) fn next_version(
        &self,
        name: &str,
        task: &TaskDefinition,
        content: ContentHash,
    ) -> TaskVersion {
        let stored = &self.stored;
        match (stored.system.tasks.get(name), stored.versions.get(name)) {
            (Some(known), Some(at)) if known == task && at.content == content => at.clone(),
            (_, Some(at)) => TaskVersion { number: at.number.saturating_add(1), content },
            (_, None) => TaskVersion { number: 1, content },
        }
    }

    /// Adds to a change that a task is served so, unless it is already.
    pub(crate) fn put_task(
        &self,
        change: &mut StateChange,
        name: &str,
        task: &TaskDefinition,
        (graph, settings): (BlockGraph, TaskSettings),
    ) -> Result<()> {
        let version = self.next_version(name, task, path_hash(&graph)?);
        let planned = PlannedTask {
            name: name.to_owned(),
            version: version.number.to_string(),
            graph,
            settings,
        };
        let is_same = self.stored.system.tasks.get(name) == Some(task)
            && self.stored.versions.get(name) == Some(&version)
            && self.planned.get(name).is_some_and(|known| **known == planned);
        if !is_same || change.replaces_all {
            let stored = StoredTask { definition: task.clone(), version };
            change.put.insert(name.to_owned(), (stored, Arc::new(planned)));
        }
        Ok(())
    }

    /// Adds to a change that a task is served by the same model cut elsewhere: its version stays.
    pub(crate) fn put_recut(
        &self,
        change: &mut StateChange,
        name: &str,
        task: &TaskDefinition,
        (graph, settings): (BlockGraph, TaskSettings),
    ) -> Result<()> {
        let Some(version) = self.stored.versions.get(name) else { return Ok(()) };
        let version = TaskVersion { content: path_hash(&graph)?, ..version.clone() };
        let number = version.number.to_string();
        let planned = PlannedTask { name: name.to_owned(), version: number, graph, settings };
        let stored = StoredTask { definition: task.clone(), version };
        change.put.insert(name.to_owned(), (stored, Arc::new(planned)));
        Ok(())
    }

    /// The change that sets a threshold, and the task before and after it.
    pub(crate) fn plan_threshold(
        &self,
        task: &str,
        exit: &str,
        threshold: f32,
    ) -> Result<(StateChange, [Arc<PlannedTask>; 2])> {
        if let Some(reason) = self.left_out.get(task) {
            return Err(Error::lost(format!("task \"{task}\" can't be served: {reason}")));
        }
        let definition = self.stored.system.tasks.get(task);
        let found = (definition, self.stored.versions.get(task), self.planned.get(task));
        let (Some(definition), Some(version), Some(planned)) = found else {
            return Err(unknown_task(task));
        };
        let before = Arc::clone(planned);
        let (mut definition, mut planned) = (definition.clone(), PlannedTask::clone(planned));
        resolve::replace_threshold(&mut planned.graph, exit, threshold)
            .map_err(|error| error.with_context(format!("task \"{task}\"")))?;
        definition.exits.insert(exit.to_owned(), threshold);
        if let Some(goal) = &mut planned.settings.accuracy_goal
            && let Some(choice) = goal.exits.get_mut(exit)
        {
            choice.is_pinned = true;
        }
        let version = TaskVersion { content: path_hash(&planned.graph)?, ..version.clone() };
        let mut change = self.begin_change();
        let (stored, planned) = (StoredTask { definition, version }, Arc::new(planned));
        change.put.insert(task.to_owned(), (stored, Arc::clone(&planned)));
        Ok((change, [before, planned]))
    }

    /// What a site has to do for a change.
    pub(crate) fn task_change(&self, change: &StateChange) -> TaskChange {
        let served = |name: &&String| self.planned.contains_key(*name);
        TaskChange {
            put: change.put.values().map(|(_, planned)| Arc::clone(planned)).collect(),
            removed: change.removed.iter().filter(served).cloned().collect(),
        }
    }

    /// What a site has to do to take a change back.
    pub(crate) fn undo_change(&self, change: &StateChange) -> TaskChange {
        let mut undo = TaskChange::default();
        for name in change.put.keys().chain(&change.removed) {
            match self.planned.get(name) {
                Some(before) => undo.put.push(Arc::clone(before)),
                None if change.put.contains_key(name) => undo.removed.push(name.clone()),
                None => {}
            }
        }
        undo
    }

    /// What a store has to keep of a change.
    pub(crate) fn intent_change(&self, change: &StateChange) -> IntentChange {
        let is_other = |(name, (stored, _)): &(&String, &(StoredTask, Arc<PlannedTask>))| {
            change.replaces_all
                || self.stored.system.tasks.get(*name) != Some(&stored.definition)
                || self.stored.versions.get(*name) != Some(&stored.version)
        };
        let put = change.put.iter().filter(is_other);
        let replaces_all = change.replaces_all;
        let is_other_settings = replaces_all || self.stored.system.settings() != change.settings;
        IntentChange {
            replaces_all,
            settings: is_other_settings.then(|| change.settings.clone()),
            put: put.map(|(name, (stored, _))| (name.clone(), stored.clone())).collect(),
            removed: change.removed.clone(),
        }
    }

    /// Makes a change that was carried out be what is served.
    pub(crate) fn apply_change(&mut self, change: StateChange) {
        for name in &change.removed {
            self.planned.remove(name);
            self.held.remove(name);
            self.left_out.remove(name);
        }
        let mut put = BTreeMap::new();
        for (name, (stored, planned)) in change.put {
            for model in stored.definition.block_names() {
                self.recut.remove(model);
            }
            self.left_out.remove(&name);
            self.planned.insert(name.clone(), planned);
            put.insert(name, stored);
        }
        self.is_stored |= change.replaces_all;
        // What is served is known here, whatever the store had.
        let (settings, removed) = (Some(change.settings), change.removed);
        let change = IntentChange { replaces_all: false, settings, put, removed };
        self.stored.apply_change(change);
    }

    /// The versions of these tasks.
    pub(crate) fn task_versions(&self, tasks: &[&str]) -> BTreeMap<String, String> {
        let version = |name: &&str| {
            let version = self.stored.versions.get(*name)?;
            Some(((*name).to_owned(), version.number.to_string()))
        };
        tasks.iter().filter_map(version).collect()
    }
}

/// The hash of what a path stands for.
fn path_hash(graph: &BlockGraph) -> Result<ContentHash> {
    let bytes = serde_json::to_vec(graph);
    let bytes =
        bytes.map_err(|error| Error::invalid(format!("the path can't be kept: {error}")))?;
    Ok(ContentHash::of_content(&bytes))
}

/// What is answered where there is no task of a name.
pub(crate) fn unknown_task(name: &str) -> Error {
    Error::not_found(format!("there is no task \"{}\"", shorten_name(name)))
}
