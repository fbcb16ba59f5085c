//! Rows in etcd, for several controllers of which one leads.
//!
//! Under the prefix of the cluster there are
//!
//! | key | what it has |
//! |---|---|
//! | `rows/SPACE/KEY` | a row |
//! | `heads/SPACE` | which write was the last; there is none before the first |
//! | `journal/SPACE/…` | a large change on its way: see [`journal`](super::etcd_journal) |
//!
//! Every write is one transaction, or as good as one, and is refused unless the leader leads still
//! and the head is the one that it knows. The latter is for writes that etcd has not answered: such
//! a one is carried out before the next, or never, and not twice.

use std::fmt;
use std::sync::Arc;

use tessera_core::{Error, Result};
use tessera_etcd::{EtcdClient, EtcdConfig, LeaderGuard};
use tokio::sync::Mutex;

use super::etcd_space::EtcdSpace;
use super::row_store::{RowChange, RowMap, RowSpace, RowStore};
use super::runtime_thread::RuntimeThread;

/// Keeps rows in etcd, in the name of a leader.
///
/// Its calls block while etcd answers, on a thread of its own.
pub struct EtcdRows {
    prefix: String,
    spaces: [Arc<Mutex<EtcdSpace>>; 3],
    thread: RuntimeThread,
}

impl EtcdRows {
    /// Rows under the prefix of a cluster, for as long as the leader leads. etcd may be away yet.
    pub fn new(config: &EtcdConfig, prefix: &str, guard: &LeaderGuard) -> Result<Self> {
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() {
            return Err(Error::usage("the prefix of a cluster in etcd is empty, expected a name"));
        }
        let thread = RuntimeThread::start("etcd-rows")?;
        let client = {
            let _entered = thread.handle().enter();
            EtcdClient::new(config)?
        };
        let writer = random_text()?;
        let spaces = [RowSpace::Intent, RowSpace::Members, RowSpace::Placement].map(|space| {
            let space = EtcdSpace::new(client.clone(), guard.clone(), prefix, space, &writer);
            Arc::new(Mutex::new(space))
        });
        Ok(Self { prefix: prefix.to_owned(), spaces, thread })
    }

    pub(super) fn space(&self, space: RowSpace) -> Arc<Mutex<EtcdSpace>> {
        let place = match space {
            RowSpace::Intent => 0,
            RowSpace::Members => 1,
            RowSpace::Placement => 2,
        };
        Arc::clone(&self.spaces[place])
    }

    fn with_space_context(&self, space: RowSpace, error: Error) -> Error {
        error.with_context(format!("store {} in etcd, {}", self.prefix, space.name()))
    }
}

impl RowStore for EtcdRows {
    fn load_rows(&self, space: RowSpace) -> Result<Option<RowMap>> {
        let kept = self.space(space);
        let loaded = self.thread.wait_for(async move { kept.lock().await.load().await });
        loaded.map_err(|error| self.with_space_context(space, error))
    }

    fn save_rows(&self, space: RowSpace, changes: &[RowChange]) -> Result<()> {
        let (kept, changes) = (self.space(space), changes.to_vec());
        let saved = self.thread.wait_for(async move { kept.lock().await.save(&changes).await });
        saved.map_err(|error| self.with_space_context(space, error))
    }
}

impl fmt::Debug for EtcdRows {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("EtcdRows").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What nobody else has.
fn random_text() -> Result<String> {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| Error::from_io("random numbers", &error.into()))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

#[cfg(test)]
#[path = "etcd_tests.rs"]
mod tests;
