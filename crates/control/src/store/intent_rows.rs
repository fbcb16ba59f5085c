//! Intent in rows: one for each task and one for what holds for all, so that a change writes what
//! it changes.

use std::path::Path;
use std::sync::Arc;

use tessera_core::{Error, ErrorKind, Result};

use super::intent_copy::IntentCopy;
use super::intent_store::{IntentChange, IntentStore, StoredIntent, StoredTask};
use super::row_store::{RowChange, RowSpace, RowStore};
use crate::intent::SystemSettings;

const SETTINGS_KEY: &str = "settings";
/// Goes before the name of a task.
const TASK_PREFIX: &str = "task:";

/// Keeps intent in the rows of a store.
pub struct IntentRows {
    rows: Arc<dyn RowStore>,
    copy: Option<IntentCopy>,
}

impl IntentRows {
    /// In these rows.
    pub fn new(rows: Arc<dyn RowStore>) -> Self {
        Self { rows, copy: None }
    }

    /// In these rows, which are in the file at `path`. What is kept is also written beside it as
    /// JSON now and then: should the file be damaged, that can be put again.
    pub fn with_copy_beside(rows: Arc<dyn RowStore>, path: &Path) -> Self {
        Self { rows, copy: Some(IntentCopy::beside(path)) }
    }

    /// Says of damage what can be done.
    fn with_advice(&self, error: Error) -> Error {
        match &self.copy {
            Some(copy) if error.kind() == ErrorKind::Corrupt => {
                Error::corrupt(format!("{error}; {}", copy.advice()))
            }
            _ => error,
        }
    }

    fn read_intent(&self) -> Result<Option<StoredIntent>> {
        let Some(rows) = self.rows.load_rows(RowSpace::Intent)? else { return Ok(None) };
        let mut stored = StoredIntent::default();
        for (key, value) in rows {
            stored.apply_change(decode_row(&key, &value)?);
        }
        Ok(Some(stored))
    }
}

impl IntentStore for IntentRows {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        let loaded = self.read_intent().map_err(|error| self.with_advice(error))?;
        if let (Some(stored), Some(copy)) = (&loaded, &self.copy) {
            copy.set_intent(stored.clone());
        }
        Ok(loaded)
    }

    fn save_change(&self, change: &IntentChange) -> Result<()> {
        let saved = self.rows.save_rows(RowSpace::Intent, &encode_rows(change)?);
        saved.map_err(|error| self.with_advice(error))?;
        if let Some(copy) = &self.copy {
            copy.apply_change(change);
        }
        Ok(())
    }
}

/// The rows that a change writes and removes.
pub(super) fn encode_rows(change: &IntentChange) -> Result<Vec<RowChange>> {
    let unwritten = |error: serde_json::Error| Error::invalid(format!("{error}"));
    let mut rows = Vec::with_capacity(2 + change.put.len() + change.removed.len());
    if change.replaces_all {
        rows.push(RowChange::RemoveAll);
    }
    if let Some(settings) = &change.settings {
        let value = serde_json::to_vec(settings).map_err(unwritten)?;
        rows.push(RowChange::Put(SETTINGS_KEY.to_owned(), value));
    }
    for name in &change.removed {
        rows.push(RowChange::Remove(format!("{TASK_PREFIX}{name}")));
    }
    for (name, task) in &change.put {
        let value = serde_json::to_vec(task).map_err(unwritten)?;
        rows.push(RowChange::Put(format!("{TASK_PREFIX}{name}"), value));
    }
    Ok(rows)
}

/// What a row says, as a change of nothing.
fn decode_row(key: &str, value: &[u8]) -> Result<IntentChange> {
    let damaged = |error: serde_json::Error| {
        Error::corrupt(format!("the store: it is damaged: row \"{key}\": {error}"))
    };
    let mut change = IntentChange::default();
    if key == SETTINGS_KEY {
        let settings: SystemSettings = serde_json::from_slice(value).map_err(damaged)?;
        change.settings = Some(settings);
    } else if let Some(name) = key.strip_prefix(TASK_PREFIX) {
        let task: StoredTask = serde_json::from_slice(value).map_err(damaged)?;
        change.put.insert(name.to_owned(), task);
    } else {
        let what = format!("the store: it is damaged: row \"{key}\" is one that no version writes");
        return Err(Error::corrupt(what));
    }
    Ok(change)
}
