//! Where tasks run and which thresholds were chosen for them, kept from one run of a controller to
//! the next, so that the next changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_core::Result;

use crate::store::{RowChange, RowSpace, RowStore};

/// Where a task runs, and the thresholds that were chosen for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptTask {
    /// The nodes of its blocks.
    pub(super) nodes: Vec<String>,
    /// Thresholds by exit.
    #[serde(default)]
    pub(super) thresholds: BTreeMap<String, f32>,
}

/// A row, which says nothing but nodes where no thresholds were chosen.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PlacementRow {
    Nodes(Vec<String>),
    Task(KeptTask),
}

/// Where tasks run, by name.
pub(super) type Placements = BTreeMap<String, KeptTask>;

/// Keeps where tasks run.
pub(super) struct KeptPlacement(Arc<dyn RowStore>);

impl KeptPlacement {
    pub(super) fn new(rows: Arc<dyn RowStore>) -> Self {
        Self(rows)
    }

    /// What was kept. A row that can't be read stands for a task that is placed anew.
    pub(super) fn load(&self) -> Result<Placements> {
        let rows = self.0.load_rows(RowSpace::Placement)?.unwrap_or_default();
        let read = |(task, row): (String, Vec<u8>)| match serde_json::from_slice(&row).ok()? {
            PlacementRow::Nodes(nodes) => Some((task, KeptTask { nodes, ..KeptTask::default() })),
            PlacementRow::Task(kept) => Some((task, kept)),
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Keeps where these tasks run, and that others run nowhere.
    pub(super) fn save(&self, placed: Placements, removed: &[String]) -> Result<()> {
        let mut changes: Vec<RowChange> = removed.iter().cloned().map(RowChange::Remove).collect();
        for (task, kept) in placed {
            let row = if kept.thresholds.is_empty() {
                PlacementRow::Nodes(kept.nodes)
            } else {
                PlacementRow::Task(kept)
            };
            let row = serde_json::to_vec(&row).unwrap_or_default();
            changes.push(RowChange::Put(task, row));
        }
        self.0.save_rows(RowSpace::Placement, &changes)
    }
}
