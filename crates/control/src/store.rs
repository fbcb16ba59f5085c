//! Where intent is kept, so that a server that starts again serves what it served before.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use redb::{Database, ReadableDatabase, TableDefinition, TableError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_core::{ContentHash, Error, ErrorKind, Result, lock};

use crate::intent::System;

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

/// Keeps intent.
pub trait IntentStore: Send + Sync + 'static {
    /// What was saved last; `None` where nothing ever was.
    fn load_intent(&self) -> Result<Option<StoredIntent>>;

    /// Keeps this instead of what was kept before; once it returns the disk has it.
    fn save_intent(&self, stored: &StoredIntent) -> Result<()>;
}

/// Keeps intent for as long as the server runs.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Option<StoredIntent>>);

impl IntentStore for MemoryStore {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        Ok(lock(&self.0).clone())
    }

    fn save_intent(&self, stored: &StoredIntent) -> Result<()> {
        *lock(&self.0) = Some(stored.clone());
        Ok(())
    }
}

const INTENT_TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("tessera");
const INTENT_KEY: &str = "intent";
/// Goes up whenever what is written can't be read by the versions before.
const STORE_FORMAT: u64 = 1;

/// Keeps intent in a file.
pub struct RedbStore {
    database: Database,
    path: PathBuf,
}

impl RedbStore {
    /// Opens the store at `path`, or makes a new one there. It is this server's alone until it is
    /// dropped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::from_io(format!("create {}", folder.display()), &error))?;
        }
        let database = Database::create(path).map_err(|error| database_error_at(path, error))?;
        Ok(Self { database, path: path.to_owned() })
    }

    fn database_error(&self, error: impl Into<redb::Error>) -> Error {
        database_error_at(&self.path, error)
    }

    fn with_store_context(&self, error: Error) -> Error {
        error.with_context(format!("store {}", self.path.display()))
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl IntentStore for RedbStore {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        let read = self.database.begin_read().map_err(|error| self.database_error(error))?;
        let table = match read.open_table(INTENT_TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.database_error(error)),
        };
        let found = table.get_owned(INTENT_KEY).map_err(|error| self.database_error(error))?;
        found
            .map(|found| {
                decode_stored(found.value()).map_err(|error| self.with_store_context(error))
            })
            .transpose()
    }

    fn save_intent(&self, stored: &StoredIntent) -> Result<()> {
        let bytes = encode_stored(stored).map_err(|error| self.with_store_context(error))?;
        let write = self.database.begin_write().map_err(|error| self.database_error(error))?;
        {
            let mut table =
                write.open_table(INTENT_TABLE).map_err(|error| self.database_error(error))?;
            table
                .insert(INTENT_KEY, bytes.as_slice())
                .map_err(|error| self.database_error(error))?;
        }
        write.commit().map_err(|error| self.database_error(error))
    }
}

fn encode_stored(stored: &StoredIntent) -> Result<Vec<u8>> {
    #[derive(Serialize)]
    struct StoredDocument<'a> {
        format: u64,
        #[serde(flatten)]
        stored: &'a StoredIntent,
    }
    let written = StoredDocument { format: STORE_FORMAT, stored };
    serde_json::to_vec(&written).map_err(|error| Error::invalid(format!("{error}")))
}

fn decode_stored(bytes: &[u8]) -> Result<StoredIntent> {
    let damaged = |error: serde_json::Error| Error::corrupt(format!("it is damaged: {error}"));
    let value: Value = serde_json::from_slice(bytes).map_err(damaged)?;
    match value.get("format").and_then(Value::as_u64) {
        Some(STORE_FORMAT) => serde_json::from_value(value).map_err(damaged),
        Some(other) => Err(Error::unsupported(format!(
            "it has format {other}, and this version of Tessera reads format {STORE_FORMAT}"
        ))),
        None => Err(Error::corrupt("it is damaged: it has no format")),
    }
}

/// What went wrong with the file at `path`, in words that name it.
fn database_error_at(path: &Path, error: impl Into<redb::Error>) -> Error {
    let store = format!("store {}", path.display());
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => Error::usage(format!(
            "{store} is used by another server, expected one of its own for each: --repo names \
             another folder, --no-store keeps nothing"
        )),
        redb::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Error::corrupt(format!("{store} is no store of Tessera, or is damaged: {error}"))
        }
        redb::Error::Io(error) => Error::from_io(store, &error),
        error @ (redb::Error::Corrupted(_) | redb::Error::RepairAborted) => {
            Error::corrupt(format!("{store} is damaged: {error}"))
        }
        error @ (redb::Error::UpgradeRequired(_) | redb::Error::TableTypeMismatch { .. }) => {
            Error::unsupported(format!("{store} can't be read by this version: {error}"))
        }
        error => Error::new(ErrorKind::Io, format!("{store}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::TaskDefinition;

    fn example() -> StoredIntent {
        let mut stored = StoredIntent::default();
        stored.system.tasks.insert("task1".to_owned(), TaskDefinition::of_model("resnet"));
        let version = TaskVersion { number: 3, content: ContentHash::of_content(b"content") };
        stored.versions.insert("task1".to_owned(), version);
        stored
    }

    #[test]
    fn what_was_saved_last_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state.redb");
        let stores: [Box<dyn IntentStore>; 2] =
            [Box::new(MemoryStore::default()), Box::new(RedbStore::open(&path).unwrap())];
        for store in stores {
            assert_eq!(store.load_intent().unwrap(), None);
            store.save_intent(&StoredIntent::default()).unwrap();
            store.save_intent(&example()).unwrap();
            assert_eq!(store.load_intent().unwrap(), Some(example()));
        }
        assert_eq!(RedbStore::open(&path).unwrap().load_intent().unwrap(), Some(example()));
    }

    #[test]
    fn a_store_that_another_server_uses_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.redb");
        let first = RedbStore::open(&path).unwrap();
        let message = RedbStore::open(&path).unwrap_err().to_string();
        assert!(message.contains("state.redb is used by another server"), "{message}");
        drop(first);
        RedbStore::open(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_store_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for content in ["short", &"a longer text ".repeat(1000)] {
            std::fs::write(&path, content).unwrap();
            let error = RedbStore::open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("notes.txt"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_format_of_the_future_is_refused() {
        let error = decode_stored(b"{\"format\": 2}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for damaged in ["", "{", "{}", "{\"format\": 1}", "{\"format\": 1, \"system\": {}}"] {
            assert_eq!(decode_stored(damaged.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
