//! Sends spans in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::{Error, Result};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::collector::TraceCollector;
use super::span::TracedRequest;
use crate::clock::UnixClock;

/// Most spans of a batch, and how long one is waited for.
const LARGEST_BATCH: usize = 512;
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// After which a batch that was not taken is sent once more, time after time.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// How often it is said that spans are lost.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Sends what is finished to a collector.
pub(super) struct SpanExporter {
    collector: TraceCollector,
    service: String,
    clock: UnixClock,
    lost: Arc<AtomicU64>,
    warned_at: Option<Instant>,
}

impl SpanExporter {
    pub(super) fn new(
        collector: TraceCollector,
        service: String,
        clock: UnixClock,
        lost: Arc<AtomicU64>,
    ) -> Self {
        Self { collector, service, clock, lost, warned_at: None }
    }

    /// Sends until there is nothing more to come.
    pub(super) async fn export_spans(mut self, mut finished: mpsc::Receiver<TracedRequest>) {
        while let Some(first) = finished.recv().await {
            let mut spans = first.to_spans(self.clock);
            let until = Instant::now() + LONGEST_WAIT;
            while spans.len() < LARGEST_BATCH {
                let Ok(Some(next)) = timeout_at(until, finished.recv()).await else {
                    break;
                };
                spans.extend(next.to_spans(self.clock));
            }
            // A request of many rows has many spans.
            for batch in spans.chunks(LARGEST_BATCH) {
                self.send_batch(batch).await;
            }
        }
    }

    async fn send_batch(&mut self, spans: &[Value]) {
        let body = self.encode_body(spans);
        let mut sent = self.collector.post_spans(&body).await;
        for delay in RETRY_DELAYS {
            if !is_worth_another_try(&sent) {
                break;
            }
            sleep(delay).await;
            sent = self.collector.post_spans(&body).await;
        }
        let error = match sent {
            Ok(200..=299) => return,
            Ok(status) => Error::lost(format!("the collector answered with status {status}")),
            Err(error) => error,
        };
        let all = self.lost.fetch_add(spans.len() as u64, Ordering::Relaxed) + spans.len() as u64;
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(%error, spans = spans.len(), all, "spans are lost");
        }
    }

    fn encode_body(&self, spans: &[Value]) -> Vec<u8> {
        let name = json!({"key": "service.name", "value": {"stringValue": self.service}});
        let scope = json!({"name": "tessera", "version": env!("CARGO_PKG_VERSION")});
        json!({
            "resourceSpans": [{
                "resource": {"attributes": [name]},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }]
        })
        .to_string()
        .into_bytes()
    }
}

/// Whether a collector was out of reach, or says that it has too much to do.
fn is_worth_another_try(sent: &Result<u16>) -> bool {
    matches!(sent, Err(_) | Ok(429 | 502 | 503 | 504))
}
