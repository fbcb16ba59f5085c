//! Calls to etcd: of the member that answers.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tessera_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::config::EtcdConfig;
use crate::member::{Member, MemberFailure};
use crate::transaction::{KeyPage, KeyRecord, Transaction, TransactionOutcome, prefix_end};
use crate::wire::kv_client::KvClient;
use crate::wire::{RangeRequest, RangeResponse};

/// How long one member may take to answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a call may take with all members that are asked: three that don't answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);
/// How long it waits once all members have refused: a new leader of theirs is elected meanwhile.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Keys that are read at once.
const PAGE_KEYS: i64 = 128;
/// Largest answer: a page of the largest values that members accept (1.5 MiB each).
const LARGEST_ANSWER: usize = 256 << 20;

/// A client of etcd.
///
/// A call goes to the member that answered last. Where that one is away, or has no leader, the
/// others are asked in turn, for six seconds in all.
#[derive(Clone)]
pub struct EtcdClient(Arc<ClientState>);

struct ClientState {
    members: Vec<Member>,
    /// The place of the one that answered last.
    current: AtomicUsize,
}

impl EtcdClient {
    /// A client whose connections live in the runtime of whoever calls this. They are made when
    /// they are first needed: etcd may be away yet.
    pub fn new(config: &EtcdConfig) -> Result<Self> {
        let addresses = config.member_addresses()?;
        if Handle::try_current().is_err() {
            return Err(Error::usage("a client of etcd is made outside of a runtime"));
        }
        let members =
            addresses.into_iter().map(|address| Member::new(address, config.tls.as_ref()));
        let members = members.collect::<Result<_>>()?;
        Ok(Self(Arc::new(ClientState { members, current: AtomicUsize::new(0) })))
    }

    /// What a key has; nothing where there is no such key.
    pub async fn read_key(&self, key: &str) -> Result<Option<KeyRecord>> {
        let range = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
        Ok(KeyPage::read(self.read_range(&range).await?)?.records.into_iter().next())
    }

    /// All keys that begin with `prefix`, as they were at a revision, by their names.
    ///
    /// The error is of the kind `NotFound` where etcd has that revision no more.
    pub async fn read_prefix_at(&self, prefix: &str, revision: i64) -> Result<Vec<KeyRecord>> {
        let mut range = RangeRequest {
            key: prefix.to_owned().into(),
            range_end: prefix_end(prefix),
            limit: PAGE_KEYS,
            revision,
            ..RangeRequest::default()
        };
        let mut records = Vec::new();
        loop {
            let page = KeyPage::read(self.read_range(&range).await?)?;
            records.extend(page.records);
            match records.last() {
                // The next key that there can be.
                Some(last) if page.has_more => range.key = format!("{}\0", last.key).into(),
                _ => return Ok(records),
            }
        }
    }

    /// Carries a transaction out: all of it, or nothing.
    ///
    /// Where a member does not answer, another is asked to do the same, and the first may have done
    /// it or do it later. So whoever changes something compares what the change itself changes: the
    /// second time is refused then.
    ///
    /// One with a [`LeaderGuard`](crate::LeaderGuard) fails with the kind `Lost` where that is not
    /// held any more.
    pub async fn commit(&self, transaction: &Transaction) -> Result<TransactionOutcome> {
        transaction.check_guard()?;
        let request = transaction.request();
        let call = |channel| {
            let request = request.clone();
            async move { kv_client(channel).txn(request).await }
        };
        transaction.read_outcome(self.call(call).await?)
    }

    /// Reads a range; of what a majority of members has agreed upon.
    pub(crate) async fn read_range(&self, range: &RangeRequest) -> Result<RangeResponse> {
        self.call(|channel| {
            let range = range.clone();
            async move { kv_client(channel).range(range).await }
        })
        .await
    }

    /// To the member that answered last.
    pub(crate) fn current_channel(&self) -> Channel {
        self.current_member().1.channel()
    }

    fn current_member(&self) -> (usize, &Member) {
        let place = self.0.current.load(Ordering::Relaxed) % self.0.members.len();
        (place, &self.0.members[place])
    }

    /// Asks members in turn until one answers.
    pub(crate) async fn call<T, F, R>(&self, call: F) -> Result<T>
    where
        F: Fn(Channel) -> R,
        R: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut refused = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let failed = match self.call_once(ATTEMPT_TIMEOUT.min(left), &call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            refused += 1;
            let pause = match refused % self.0.members.len() {
                0 => ROUND_PAUSE,
                _ => Duration::ZERO,
            };
            if !failed.is_passing || Instant::now() + pause >= deadline {
                return Err(failed.error);
            }
            sleep(pause).await;
        }
    }

    /// Asks the member that answered last; where it fails, the next call goes to another.
    pub(crate) async fn call_once<T, F, R>(
        &self,
        limit: Duration,
        call: F,
    ) -> Result<T, MemberFailure>
    where
        F: Fn(Channel) -> R,
        R: Future<Output = Result<Response<T>, Status>>,
    {
        let (place, member) = self.current_member();
        let failure = match timeout(limit, call(member.channel())).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => member.failure(&status),
            Err(_) => {
                member.reconnect();
                member.no_answer(limit)
            }
        };
        if failure.is_passing {
            // Of several calls that fail here at a time one moves on.
            let next = (place + 1) % self.0.members.len();
            let moved = &self.0.current;
            moved.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
        Err(failure)
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.0.members.iter().map(Member::url);
        to.debug_tuple("EtcdClient").field(&urls.collect::<Vec<_>>()).finish()
    }
}

fn kv_client(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(LARGEST_ANSWER)
}
