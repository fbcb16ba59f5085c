//! Rows under keys, which a control plane keeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use tessera_core::{Result, lock};

/// What rows are about. Each is kept, and may be damaged, apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSpace {
    /// Which tasks there should be.
    Intent,
    /// Who belongs to the cluster.
    Members,
    /// Which nodes the blocks of tasks run at.
    Placement,
}

impl RowSpace {
    /// What it is called where it is kept.
    pub fn name(self) -> &'static str {
        match self {
            Self::Intent => "intent",
            Self::Members => "members",
            Self::Placement => "placement",
        }
    }
}

/// Rows by their keys.
pub type RowMap = BTreeMap<String, Vec<u8>>;

/// How rows are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// A row has this content from now on.
    Put(String, Vec<u8>),
    /// A row is gone.
    Remove(String),
    /// All rows of the space are gone.
    RemoveAll,
}

/// Keeps rows.
pub trait RowStore: Send + Sync + 'static {
    /// All rows of a space; `None` where nothing was ever written there.
    fn load_rows(&self, space: RowSpace) -> Result<Option<RowMap>>;

    /// Makes all of these changes, one after the other, or none; once it returns they are kept.
    fn save_rows(&self, space: RowSpace, changes: &[RowChange]) -> Result<()>;
}

/// Keeps rows for as long as the process runs.
#[derive(Debug, Default)]
pub struct MemoryRows(Mutex<HashMap<RowSpace, RowMap>>);

impl RowStore for MemoryRows {
    fn load_rows(&self, space: RowSpace) -> Result<Option<RowMap>> {
        Ok(lock(&self.0).get(&space).cloned())
    }

    fn save_rows(&self, space: RowSpace, changes: &[RowChange]) -> Result<()> {
        let mut spaces = lock(&self.0);
        let rows = spaces.entry(space).or_default();
        for change in changes {
            match change {
                RowChange::Put(key, value) => drop(rows.insert(key.clone(), value.clone())),
                RowChange::Remove(key) => drop(rows.remove(key)),
                RowChange::RemoveAll => rows.clear(),
            }
        }
        Ok(())
    }
}
