//! Intent in a file.
//!
//! A row for each task and one for what holds for all, so that a change writes what it changes. A
//! digest over all rows tells whether they are those that were written: the database checks itself
//! only after a crash.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use redb::{
    Database, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError, WriteTransaction,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tessera_core::{ContentHash, Error, ErrorKind, Result, lock};

use crate::intent::SystemSettings;
use crate::intent_copy::IntentCopy;
use crate::store::{IntentChange, IntentStore, StoredIntent, StoredTask};

/// Says which format there is; the intent itself in the first.
const FORMAT_TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("tessera");
const FORMAT_KEY: &str = "intent";
/// Goes up whenever what is written can't be read by the versions before.
const STORE_FORMAT: u64 = 2;
/// The first format: one document with everything.
const ONE_DOCUMENT: u64 = 1;

/// The rows of the intent.
const INTENT_TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("intent");
const SETTINGS_KEY: &str = "settings";
const DIGEST_KEY: &str = "digest";
/// Goes before the name of a task.
const TASK_PREFIX: &str = "task:";

/// What a digest has of every row: the order in which they were written makes no difference.
#[derive(Clone, Copy, Default, PartialEq)]
struct IntentDigest([u8; 32]);

impl IntentDigest {
    /// Adds a row, or takes it out again.
    fn toggle_row(&mut self, key: &str, value: &[u8]) {
        let row = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), value].concat();
        for (mine, other) in self.0.iter_mut().zip(ContentHash::of_content(&row).as_bytes()) {
            *mine ^= other;
        }
    }
}

