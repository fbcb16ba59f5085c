//! Intent in a file: it is what was written, or it is refused.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::intent::{System, TaskDefinition};
use crate::store::{IntentChange, IntentRows, IntentStore, MemoryStore, StoredTask, TaskVersion};

/// Intent in a file, with the file's rows.
struct RedbStore {
    rows: Arc<RedbRows>,
    intent: IntentRows,
}

impl RedbStore {
    fn open(path: impl AsRef<Path>) -> Result<Self> {
        let rows = Arc::new(RedbRows::open(&path)?);
        let intent = IntentRows::with_copy_beside(Arc::clone(&rows) as _, path.as_ref());
        Ok(Self { rows, intent })
    }
}

impl Deref for RedbStore {
    type Target = IntentRows;

    fn deref(&self) -> &IntentRows {
        &self.intent
    }
}

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
        [Box::new(MemoryStore::default()), Box::new(RedbStore::open(&path).unwrap().intent)];
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
    store.rows.use_database(put).unwrap();
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
        ("settings", &b"{\"fusion\": false}"[..]),
        (DIGEST_KEY, &[0; 32]),
        (DIGEST_KEY, &[0; 3]),
        ("odd", b"{}"),
    ] {
        let path = folder.path().join("copy.redb");
        std::fs::copy(store.rows.path(), &path).unwrap();
        let copy = RedbStore::open(&path).unwrap();
        assert_eq!(copy.load_intent().unwrap(), Some(example()));
        put_row(&copy, space_table(RowSpace::Intent), key, value);
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
    put_row(&store, space_table(RowSpace::Intent), "task:task1", b"{}");
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
    put_row(&store, space_table(RowSpace::Intent), "task:task1", b"{}");
    put_row(&store, space_table(RowSpace::Intent), "task:other", b"{}");
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
    let message = RedbStore::open(&path).err().unwrap().to_string();
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
        let error = RedbStore::open(&path).err().unwrap();
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
