//! The rows of one space in etcd.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tessera_core::{Error, ErrorKind, Result};
use tessera_etcd::{EtcdClient, KeyRecord, LeaderGuard, Transaction, TransactionOutcome};

use super::row_store::{RowChange, RowMap, RowSpace};

/// Rows that one transaction changes at most: etcd takes 128 operations.
pub(super) const LARGEST_TRANSACTION: usize = 100;
/// Bytes that it writes at most, unless one row is larger: etcd takes 1.5 MiB.
pub(super) const LARGEST_BYTES: usize = 1 << 20;
/// Bytes that one row has at most, with its key.
const LARGEST_ROW: usize = 5 << 18;
/// How often something is tried anew that something got in the way of: a write before it that etcd
/// has not answered, a revision that was compacted.
const TRIES: usize = 4;

/// Journals that are finished or dropped at most before it is said that something is wrong: a
/// leader leaves one behind, and few where etcd answers nothing for long.
const JOURNALS: usize = 64;

/// The rows of a space, as the leader sees them.
pub(super) struct EtcdSpace {
    pub(super) client: EtcdClient,
    pub(super) guard: LeaderGuard,
    pub(super) keys: SpaceKeys,
    /// The revision of the last write, 0 where there was none; unknown at first, and after a write
    /// of which it is not known what became of it.
    pub(super) head: Option<i64>,
    /// What nobody else's writes are called.
    writer: String,
    writes: u64,
}

/// Where a space is in etcd.
pub(super) struct SpaceKeys {
    /// Goes before the keys of rows.
    pub(super) rows: String,
    /// Says which write was the last.
    pub(super) head: String,
    /// Says which entries of the journal are to be carried out.
    pub(super) mark: String,
    /// Goes before all entries of the journal.
    pub(super) entries: String,
}

/// What several changes come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NetChange {
    pub(super) put: BTreeMap<String, Bytes>,
    pub(super) removed: BTreeSet<String>,
    /// Whether all rows but those that are put go.
    removes_all: bool,
}

/// A space without a change on its way, as it was at a revision.
struct Settled {
    revision: i64,
    was_written: bool,
}

/// What became of a write.
pub(super) enum Written {
    Done,
    /// The head is not the one that was known.
    HeadMoved,
}

impl EtcdSpace {
    pub(super) fn new(
        client: EtcdClient,
        guard: LeaderGuard,
        prefix: &str,
        space: RowSpace,
        writer: &str,
    ) -> Self {
        let name = space.name();
        let keys = SpaceKeys {
            rows: format!("{prefix}/rows/{name}/"),
            head: format!("{prefix}/heads/{name}"),
            mark: format!("{prefix}/journal/{name}/committed"),
            entries: format!("{prefix}/journal/{name}/entries/"),
        };
        Self { client, guard, keys, head: None, writer: writer.to_owned(), writes: 0 }
    }

    /// All rows; `None` where nothing was ever written.
    pub(super) async fn load(&mut self) -> Result<Option<RowMap>> {
        for _ in 0..TRIES {
            let settled = self.settle().await?;
            if !settled.was_written {
                return Ok(None);
            }
            if let Some(rows) = self.rows_at(settled.revision).await? {
                return Ok(Some(rows));
            }
        }
        Err(Error::timed_out("the rows changed for as long as they were read"))
    }

    /// Makes all of these changes, or none.
    pub(super) async fn save(&mut self, changes: &[RowChange]) -> Result<()> {
        let saved = self.write_changes(changes).await;
        if saved.is_err() {
            self.head = None;
        }
        saved
    }

    async fn write_changes(&mut self, changes: &[RowChange]) -> Result<()> {
        let asked = NetChange::of_changes(changes);
        asked.check_rows()?;
        for _ in 0..TRIES {
            if self.head.is_none() {
                self.settle().await?;
            }
            let mut change = asked.clone();
            if change.removes_all {
                // Should they change meanwhile, so does the head.
                match self.newest_rows().await? {
                    Some(rows) => change.remove_others(rows),
                    None => continue,
                }
            }
            let write = self.name_write();
            let written = if change.fits_transaction() {
                self.write_at_once(&change, &write).await?
            } else {
                self.write_with_journal(&change, &write).await?
            };
            match written {
                Written::Done => return Ok(()),
                Written::HeadMoved => self.head = None,
            }
        }
        Err(Error::timed_out("others wrote for as long as this was tried"))
    }

    /// A name for one try of a write. What is late of another try never meets it.
    pub(super) fn name_write(&mut self) -> String {
        self.writes += 1;
        format!("{:x}-{}-{}", self.guard.epoch(), self.writer, self.writes)
    }

    /// All rows as they are now; `None` where etcd has compacted that meanwhile.
    async fn newest_rows(&self) -> Result<Option<RowMap>> {
        let now = self.client.commit(Transaction::new().read(&self.keys.head)).await?;
        self.rows_at(now.revision).await
    }