/// Keeps intent in a file.
///
/// What is kept is also written beside it as JSON now and then: should the file be damaged, that can
/// be put again.
pub struct RedbStore {
    /// `None` where the last use failed: it is opened anew for the next, as a database that could
    /// not write once refuses to ever after.
    database: Mutex<Option<Database>>,
    path: PathBuf,
    copy: IntentCopy,
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
        let copy = IntentCopy::beside(path);
        let store = Self { database: Mutex::default(), path: path.to_owned(), copy };
        store.use_database(|_| Ok(()))?;
        Ok(store)
    }

    /// Does something with the database, which is opened anew where the last use failed.
    fn use_database<T>(&self, work: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let mut place = lock(&self.database);
        let known = place.take();
        // A database that is damaged in an odd place may panic.
        let worked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let database = match known {
                Some(database) => database,
                None => Database::create(&self.path).map_err(|error| self.database_error(error))?,
            };
            let worked = work(&database);
            Ok::<_, Error>((database, worked))
        }));
        let (database, worked) = match worked {
            Ok(opened) => opened?,
            Err(_) => return Err(self.with_store_context(damaged("it can't be read"))),
        };
        let is_broken = worked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io);
        if !is_broken {
            *place = Some(database);
        }
        worked.map_err(|error| self.with_advice(error))
    }

    fn database_error(&self, error: impl Into<redb::Error>) -> Error {
        database_error_at(&self.path, error)
    }

    fn with_store_context(&self, error: Error) -> Error {
        self.with_advice(error.with_context(format!("store {}", self.path.display())))
    }

    /// Says of damage what can be done.
    fn with_advice(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt || error.to_string().contains("move it away") {
            return error;
        }
        Error::corrupt(format!("{error}; {}", self.copy.advice()))
    }

    /// What the first format kept, where that is what there is.
    fn load_document(&self, database: &Database) -> Result<Option<StoredIntent>> {
        let read = database.begin_read().map_err(|error| self.database_error(error))?;
        let table = match read.open_table(FORMAT_TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.database_error(error)),
        };
        let found = table.get(FORMAT_KEY).map_err(|error| self.database_error(error))?;
        let Some(found) = found else { return Ok(None) };
        decode_document(found.value()).map_err(|error| self.with_store_context(error))
    }

    fn load_rows(&self, database: &Database) -> Result<Option<StoredIntent>> {
        let read = database.begin_read().map_err(|error| self.database_error(error))?;
        let table = match read.open_table(INTENT_TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.database_error(error)),
        };
        let (mut stored, mut digest, mut expected) =
            (StoredIntent::default(), IntentDigest::default(), None);
        for row in table.iter().map_err(|error| self.database_error(error))? {
            let (key, value) = row.map_err(|error| self.database_error(error))?;
            let (key, value) = (key.value(), value.value());
            if key == DIGEST_KEY {
                expected = Some(value.to_vec());
                continue;
            }
            digest.toggle_row(key, value);
            let change = decode_row(key, value).map_err(|error| self.with_store_context(error))?;
            stored.apply_change(change);
        }
        if expected.as_deref() != Some(&digest.0[..]) {
            let error = damaged("what is kept is not what was written");
            return Err(self.with_store_context(error));
        }
        Ok(Some(stored))
    }

    /// Writes the rows of a change, and what was kept in the first format before.
    fn write_rows(
        &self,
        write: &WriteTransaction,
        change: &IntentChange,
        earlier: Option<StoredIntent>,
    ) -> Result<()> {
        let failed = |error: redb::Error| self.database_error(error);
        if change.replaces_all {
            write.delete_table(INTENT_TABLE).map_err(|error| failed(error.into()))?;
        }
        let mut table = write.open_table(INTENT_TABLE).map_err(|error| failed(error.into()))?;
        let mut digest = IntentDigest::default();
        if let Some(known) = table.get(DIGEST_KEY).map_err(|error| failed(error.into()))? {
            let known = <[u8; 32]>::try_from(known.value());
            digest = IntentDigest(known.map_err(|_| {
                self.with_store_context(damaged("the digest of what is kept is cut short"))
            })?);
        }
        for change in earlier.map(StoredIntent::into_change).iter().chain([change]) {
            for (key, value) in encode_rows(change)? {
                write_row(&mut table, &mut digest, &key, value.as_deref()).map_err(failed)?;
            }
        }
        table.insert(DIGEST_KEY, &digest.0[..]).map_err(|error| failed(error.into()))?;
        Ok(())
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl IntentStore for RedbStore {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        let loaded = self.use_database(|database| match self.load_document(database)? {
            Some(stored) => Ok(Some(stored)),
            None => self.load_rows(database),
        })?;
        if let Some(stored) = &loaded {
            self.copy.set_intent(stored.clone());
        }
        Ok(loaded)
    }

    fn save_change(&self, change: &IntentChange) -> Result<()> {
        self.use_database(|database| {
            let earlier = if change.replaces_all { None } else { self.load_document(database)? };
            let write = database.begin_write().map_err(|error| self.database_error(error))?;
            self.write_rows(&write, change, earlier)?;
            {
                let failed = |error: redb::Error| self.database_error(error);
                let mut table =
                    write.open_table(FORMAT_TABLE).map_err(|error| failed(error.into()))?;
                let format = json!({ "format": STORE_FORMAT }).to_string();
                table
                    .insert(FORMAT_KEY, format.as_bytes())
                    .map_err(|error| failed(error.into()))?;
            }
            write.commit().map_err(|error| self.database_error(error))
        })?;
        self.copy.apply_change(change);
        Ok(())
    }
}

/// Puts a row in, or takes it out.
fn write_row(
    table: &mut Table<'_, &'static str, &'static [u8]>,
    digest: &mut IntentDigest,
    key: &str,
    value: Option<&[u8]>,
) -> std::result::Result<(), redb::Error> {
    let before = match value {
        Some(value) => {
            digest.toggle_row(key, value);
            table.insert(key, value)?
        }
        None => table.remove(key)?,
    };
    if let Some(before) = before {
        digest.toggle_row(key, before.value());
    }
    Ok(())
}

/// The rows that a change writes, without a value where they are to be gone.
fn encode_rows(change: &IntentChange) -> Result<Vec<(String, Option<Vec<u8>>)>> {
    let unwritten = |error: serde_json::Error| Error::invalid(format!("{error}"));
    let mut rows = Vec::with_capacity(1 + change.put.len() + change.removed.len());
    if let Some(settings) = &change.settings {
        let value = serde_json::to_vec(settings).map_err(unwritten)?;
        rows.push((SETTINGS_KEY.to_owned(), Some(value)));
    }
    for name in &change.removed {
        rows.push((format!("{TASK_PREFIX}{name}"), None));
    }
    for (name, task) in &change.put {
        let value = serde_json::to_vec(task).map_err(unwritten)?;
        rows.push((format!("{TASK_PREFIX}{name}"), Some(value)));
    }
    Ok(rows)
}

