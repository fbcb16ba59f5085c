//! A lease that is kept alive.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tessera_core::{Error, Result};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::client::EtcdClient;
use crate::lease_clock::LeaseTime;
use crate::lease_term::LeaseTerm;
use crate::member::MemberFailure;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest};

/// How long it waits after a member that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A lease that is kept alive for as long as this is there. It runs out after that.
pub(crate) struct Lease {
    client: EtcdClient,
    id: i64,
    term: Arc<LeaseTerm>,
    keeper: JoinHandle<()>,
}

impl Lease {
    /// Asks for a lease that runs out after `ttl`, or a little later: etcd counts whole seconds,
    /// and has a least.
    pub(crate) async fn grant(client: &EtcdClient, ttl: Duration) -> Result<Self> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let request = LeaseGrantRequest { ttl: seconds, id: 0 };
        let sent = LeaseTime::now();
        let granted = client.call(|channel| grant_lease(channel, request)).await?;
        let ttl = lease_ttl(granted.ttl);
        if granted.id == 0 || ttl.is_zero() {
            return Err(Error::invalid(format!("etcd grants no lease: {}", granted.error)));
        }
        let term = Arc::new(LeaseTerm::new(sent, ttl));
        let keep = keep_alive(client.clone(), granted.id, ttl, Arc::clone(&term));
        let keeper = tokio::spawn(keep);
        Ok(Self { client: client.clone(), id: granted.id, term, keeper })
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(crate) fn term(&self) -> &Arc<LeaseTerm> {
        &self.term
    }

    /// Gives the lease back, and with it all keys that it held.
    pub(crate) async fn revoke(self) -> Result<()> {
        self.term.end();
        self.keeper.abort();
        revoke_lease(&self.client, self.id).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.term.end();
        self.keeper.abort();
    }
}

/// Renews a lease until it is lost.
async fn keep_alive(client: EtcdClient, id: i64, ttl: Duration, term: Arc<LeaseTerm>) {
    // Two members may fail to answer before it runs out.
    let (interval, limit) = (ttl / 3, ttl / 5);
    let mut pause = interval;
    loop {
        sleep(pause.min(term.remaining())).await;
        if !term.is_running() {
            break;
        }
        let sent = LeaseTime::now();
        let renewed = client.call_once(limit, |channel| keep_alive_once(channel, id)).await;
        pause = match renewed.map(lease_ttl) {
            Ok(Duration::ZERO) => {
                tracing::warn!("etcd has ended lease {id:x}");
                return term.end();
            }
            Ok(ttl) if term.renew(sent, ttl) => interval,
            Ok(_) => break,
            Err(MemberFailure { error, .. }) => {
                tracing::debug!("lease {id:x} is not renewed: {error}");
                RETRY_PAUSE
            }
        };
    }
    term.end();
    tracing::warn!("lease {id:x} ran out: etcd has not answered for {} s", ttl.as_secs_f64());
    // Where etcd has it still, nobody need wait for its end.
    if let Err(error) = revoke_lease(&client, id).await {
        tracing::debug!("lease {id:x} is not revoked: {error}");
    }
}

/// How long etcd keeps a lease that is not renewed; nothing where there is none.
fn lease_ttl(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

async fn grant_lease(
    channel: Channel,
    request: LeaseGrantRequest,
) -> Result<Response<crate::wire::LeaseGrantResponse>, Status> {
    LeaseClient::new(channel).lease_grant(request).await
}

async fn revoke_lease(client: &EtcdClient, id: i64) -> Result<()> {
    let revoke = |channel| async move {
        LeaseClient::new(channel).lease_revoke(LeaseRevokeRequest { id }).await
    };
    client.call(revoke).await.map(drop)
}

/// Renews a lease once, on a stream of its own: a late answer is never taken for that to another
/// request. Returns for how many seconds.
async fn keep_alive_once(channel: Channel, id: i64) -> Result<Response<i64>, Status> {
    let request = with_leader(stream::iter([LeaseKeepAliveRequest { id }]));
    let mut answers = LeaseClient::new(channel).lease_keep_alive(request).await?.into_inner();
    match answers.message().await? {
        Some(answer) => Ok(Response::new(answer.ttl)),
        None => Err(Status::unavailable("it ended the stream")),
    }
}

/// A request that a member refuses where it is cut off from the others.
pub(crate) fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
