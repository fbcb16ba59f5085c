//! Where tasks run, kept from one run of a controller to the next, so that the next moves nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_core::Result;
use tessera_deploy::PlannedTask;

use crate::store::{RowChange, RowSpace, RowStore};

/// The nodes of each task's blocks, by task.
pub(super) type Placements = BTreeMap<String, Vec<Arc<str>>>;

/// Keeps where tasks run.
pub(super) struct KeptPlacement(Arc<dyn RowStore>);

impl KeptPlacement {
    pub(super) fn new(rows: Arc<dyn RowStore>) -> Self {
        Self(rows)
    }

    /// What was kept. A row that can't be read stands for a task that is placed anew.
    pub(super) fn load(&self) -> Result<Placements> {
        let rows = self.0.load_rows(RowSpace::Placement)?.unwrap_or_default();
        let read = |(task, row): (String, Vec<u8>)| {
            let nodes: Vec<String> = serde_json::from_slice(&row).ok()?;
            Some((task, nodes.into_iter().map(Arc::from).collect()))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Keeps where these tasks run, and that others run nowhere.
    pub(super) fn save(&self, placed: &[Arc<PlannedTask>], removed: &[String]) -> Result<()> {
        let mut changes: Vec<RowChange> = removed.iter().cloned().map(RowChange::Remove).collect();
        for task in placed {
            let nodes: Vec<&str> = task.settings.nodes.iter().map(|node| &**node).collect();
            let row = serde_json::to_vec(&nodes).unwrap_or_default();
            changes.push(RowChange::Put(task.name.clone(), row));
        }
        self.0.save_rows(RowSpace::Placement, &changes)
    }
}