/// What a row says, as a change of nothing.
fn decode_row(key: &str, value: &[u8]) -> Result<IntentChange> {
    let mut change = IntentChange::default();
    if key == SETTINGS_KEY {
        let settings: SystemSettings = serde_json::from_slice(value).map_err(damaged)?;
        change.settings = Some(settings);
    } else if let Some(name) = key.strip_prefix(TASK_PREFIX) {
        let task: StoredTask = serde_json::from_slice(value).map_err(damaged)?;
        change.put.insert(name.to_owned(), task);
    } else {
        return Err(damaged("there is a row that no version writes"));
    }
    Ok(change)
}

/// The intent of the first format; nothing where it is in rows.
fn decode_document(bytes: &[u8]) -> Result<Option<StoredIntent>> {
    let value: Value = serde_json::from_slice(bytes).map_err(damaged)?;
    match value.get("format").and_then(Value::as_u64) {
        Some(STORE_FORMAT) => Ok(None),
        Some(ONE_DOCUMENT) => StoredIntent::deserialize(value).map(Some).map_err(damaged),
        Some(other) => Err(Error::unsupported(format!(
            "it has format {other}, and this version of Tessera reads format {STORE_FORMAT} and \
             those before"
        ))),
        None => Err(damaged("it has no format")),
    }
}

