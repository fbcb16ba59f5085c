//! Rows in a file.
//!
//! A digest over all rows of a space tells whether they are those that were written: the database
//! checks itself only after a crash.

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

use super::intent_rows::encode_rows;
use super::intent_store::StoredIntent;
use super::row_store::{RowChange, RowMap, RowSpace, RowStore};

/// Says which format there is; the intent itself in the first.
const FORMAT_TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("tessera");
const FORMAT_KEY: &str = "intent";
/// Goes up whenever what is written can't be read by the versions before.
const STORE_FORMAT: u64 = 2;
/// The first format: one document with everything.
const ONE_DOCUMENT: u64 = 1;

/// The row of every space with the digest of all others.
const DIGEST_KEY: &str = "digest";

/// The table of a space.
fn space_table(space: RowSpace) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(space.name())
}

/// What a digest has of every row: the order in which they were written makes no difference.
#[derive(Clone, Copy, Default, PartialEq)]
struct RowDigest([u8; 32]);

impl RowDigest {
    /// Adds a row, or takes it out again.
    fn toggle_row(&mut self, key: &str, value: &[u8]) {
        let row = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), value].concat();
        for (mine, other) in self.0.iter_mut().zip(ContentHash::of_content(&row).as_bytes()) {
            *mine ^= other;
        }
    }
}

/// Keeps rows in a file.
pub struct RedbRows {
    /// `None` where the last use failed: it is opened anew for the next, as a database that could
    /// not write once refuses to ever after.
    database: Mutex<Option<Database>>,
    path: PathBuf,
}

impl RedbRows {
    /// Opens the store at `path`, or makes a new one there. It is this server's alone until it is
    /// dropped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::from_io(format!("create {}", folder.display()), &error))?;
        }
        let store = Self { database: Mutex::default(), path: path.to_owned() };
        store.use_database(|_| Ok(()))?;
        Ok(store)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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
        worked
    }

    fn database_error(&self, error: impl Into<redb::Error>) -> Error {
        database_error_at(&self.path, error)
    }

    fn with_store_context(&self, error: Error) -> Error {
        error.with_context(format!("store {}", self.path.display()))
    }

    /// What the first format kept, as rows, where that is what there is.
    fn load_document(&self, database: &Database) -> Result<Option<Vec<RowChange>>> {
        let read = database.begin_read().map_err(|error| self.database_error(error))?;
        let table = match read.open_table(FORMAT_TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.database_error(error)),
        };
        let found = table.get(FORMAT_KEY).map_err(|error| self.database_error(error))?;
        let Some(found) = found else { return Ok(None) };
        let stored = decode_document(found.value());
        let stored = stored.map_err(|error| self.with_store_context(error))?;
        stored.map(|stored| encode_rows(&stored.into_change())).transpose()
    }

    fn read_table(&self, database: &Database, space: RowSpace) -> Result<Option<RowMap>> {
        let read = database.begin_read().map_err(|error| self.database_error(error))?;
        let table = match read.open_table(space_table(space)) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.database_error(error)),
        };
        let (mut rows, mut digest, mut expected) = (RowMap::new(), RowDigest::default(), None);
        for row in table.iter().map_err(|error| self.database_error(error))? {
            let (key, value) = row.map_err(|error| self.database_error(error))?;
            let (key, value) = (key.value(), value.value());
            if key == DIGEST_KEY {
                expected = Some(value.to_vec());
                continue;
            }
            digest.toggle_row(key, value);
            rows.insert(key.to_owned(), value.to_vec());
        }
        if expected.as_deref() != Some(&digest.0[..]) {
            let error = damaged("what is kept is not what was written");
            return Err(self.with_store_context(error));
        }
        Ok(Some(rows))
    }

    /// Writes changes of the rows of a space, and what was kept in the first format before.
    fn write_changes(
        &self,
        write: &WriteTransaction,
        space: RowSpace,
        changes: &[RowChange],
    ) -> Result<()> {
        let failed = |error: redb::Error| self.database_error(error);
        // What comes before it is of no use; the table is gone with whatever damage it had.
        let cleared = changes.iter().rposition(|change| *change == RowChange::RemoveAll);
        let changes = match cleared {
            Some(last) => {
                let removed = write.delete_table(space_table(space));
                removed.map_err(|error| failed(error.into()))?;
                &changes[last + 1..]
            }
            None => changes,
        };
        let mut table =
            write.open_table(space_table(space)).map_err(|error| failed(error.into()))?;
        let mut digest = RowDigest::default();
        if let Some(known) = table.get(DIGEST_KEY).map_err(|error| failed(error.into()))? {
            let known = <[u8; 32]>::try_from(known.value());
            digest = RowDigest(known.map_err(|_| {
                self.with_store_context(damaged("the digest of what is kept is cut short"))
            })?);
        }
        for change in changes {
            let (key, value) = match change {
                RowChange::Put(key, value) => (key, Some(&value[..])),
                RowChange::Remove(key) => (key, None),
                RowChange::RemoveAll => continue,
            };
            write_row(&mut table, &mut digest, key, value).map_err(failed)?;
        }
        table.insert(DIGEST_KEY, &digest.0[..]).map_err(|error| failed(error.into()))?;
        Ok(())
    }

    fn write_format(&self, write: &WriteTransaction) -> Result<()> {
        let failed = |error: redb::Error| self.database_error(error);
        let mut table = write.open_table(FORMAT_TABLE).map_err(|error| failed(error.into()))?;
        let format = json!({ "format": STORE_FORMAT }).to_string();
        table.insert(FORMAT_KEY, format.as_bytes()).map_err(|error| failed(error.into()))?;
        Ok(())
    }
}

impl fmt::Debug for RedbRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbRows").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RowStore for RedbRows {
    fn load_rows(&self, space: RowSpace) -> Result<Option<RowMap>> {
        self.use_database(|database| {
            match self.load_document(database)?.filter(|_| space == RowSpace::Intent) {
                None => self.read_table(database, space),
                Some(rows) => {
                    let rows = rows.into_iter().filter_map(|row| match row {
                        RowChange::Put(key, value) => Some((key, value)),
                        RowChange::Remove(_) | RowChange::RemoveAll => None,
                    });
                    Ok(Some(rows.collect()))
                }
            }
        })
    }

    fn save_rows(&self, space: RowSpace, changes: &[RowChange]) -> Result<()> {
        self.use_database(|database| {
            let is_replaced = space == RowSpace::Intent && changes.contains(&RowChange::RemoveAll);
            let earlier = if is_replaced { None } else { self.load_document(database)? };
            let write = database.begin_write().map_err(|error| self.database_error(error))?;
            if let Some(earlier) = earlier {
                self.write_changes(&write, RowSpace::Intent, &earlier)?;
            }
            self.write_changes(&write, space, changes)?;
            self.write_format(&write)?;
            write.commit().map_err(|error| self.database_error(error))
        })
    }
}

/// Puts a row in, or takes it out.
fn write_row(
    table: &mut Table<'_, &'static str, &'static [u8]>,
    digest: &mut RowDigest,
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
#[path = "redb_tests.rs"]
mod tests;
