//! Rows under keys, which a controller keeps.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tessera_core::{Result, lock};

/// A row that is written or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// It has this content from now on.
    Put(String, Vec<u8>),
    /// It is gone.
    Remove(String),
}

/// Keeps rows.
pub trait RowStore: Send + Sync + 'static {
    /// All rows whose keys begin so.
    fn load_rows(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>>;

    /// Writes all of these or none; once it returns they are kept.
    fn save_rows(&self, changes: &[RowChange]) -> Result<()>;
}

/// Keeps rows for as long as the process runs.
#[derive(Debug, Default)]
pub struct MemoryRows(Mutex<BTreeMap<String, Vec<u8>>>);

impl RowStore for MemoryRows {
    fn load_rows(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        let rows = lock(&self.0);
        let found = rows.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn save_rows(&self, changes: &[RowChange]) -> Result<()> {
        let mut rows = lock(&self.0);
        for change in changes {
            match change {
                RowChange::Put(key, value) => drop(rows.insert(key.clone(), value.clone())),
                RowChange::Remove(key) => drop(rows.remove(key)),
            }
        }
        Ok(())
    }
}