fn damaged(error: impl fmt::Display) -> Error {
    Error::corrupt(format!("it is damaged: {error}"))
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
    use crate::intent::{System, TaskDefinition};
    use crate::store::{MemoryStore, TaskVersion};

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
            store.save_change(&StoredIntent::default().into_change()).unwrap();
            store.save_change(&example().into_change()).unwrap();
            assert_eq!(store.load_intent().unwrap(), Some(example()));
            let (more, expected) = changed();
            store.save_change(&more).unwrap();
            assert_eq!(store.load_intent().unwrap(), Some(expected));
        }
        assert_eq!(RedbStore::open(&path).unwrap().load_intent().unwrap(), Some(changed().1));
    }

    /// A change of the example, and what it comes to.
    fn changed() -> (IntentChange, StoredIntent) {
        let mut expected = example();
        let task = expected.system.tasks.remove("task1").unwrap();
        let version = expected.versions.remove("task1").unwrap();
        expected.system.tasks.insert("task2".to_owned(), task.clone());
        expected.versions.insert("task2".to_owned(), version.clone());
        expected.system.fusion = false;
        let stored = StoredTask { definition: task, version };
        let change = IntentChange {
            replaces_all: false,
            settings: Some(expected.system.settings()),
            put: [("task2".to_owned(), stored)].into(),
            removed: vec!["task1".to_owned(), "never there".to_owned()],
        };
        (change, expected)
    }

    fn put_row<'a>(
        store: &RedbStore,
        table: TableDefinition<'a, &str, &[u8]>,
        key: &str,
        value: &[u8],
    ) {
        let put = |database: &Database| {
            let write = database.begin_write().unwrap();
            write.open_table(table).unwrap().insert(key, value).unwrap();
            write.commit().unwrap();
            Ok(())
        };
        store.use_database(put).unwrap();
    }

    #[test]
    fn what_the_first_format_kept_is_loaded_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedbStore::open(folder.path().join("state.redb")).unwrap();
        let mut document = serde_json::to_value(example()).unwrap();
        document["format"] = json!(1);
        put_row(&store, FORMAT_TABLE, FORMAT_KEY, document.to_string().as_bytes());
        assert_eq!(store.load_intent().unwrap(), Some(example()));
        let (change, expected) = changed();
        store.save_change(&change).unwrap();
        assert_eq!(store.load_intent().unwrap(), Some(expected));
    }

    #[test]
    fn a_row_that_is_not_what_was_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedbStore::open(folder.path().join("state.redb")).unwrap();
        store.save_change(&example().into_change()).unwrap();
        let task = serde_json::to_string(&example().into_change().put["task1"]).unwrap();
        let other = task.replace("resnet", "resmet");
        for (key, value) in [
            ("task:task1", other.as_bytes()),
            ("task:task2", task.as_bytes()),
            (SETTINGS_KEY, &b"{\"fusion\": false}"[..]),
            (DIGEST_KEY, &[0; 32]),
            (DIGEST_KEY, &[0; 3]),
            ("odd", b"{}"),
        ] {
            let path = folder.path().join("copy.redb");
            std::fs::copy(&store.path, &path).unwrap();
            let copy = RedbStore::open(&path).unwrap();
            assert_eq!(copy.load_intent().unwrap(), Some(example()));
            put_row(&copy, INTENT_TABLE, key, value);
            let error = copy.load_intent().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{key}");
            assert!(error.to_string().contains("copy.redb: it is damaged"), "{error}");
        }
    }

    /// Bytes in which a database says where everything is.
    const HEAD_BYTES: u64 = 320;

    #[test]
    fn a_bit_that_flips_never_gives_another_intent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.redb");
        let mut stored = example();
        for number in 0..40 {
            let name = format!("task{number}");
            let definition = TaskDefinition::of_model(format!("model{number}"));
            stored.system.tasks.insert(name.clone(), definition);
            let content = ContentHash::of_content(name.as_bytes());
            stored.versions.insert(name, TaskVersion { number, content });
        }
        let store = RedbStore::open(&path).unwrap();
        // What was kept before is still somewhere in the file.
        store.save_change(&example().into_change()).unwrap();
        store.save_change(&stored.clone().into_change()).unwrap();
        drop(store);
        let copy: System =
            serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
        assert_eq!(copy, stored.system);
        let whole = std::fs::read(&path).unwrap();
        let mut random = tessera_core::Random::new(7);
        let (mut refused, mut unharmed) = (0, 0);
        // Every bit of the beginning, which says where the rest is, and some of the others.
        for number in 0..8 * HEAD_BYTES + 300 {
            let mut bytes = whole.clone();
            let (place, bit) = match number / 8 {
                place if place < HEAD_BYTES => (place, number % 8),
                _ => (random.next_below(bytes.len() as u64), random.next_below(8)),
            };
            let place = place as usize;
            bytes[place] ^= 1 << bit;
            std::fs::write(&path, bytes).unwrap();
            match RedbStore::open(&path).and_then(|store| store.load_intent()) {
                Ok(loaded) => {
                    assert_eq!(loaded, Some(stored.clone()), "byte {place}");
                    unharmed += 1;
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("state.redb"), "{message}");
                    refused += 1;
                }
            }
        }
        // Much of the file is unused.
        assert!(refused > 3 && unharmed > 100, "{refused} refused, {unharmed} unharmed");
    }

    #[test]
    fn damage_is_reported_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.redb");
        let store = RedbStore::open(&path).unwrap();
        store.save_change(&example().into_change()).unwrap();
        put_row(&store, INTENT_TABLE, "task:task1", b"{}");
        let message = store.load_intent().unwrap_err().to_string();
        assert!(message.contains("it is damaged") && message.contains("move it away"), "{message}");
        drop(store);
        let message = RedbStore::open(&path).unwrap().load_intent().unwrap_err().to_string();
        assert!(message.contains("state.json, its last copy"), "{message}");
    }

    #[test]
    fn what_replaces_all_leaves_nothing_of_before_and_mends_damage() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedbStore::open(folder.path().join("state.redb")).unwrap();
        store.save_change(&example().into_change()).unwrap();
        put_row(&store, INTENT_TABLE, "task:task1", b"{}");
        put_row(&store, INTENT_TABLE, "task:other", b"{}");
        assert!(store.load_intent().is_err());
        let (_, other) = changed();
        store.save_change(&other.clone().into_change()).unwrap();
        assert_eq!(store.load_intent().unwrap(), Some(other));
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
        let error = decode_document(b"{\"format\": 3}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for damaged in ["", "{", "{}", "{\"format\": 1}", "{\"format\": 1, \"system\": {}}"] {
            assert_eq!(decode_document(damaged.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
