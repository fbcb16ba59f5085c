//! What is kept of intent, so that a server that starts again serves what it served before.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Result, lock};

use crate::intent::{System, SystemSettings, TaskDefinition};

/// What a store keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredIntent {
    /// Which tasks there should be.
    pub system: System,
    /// Which version each of them is at.
    pub versions: BTreeMap<String, TaskVersion>,
}

/// The version of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskVersion {
    /// Its number, from 1.
    pub number: u64,
    /// The hash of what its path stands for: it changes with a model behind a name.
    pub content: ContentHash,
}

/// A task as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredTask {
    /// How it is defined.
    pub definition: TaskDefinition,
    /// Which version it is at.
    pub version: TaskVersion,
}

/// What is to be kept in another way; all other tasks stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntentChange {
    /// Whether nothing stays of what was kept before.
    pub replaces_all: bool,
    /// What the system says of all tasks, where that is something else than before.
    pub settings: Option<SystemSettings>,
    /// Tasks that are new or others than before.
    pub put: BTreeMap<String, StoredTask>,
    /// Names of those that are gone.
    pub removed: Vec<String>,
}

impl IntentChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        let Self { replaces_all, settings, put, removed } = self;
        !replaces_all && settings.is_none() && put.is_empty() && removed.is_empty()
    }
}

impl StoredIntent {
    /// Makes it be what it is after a change.
    pub fn apply_change(&mut self, change: IntentChange) {
        let IntentChange { replaces_all, settings, put, removed } = change;
        if replaces_all {
            *self = Self::default();
        }
        if let Some(SystemSettings { blocks, fusion, isolation }) = settings {
            (self.system.blocks, self.system.fusion, self.system.isolation) =
                (blocks, fusion, isolation);
        }
        for name in removed {
            self.system.tasks.remove(&name);
            self.versions.remove(&name);
        }
        for (name, StoredTask { definition, version }) in put {
            self.system.tasks.insert(name.clone(), definition);
            self.versions.insert(name, version);
        }
    }

    /// The change that makes nothing be this.
    pub(crate) fn into_change(self) -> IntentChange {
        let Self { system, mut versions } = self;
        let settings = Some(system.settings());
        let tasks = system.tasks.into_iter().filter_map(|(name, definition)| {
            let version = versions.remove(&name)?;
            Some((name, StoredTask { definition, version }))
        });
        IntentChange { replaces_all: true, settings, put: tasks.collect(), removed: Vec::new() }
    }
}

/// Keeps intent.
pub trait IntentStore: Send + Sync + 'static {
    /// What is kept; `None` where nothing ever was.
    fn load_intent(&self) -> Result<Option<StoredIntent>>;

    /// Keeps a change of what was kept before; once it returns the disk has it.
    fn save_change(&self, change: &IntentChange) -> Result<()>;
}

/// Keeps intent for as long as the server runs.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Option<StoredIntent>>);

impl IntentStore for MemoryStore {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        Ok(lock(&self.0).clone())
    }

    fn save_change(&self, change: &IntentChange) -> Result<()> {
        lock(&self.0).get_or_insert_default().apply_change(change.clone());
        Ok(())
    }
}
