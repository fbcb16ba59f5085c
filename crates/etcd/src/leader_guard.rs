//! Whether a leader leads still.

use std::sync::Arc;

use tessera_core::Error;

use crate::lease_term::LeaseTerm;

/// Whether a leader leads still, for whoever acts in its name.
#[derive(Clone, Debug)]
pub struct LeaderGuard {
    key: Arc<str>,
    epoch: i64,
    term: Arc<LeaseTerm>,
}

impl LeaderGuard {
    /// That of a leader with this key, for as long as its term runs.
    pub(crate) fn new(key: Arc<str>, epoch: i64, term: Arc<LeaseTerm>) -> Self {
        Self { key, epoch, term }
    }

    /// Whether the leader leads still, by the clock as it is now: etcd has heard of it within the
    /// time of its lease. What is lost stays so.
    pub fn is_held(&self) -> bool {
        self.term.is_running()
    }

    /// The leader's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Which leadership it is: the revision at which the leader's key was made.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Waits until the leader leads no more.
    pub async fn lost(&self) {
        self.term.ended().await;
    }

    /// etcd says that another leads.
    pub(crate) fn give_up(&self) {
        self.term.end();
    }

    /// What somebody hears who acts in the name of a leader that is none any more.
    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(format!(
            "this controller is not the leader any more: its lease, with etcd's key {}, is lost",
            self.key
        ))
    }
}
