//! Keys, and changes of several of them at once.

use bytes::Bytes;
use tessera_core::{Error, Result};

use crate::leader_guard::LeaderGuard;
use crate::wire::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::wire::request_op::Request;
use crate::wire::response_op::Response;
use crate::wire::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse,
};

/// A key, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key.
    pub key: String,
    /// What it has.
    pub value: Bytes,
    /// The revision at which it was made: of all keys, so it says which was made first.
    pub create_revision: i64,
    /// The revision at which it was last changed.
    pub mod_revision: i64,
}

/// Keys that were read at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys, by their names.
    pub records: Vec<KeyRecord>,
    /// Whether there are more than these.
    pub has_more: bool,
}

/// Changes and reads that are carried out at once, where what is compared holds.
///
/// etcd refuses a transaction that changes a key twice, one of more than 128 operations, and one of
/// more than 1.5 MiB.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    request: TxnRequest,
    guard: Option<LeaderGuard>,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionOutcome {
    /// Whether it was carried out; what was compared did not hold otherwise.
    pub is_done: bool,
    /// The revision after it.
    pub revision: i64,
    /// What was read, in order: by [`read`](Transaction::read) and
    /// [`read_prefix`](Transaction::read_prefix) where it was carried out, by
    /// [`otherwise_read`](Transaction::otherwise_read) where it was not.
    pub reads: Vec<KeyPage>,
}

impl Transaction {
    /// One that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that is carried out for as long as the leader leads.
    pub fn guarded_by(guard: &LeaderGuard) -> Self {
        let mut transaction = Self { guard: Some(guard.clone()), ..Self::default() };
        transaction.if_created_at(guard.key(), guard.epoch()).otherwise_read(guard.key());
        transaction
    }

    /// Only if `key` was made at this revision; at 0: only if there is no such key.
    pub fn if_created_at(&mut self, key: &str, revision: i64) -> &mut Self {
        self.compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
    }

    /// Only if `key` was last changed at this revision; at 0: only if there is no such key.
    pub fn if_changed_at(&mut self, key: &str, revision: i64) -> &mut Self {
        self.compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
    }

    /// Gives `key` a value.
    pub fn put(&mut self, key: &str, value: impl Into<Bytes>) -> &mut Self {
        self.put_with_lease(key, value, 0)
    }

    /// Gives `key` a value, for as long as a lease lasts.
    pub(crate) fn put_with_lease(
        &mut self,
        key: &str,
        value: impl Into<Bytes>,
        lease: i64,
    ) -> &mut Self {
        let put = PutRequest { key: key.to_owned().into(), value: value.into(), lease };
        self.request.success.push(operation(Request::RequestPut(put)));
        self
    }

    /// Removes `key`, where there is one.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.remove_range(key, Bytes::new())
    }

    /// Removes all keys that begin with `prefix`.
    pub fn remove_prefix(&mut self, prefix: &str) -> &mut Self {
        self.remove_range(prefix, prefix_end(prefix))
    }

    /// Reads `key`.
    pub fn read(&mut self, key: &str) -> &mut Self {
        self.request.success.push(operation(Request::RequestRange(one_key(key))));
        self
    }

    /// Reads keys that begin with `prefix`, as many as `limit` at most.
    pub fn read_prefix(&mut self, prefix: &str, limit: u32) -> &mut Self {
        let limit = i64::from(limit);
        let range = RangeRequest { range_end: prefix_end(prefix), limit, ..one_key(prefix) };
        self.request.success.push(operation(Request::RequestRange(range)));
        self
    }

    /// Reads `key` where the transaction is not carried out.
    pub fn otherwise_read(&mut self, key: &str) -> &mut Self {
        self.request.failure.push(operation(Request::RequestRange(one_key(key))));
        self
    }

    pub(crate) fn request(&self) -> &TxnRequest {
        &self.request
    }

    /// Adds a read with a range of any kind.
    pub(crate) fn read_range(&mut self, range: RangeRequest) -> &mut Self {
        self.request.success.push(operation(Request::RequestRange(range)));
        self
    }

    /// Refuses what a leader that is none any more wants to do, as far as it knows by itself.
    pub(crate) fn check_guard(&self) -> Result<()> {
        match &self.guard {
            Some(guard) if !guard.is_held() => Err(guard.lost_error()),
            _ => Ok(()),
        }
    }

    /// What etcd answered; an error where the guard did not hold.
    pub(crate) fn read_outcome(&self, answer: TxnResponse) -> Result<TransactionOutcome> {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let pages =
            answer.responses.into_iter().filter_map(|ResponseOp { response }| match response {
                Some(Response::ResponseRange(range)) => Some(KeyPage::read(range)),
                _ => None,
            });
        let mut reads = pages.collect::<Result<Vec<_>>>()?;
        if let (Some(guard), false) = (&self.guard, answer.succeeded) {
            // The guard's read comes before all others.
            let leader = if reads.is_empty() { KeyPage::default() } else { reads.remove(0) };
            let is_leader = |record: &KeyRecord| record.create_revision == guard.epoch();
            if !leader.records.first().is_some_and(is_leader) {
                guard.give_up();
                return Err(guard.lost_error());
            }
        }
        Ok(TransactionOutcome { is_done: answer.succeeded, revision, reads })
    }

    fn compare(&mut self, key: &str, target: CompareTarget, union: TargetUnion) -> &mut Self {
        self.request.compare.push(Compare {
            result: CompareResult::Equal.into(),
            target: target.into(),
            key: key.to_owned().into(),
            target_union: Some(union),
        });
        self
    }

    fn remove_range(&mut self, key: &str, range_end: Bytes) -> &mut Self {
        let range = DeleteRangeRequest { key: key.to_owned().into(), range_end };
        self.request.success.push(operation(Request::RequestDeleteRange(range)));
        self
    }
}

impl KeyPage {
    pub(crate) fn read(range: RangeResponse) -> Result<Self> {
        let records = range.kvs.into_iter().map(KeyRecord::read).collect::<Result<_>>()?;
        Ok(Self { records, has_more: range.more })
    }
}

impl KeyRecord {
    fn read(found: KeyValue) -> Result<Self> {
        let KeyValue { key, value, create_revision, mod_revision, .. } = found;
        let key = String::from_utf8(key.into()).map_err(|error| {
            let key = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Error::corrupt(format!("etcd has a key that is no text: {key:?}"))
        })?;
        Ok(Self { key, value, create_revision, mod_revision })
    }
}

/// The first key behind all that begin with `prefix`.
pub(crate) fn prefix_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end.into();
        }
    }
    // Every key is behind nothing: up to the last.
    Bytes::from_static(b"\0")
}

fn one_key(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        assert_eq!(prefix_end("rows/"), "rows0");
        assert_eq!(prefix_end(""), &b"\0"[..]);
    }
}
