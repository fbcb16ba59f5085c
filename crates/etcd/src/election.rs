//! Which of several candidates leads.
//!
//! Each has a key of its own under a prefix, for as long as its lease lasts. The one whose key was
//! made first leads; each other waits for the one before it to go.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, stream};
use tessera_core::{Error, ErrorKind, Result};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::Channel;

use crate::client::EtcdClient;
use crate::leader_guard::LeaderGuard;
use crate::lease::{Lease, with_leader};
use crate::transaction::{KeyPage, KeyRecord, Transaction, prefix_end};
use crate::wire::event::EventType;
use crate::wire::range_request::{SortOrder, SortTarget};
use crate::wire::watch_client::WatchClient;
use crate::wire::watch_create_request::FilterType;
use crate::wire::watch_request::RequestUnion;
use crate::wire::{RangeRequest, WatchCreateRequest, WatchRequest};

/// How long a leader that is gone leads on, unless it resigns.
const DEFAULT_TTL: Duration = Duration::from_secs(5);
/// How often a candidate looks who is before it, should etcd not say.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Somebody who would lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Under which keys the candidates are; the same for all of them.
    pub prefix: String,
    /// What it says of itself, for those who look for the leader.
    pub value: Vec<u8>,
    /// How long it leads on once etcd does not hear of it any more. etcd counts whole seconds, and
    /// has a least, which follows from its election timeout.
    pub ttl: Duration,
}

/// The right to lead, which is this process's until it is lost.
///
/// Dropped, it runs out after its time; [`resign`](Self::resign) lets the next one lead at once.
pub struct Leadership {
    guard: LeaderGuard,
    lease: Lease,
}

/// Who leads, for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderRecord {
    /// The leader's key.
    pub key: String,
    /// Which leadership it is: the next has a higher one.
    pub epoch: i64,
    /// What the leader says of itself.
    pub value: Bytes,
}

impl Candidate {
    /// A candidate that leads on for five seconds once etcd does not hear of it any more.
    pub fn new(prefix: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), value: value.into(), ttl: DEFAULT_TTL }
    }

    /// The key of the candidate with this lease.
    fn key(&self, lease: i64) -> String {
        format!("{}{lease:x}", election_prefix(&self.prefix))
    }
}

impl Leadership {
    /// Waits until the candidate leads, for as long as that takes.
    ///
    /// Fails where etcd does not answer for long enough that the candidate loses its place; it may
    /// try again then.
    pub async fn campaign(client: &EtcdClient, candidate: &Candidate) -> Result<Self> {
        let lease = Lease::grant(client, candidate.ttl).await?;
        let key = candidate.key(lease.id());
        let epoch = enter_candidate(client, &key, &candidate.value, lease.id()).await?;
        let guard = LeaderGuard::new(key.into(), epoch, Arc::clone(lease.term()));
        loop {
            let before = match place_before(client, &candidate.prefix, &guard).await {
                Ok(Place::First) if guard.is_held() => return Ok(Self { guard, lease }),
                Ok(Place::Behind(before)) => Some(before),
                Ok(Place::First | Place::Gone) => return Err(lost_place(guard.key())),
                // Perhaps somebody else answers before the lease is lost.
                Err(error) if is_passing(&error) => None,
                Err(error) => return Err(error),
            };
            let change = wait_for_change(client, before);
            if let Either::Right(_) = select(Box::pin(change), Box::pin(guard.lost())).await {
                return Err(lost_place(guard.key()));
            }
        }
    }

    /// Whether this process leads, by the clock as it is now.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// The leader's key.
    pub fn key(&self) -> &str {
        self.guard.key()
    }

    /// Which leadership it is: the revision at which the leader's key was made. The next has a
    /// higher one.
    pub fn epoch(&self) -> i64 {
        self.guard.epoch()
    }

    /// For whoever acts in the leader's name.
    pub fn guard(&self) -> LeaderGuard {
        self.guard.clone()
    }

    /// Waits until this process leads no more.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Lets the next one lead, at once.
    pub async fn resign(self) -> Result<()> {
        self.lease.revoke().await
    }
}