    /// All rows as they were at a revision; `None` where etcd has it no more.
    async fn rows_at(&self, revision: i64) -> Result<Option<RowMap>> {
        match self.client.read_prefix_at(&self.keys.rows, revision).await {
            Ok(records) => Ok(Some(self.read_rows(records))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a change in one transaction.
    async fn write_at_once(&mut self, change: &NetChange, write: &str) -> Result<Written> {
        let mut transaction = self.guarded_write();
        for (key, value) in &change.put {
            transaction.put(&format!("{}{key}", self.keys.rows), value.clone());
        }
        for key in &change.removed {
            transaction.remove(&format!("{}{key}", self.keys.rows));
        }
        self.move_head(transaction, write).await
    }

    /// A transaction that is carried out where the head is the one that is known.
    pub(super) fn guarded_write(&self) -> Transaction {
        let mut transaction = Transaction::guarded_by(&self.guard);
        transaction
            .if_changed_at(&self.keys.head, self.head.unwrap_or_default())
            .otherwise_read(&self.keys.head);
        transaction
    }

    /// Carries out a write, which becomes the last with that.
    pub(super) async fn move_head(
        &mut self,
        mut transaction: Transaction,
        write: &str,
    ) -> Result<Written> {
        transaction.put(&self.keys.head, write.to_owned());
        let outcome = self.client.commit(&transaction).await?;
        let moved_at = match first_record(&outcome) {
            _ if outcome.is_done => outcome.revision,
            // etcd was asked twice, as it did not answer at first.
            Some(head) if head.value == write => head.mod_revision,
            _ => return Ok(Written::HeadMoved),
        };
        self.head = Some(moved_at);
        Ok(Written::Done)
    }

    /// Finishes a change that was on its way, or drops it where it was not marked as committed.
    async fn settle(&mut self) -> Result<Settled> {
        for _ in 0..JOURNALS {
            let mut look = Transaction::new();
            look.read(&self.keys.mark).read(&self.keys.head).read_prefix(&self.keys.entries, 1);
            let outcome = self.client.commit(&look).await?;
            let [mark, head, entries] = &outcome.reads[..] else {
                return Err(Error::invalid("etcd has not read what it was asked for"));
            };
            if let Some(mark) = mark.records.first() {
                self.finish_journal(mark).await?;
                continue;
            }
            if let Some(entry) = entries.records.first() {
                self.drop_journal(entry).await?;
                continue;
            }
            let head = head.records.first();
            self.head = Some(head.map_or(0, |head| head.mod_revision));
            return Ok(Settled { revision: outcome.revision, was_written: head.is_some() });
        }
        Err(Error::timed_out("there are more journals than anybody leaves behind"))
    }

    /// Rows by their own keys.
    fn read_rows(&self, records: Vec<KeyRecord>) -> RowMap {
        let rows = records.into_iter().filter_map(|record| {
            let key = record.key.strip_prefix(&self.keys.rows)?;
            Some((key.to_owned(), record.value.to_vec()))
        });
        rows.collect()
    }
}

impl NetChange {
    /// What changes come to, one after the other: etcd changes a key once in a transaction.
    pub(super) fn of_changes(changes: &[RowChange]) -> Self {
        let mut net = Self::default();
        for change in changes {
            match change {
                RowChange::Put(key, value) => {
                    net.removed.remove(key);
                    net.put.insert(key.clone(), value.clone().into());
                }
                RowChange::Remove(key) => {
                    net.put.remove(key);
                    net.removed.insert(key.clone());
                }
                RowChange::RemoveAll => net = Self { removes_all: true, ..Self::default() },
            }
        }
        net
    }

    /// Removes those of `rows` that are not put.
    fn remove_others(&mut self, rows: RowMap) {
        self.removed = rows.into_keys().filter(|key| !self.put.contains_key(key)).collect();
    }

    /// Refuses rows that etcd would not take, by their names.
    fn check_rows(&self) -> Result<()> {
        match self.put.iter().find(|(key, value)| key.len() + value.len() > LARGEST_ROW) {
            None => Ok(()),
            Some((key, value)) => Err(Error::unsupported(format!(
                "row {key:?} has {} bytes, expected {LARGEST_ROW} at most in etcd",
                value.len()
            ))),
        }
    }

    fn fits_transaction(&self) -> bool {
        let bytes = self.put.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
            + self.removed.iter().map(String::len).sum::<usize>();
        self.put.len() + self.removed.len() <= LARGEST_TRANSACTION && bytes <= LARGEST_BYTES
    }
}

/// The first key that was read.
pub(super) fn first_record(outcome: &TransactionOutcome) -> Option<&KeyRecord> {
    outcome.reads.first()?.records.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_to_one_for_each_key() {
        let put = |key: &str, value: &str| RowChange::Put(key.to_owned(), value.into());
        let remove = |key: &str| RowChange::Remove(key.to_owned());
        let net =
            NetChange::of_changes(&[put("a", "1"), put("b", "1"), remove("a"), put("b", "2")]);
        assert_eq!(net.put, [("b".to_owned(), "2".into())].into());
        assert_eq!(net.removed, ["a".to_owned()].into());
        let mut net = NetChange::of_changes(&[put("a", "1"), RowChange::RemoveAll, put("b", "3")]);
        assert!(net.removes_all && net.removed.is_empty());
        net.remove_others(["b", "c"].map(|key| (key.to_owned(), Vec::new())).into());
        assert_eq!(net.removed, ["c".to_owned()].into());
        assert!(net.fits_transaction());
        net.put.insert("large".to_owned(), vec![0; LARGEST_BYTES].into());
        assert!(!net.fits_transaction());
    }
}
