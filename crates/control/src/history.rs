//! What was changed since the server was started, and by whom: the newest of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::intent::TaskDefinition;
use crate::requester::current_requester;
use crate::site::AppliedUnits;

/// Changes that are kept.
const MOST_KEPT: usize = 256;

/// A task before a change and after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskDifference {
    /// How it was defined; missing where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<TaskDefinition>,
    /// How it is defined; missing where it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<TaskDefinition>,
}

/// Tasks that are not what they were.
pub(crate) type TaskDifferences = BTreeMap<String, TaskDifference>;

/// A change that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryEntry {
    /// What it is undone by.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    /// The holder of the token or certificate that it was asked for with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The tasks that it changed.
    pub tasks: BTreeMap<String, TaskDifference>,
    /// Units that were started for it.
    pub started: Vec<String>,
    /// Units that were stopped.
    pub stopped: Vec<String>,
    /// The change that it undid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u64>,
    /// The change that undid it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<u64>,
}

/// The newest changes.
#[derive(Default)]
pub(crate) struct History {
    last_number: u64,
    entries: VecDeque<HistoryEntry>,
}

impl History {
    /// Notes a change that was carried out just now. What changed no task is none.
    pub(crate) fn note_change(
        &mut self,
        tasks: TaskDifferences,
        AppliedUnits { started, stopped }: AppliedUnits,
    ) {
        if tasks.is_empty() {
            return;
        }
        self.last_number += 1;
        if self.entries.len() >= MOST_KEPT {
            self.entries.pop_front();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.entries.push_back(HistoryEntry {
            number: self.last_number,
            at: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            who: current_requester(),
            tasks,
            started,
            stopped,
            undoes: None,
            undone_by: None,
        });
    }

    /// The last change undid this one.
    pub(crate) fn note_undone(&mut self, number: u64) {
        let last = self.last_number;
        for entry in &mut self.entries {
            if entry.number == number {
                entry.undone_by = Some(last);
            } else if entry.number == last {
                entry.undoes = Some(number);
            }
        }
    }

    /// What a change did to tasks.
    pub(crate) fn find_change(&self, number: u64) -> Result<&TaskDifferences> {
        let found = self.entries.iter().find(|entry| entry.number == number);
        found.map(|entry| &entry.tasks).ok_or_else(|| {
            let kept = match (self.entries.front(), self.entries.back()) {
                (Some(first), Some(last)) => {
                    format!("those from {} to {} are known", first.number, last.number)
                }
                _ => "nothing was changed since the start".to_owned(),
            };
            Error::not_found(format!("there is no change {number}: {kept}"))
        })
    }

    /// The newest first.
    pub(crate) fn list_entries(&self) -> Vec<HistoryEntry> {
        self.entries.iter().rev().cloned().collect()
    }
}
