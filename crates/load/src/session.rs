//! What all clients of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tessera_core::lock;

use crate::connector::Connector;
use crate::exchange::Exchange;
use crate::outcome_collector::{MeasurementWindow, OutcomeCollector, TimedRequest};
use crate::prepared_requests::PreparedRequests;

/// What all clients of a run share.
pub(crate) struct LoadSession {
    pub(crate) prepared: PreparedRequests,
    pub(crate) timeout: Duration,
    /// When requests count, as planned.
    pub(crate) window: MeasurementWindow,
    pub(crate) connector: Connector,
    pub(crate) collector: Mutex<OutcomeCollector>,
    /// Requests that count and were due.
    pub(crate) issued: AtomicU64,
    /// Connections that were opened.
    pub(crate) connections: AtomicU64,
    /// Nothing more is to be sent.
    pub(crate) closing: AtomicBool,
}

impl LoadSession {
    pub(crate) async fn open_connection(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let sender = self.connector.open_connection().await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(sender)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Notes that a request is due.
    pub(crate) fn count_issued(&self, due: Instant) {
        if self.window.contains(due) {
            self.issued.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes how a request that was due then, and sent later where no client was free, went.
    pub(crate) fn record_exchange(&self, due: Instant, queued: Instant, exchange: Exchange) {
        let sample = TimedRequest { due, queued, ended: Instant::now(), exchange };
        self.lock_collector().record_outcome(sample);
    }

    pub(crate) fn lock_collector(&self) -> MutexGuard<'_, OutcomeCollector> {
        lock(&self.collector)
    }
}
