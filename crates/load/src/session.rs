//! What all clients of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;

use crate::client::{Connector, Exchange};
use crate::prepared::Prepared;
use crate::recorder::{Recorder, Sample, Window};

/// What all clients of a run share.
pub(crate) struct Session {
    pub(crate) prepared: Prepared,
    pub(crate) timeout: Duration,
    /// When requests count, as planned.
    pub(crate) window: Window,
    pub(crate) connector: Connector,
    pub(crate) recorder: Mutex<Recorder>,
    /// Requests that count and were due.
    pub(crate) issued: AtomicU64,
    /// Connections that were opened.
    pub(crate) connections: AtomicU64,
    /// Nothing more is to be sent.
    pub(crate) closing: AtomicBool,
}

impl Session {
    pub(crate) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let sender = self.connector.connect().await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(sender)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Notes that a request is due.
    pub(crate) fn issue(&self, due: Instant) {
        if self.window.contains(due) {
            self.issued.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes how a request that was due then, and sent later where no client was free, went.
    pub(crate) fn settle(&self, due: Instant, queued: Instant, exchange: Exchange) {
        let sample = Sample { due, queued, ended: Instant::now(), exchange };
        self.recorder().record(sample);
    }

    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
