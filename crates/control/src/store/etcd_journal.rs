//! Changes that are too large for one transaction of etcd, made as a whole nevertheless.
//!
//! They are written down first, in as many transactions as it takes: a key
//! `journal/SPACE/entries/WRITE/put/KEY` or `…/remove/KEY` for each row. A transaction that makes
//! `journal/SPACE/committed`, which names the write, commits them all. Then they are carried out
//! and removed, in parts; the mark goes last. Whoever loads rows finishes a journal with a mark,
//! and drops one without. As each row occurs once, it makes no difference how much of it is carried
//! out twice.

use tessera_core::Result;
use tessera_etcd::{KeyRecord, Transaction};

use super::etcd_space::{EtcdSpace, LARGEST_BYTES, LARGEST_TRANSACTION, NetChange, Written};

/// Go before the key of a row, in an entry of the journal.
const PUT: &str = "put/";
const REMOVE: &str = "remove/";
/// Entries that are carried out at once: two operations each.
const APPLIED_ENTRIES: u32 = LARGEST_TRANSACTION as u32 / 2;

impl EtcdSpace {
    /// Writes a change down, commits it, and carries it out.
    pub(super) async fn write_with_journal(
        &mut self,
        change: &NetChange,
        write: &str,
    ) -> Result<Written> {
        if let Written::HeadMoved = self.write_entries(change, write).await? {
            return Ok(Written::HeadMoved);
        }
        if let Written::HeadMoved = self.commit_entries(write).await? {
            return Ok(Written::HeadMoved);
        }
        // It is kept from here on, whatever happens: the next load or write finishes it.
        if let Err(error) = self.finish_committed().await {
            tracing::warn!("a large change is kept, and is carried out later: {error}");
            self.head = None;
        }
        Ok(Written::Done)
    }

    /// Writes all entries of a change.
    pub(super) async fn write_entries(
        &mut self,
        change: &NetChange,
        write: &str,
    ) -> Result<Written> {
        let entries = self.write_entries_prefix(write);
        let put = change.put.iter().map(|(key, value)| (format!("{entries}{PUT}{key}"), value));
        let nothing = bytes::Bytes::new();
        let removed = change.removed.iter();
        let removed = removed.map(|key| (format!("{entries}{REMOVE}{key}"), &nothing));
        let (mut part, mut count, mut bytes) = (self.guarded_write(), 0, 0);
        for (key, value) in put.chain(removed) {
            let size = key.len() + value.len();
            if count == LARGEST_TRANSACTION || (count > 0 && bytes + size > LARGEST_BYTES) {
                if !self.client.commit(&part).await?.is_done {
                    return Ok(Written::HeadMoved);
                }
                (part, count, bytes) = (self.guarded_write(), 0, 0);
            }
            part.put(&key, value.clone());
            (count, bytes) = (count + 1, bytes + size);
        }
        let is_done = self.client.commit(&part).await?.is_done;
        Ok(if is_done { Written::Done } else { Written::HeadMoved })
    }

    /// Marks entries as what is to be carried out.
    pub(super) async fn commit_entries(&mut self, write: &str) -> Result<Written> {
        let mut commit = self.guarded_write();
        commit.put(&self.keys.mark, write.to_owned());
        self.move_head(commit, write).await
    }

    async fn finish_committed(&mut self) -> Result<()> {
        match self.client.read_key(&self.keys.mark).await? {
            Some(mark) => self.finish_journal(&mark).await,
            None => Ok(()),
        }
    }

    /// Carries out the entries that a mark names, and removes them and the mark.
    pub(super) async fn finish_journal(&mut self, mark: &KeyRecord) -> Result<()> {
        let entries = self.write_entries_prefix(&String::from_utf8_lossy(&mark.value));
        loop {
            let mut look = Transaction::new();
            look.if_created_at(&self.keys.mark, mark.create_revision)
                .read_prefix(&entries, APPLIED_ENTRIES);
            let mut page = self.client.commit(&look).await?;
            let records = match page.reads.pop() {
                Some(page_read) if page.is_done => page_read.records,
                // It is finished: a transaction that was not answered was carried out.
                _ => return Ok(()),
            };
            let mut apply = Transaction::guarded_by(&self.guard);
            apply.if_created_at(&self.keys.mark, mark.create_revision);
            if records.is_empty() {
                apply.remove(&self.keys.mark).remove_prefix(&self.keys.entries);
                return self.client.commit(&apply).await.map(drop);
            }
            let mut bytes = 0;
            for record in &records {
                bytes += 2 * record.key.len() + record.value.len();
                if bytes > LARGEST_BYTES && record.key != records[0].key {
                    break;
                }
                self.apply_entry(&mut apply, record, &entries);
            }
            self.client.commit(&apply).await?;
        }
    }

    fn apply_entry(&self, apply: &mut Transaction, entry: &KeyRecord, entries: &str) {
        let name = entry.key.strip_prefix(entries).unwrap_or_default();
        let row = |key: &str| format!("{}{key}", self.keys.rows);
        if let Some(key) = name.strip_prefix(PUT) {
            apply.put(&row(key), entry.value.clone());
        } else if let Some(key) = name.strip_prefix(REMOVE) {
            apply.remove(&row(key));
        }
        apply.remove(&entry.key);
    }

    /// Drops all entries of the write that this one is of; it is not marked as what is to be
    /// carried out. Those of others stay: should etcd be late, they may be written by then.
    pub(super) async fn drop_journal(&mut self, entry: &KeyRecord) -> Result<()> {
        let name = entry.key.strip_prefix(&self.keys.entries).unwrap_or_default();
        let write = name.split('/').next().unwrap_or_default();
        let mut remove = Transaction::guarded_by(&self.guard);
        remove.if_created_at(&self.keys.mark, 0).remove_prefix(&self.write_entries_prefix(write));
        self.client.commit(&remove).await.map(drop)
    }

    /// What entries of a write have before them.
    fn write_entries_prefix(&self, write: &str) -> String {
        format!("{}{write}/", self.keys.entries)
    }
}