impl EtcdClient {
    /// Who leads of the candidates under a prefix; nobody where there is none.
    pub async fn current_leader(&self, prefix: &str) -> Result<Option<LeaderRecord>> {
        let range = RangeRequest { sort_order: SortOrder::Ascend.into(), ..candidates(prefix) };
        let page = KeyPage::read(self.read_range(&range).await?)?;
        Ok(page.records.into_iter().next().map(|record| {
            let KeyRecord { key, value, create_revision: epoch, .. } = record;
            LeaderRecord { key, epoch, value }
        }))
    }
}

/// Where a candidate is among the others.
enum Place {
    /// Nobody is before it.
    First,
    /// This one is before it.
    Behind(Predecessor),
    /// Its key is gone.
    Gone,
}

/// The candidate before another, as it was at a revision.
struct Predecessor {
    key: String,
    revision: i64,
}

/// What all candidates have before their own names.
fn election_prefix(prefix: &str) -> String {
    format!("{}/", prefix.trim_end_matches('/'))
}

/// One candidate, by when their keys were made.
fn candidates(prefix: &str) -> RangeRequest {
    let prefix = election_prefix(prefix);
    RangeRequest {
        range_end: prefix_end(&prefix),
        key: prefix.into(),
        limit: 1,
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// Makes the candidate's key, and says at which revision.
async fn enter_candidate(client: &EtcdClient, key: &str, value: &[u8], lease: i64) -> Result<i64> {
    let mut enter = Transaction::new();
    enter.if_created_at(key, 0).put_with_lease(key, value.to_vec(), lease).otherwise_read(key);
    let outcome = client.commit(&enter).await?;
    if outcome.is_done {
        return Ok(outcome.revision);
    }
    // It was made when a member was asked that did not answer.
    let known = outcome.reads.into_iter().flat_map(|page| page.records).next();
    known.map(|record| record.create_revision).ok_or_else(|| lost_place(key))
}

/// Who is before the candidate with `guard`.
async fn place_before(client: &EtcdClient, prefix: &str, guard: &LeaderGuard) -> Result<Place> {
    let earlier = RangeRequest {
        sort_order: SortOrder::Descend.into(),
        max_create_revision: guard.epoch() - 1,
        ..candidates(prefix)
    };
    let mut look = Transaction::new();
    look.if_created_at(guard.key(), guard.epoch()).read_range(earlier);
    let outcome = client.commit(&look).await?;
    if !outcome.is_done {
        return Ok(Place::Gone);
    }
    let before = outcome.reads.into_iter().flat_map(|page| page.records).next();
    Ok(before.map_or(Place::First, |record| {
        Place::Behind(Predecessor { key: record.key, revision: outcome.revision })
    }))
}

/// Waits until the one before is gone, or it is time to look.
async fn wait_for_change(client: &EtcdClient, before: Option<Predecessor>) {
    let Some(before) = before else { return sleep(POLL_INTERVAL).await };
    let watch = async {
        let client = WatchClient::new(client.current_channel());
        if let Err(status) = watch_removal(client, before).await {
            tracing::debug!("a watch in etcd ended: {status}");
            std::future::pending::<()>().await;
        }
    };
    drop(timeout(POLL_INTERVAL, watch).await);
}

/// Waits until the key of the one before is removed.
async fn watch_removal(
    mut client: WatchClient<Channel>,
    before: Predecessor,
) -> Result<(), Status> {
    let create = WatchCreateRequest {
        key: before.key.into(),
        start_revision: before.revision + 1,
        filters: vec![FilterType::Noput.into()],
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = stream::iter([create]).chain(stream::pending());
    let mut answers = client.watch(with_leader(requests)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.events.iter().any(|event| event.r#type() == EventType::Delete) {
            return Ok(());
        }
        if answer.canceled {
            break;
        }
    }
    Err(Status::unavailable("it ended the stream"))
}

/// Whether it may pass by itself.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut)
}

fn lost_place(key: &str) -> Error {
    Error::lost(format!("the candidate with etcd's key {key} lost its lease while it waited"))
}
