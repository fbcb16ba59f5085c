//! Traces: a span per request and one per hop, sent to an OpenTelemetry collector.
//!
//! Our own few hundred lines: all spans of a request are known when it ends, so that there is
//! nothing to be opened, carried along and closed, which is what OpenTelemetry's SDK is for.
//! Its exporter (opentelemetry-otlp 0.33, gRPC, rustls with ring) would add 19 crates and 76 s of
//! processor time to a release build, 29 s of them without TLS; our limit was 15 s. So collectors
//! are reached over plain HTTP: one beside the server passes spans on to those that want TLS.

mod collector;
mod export;
mod headers;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clock::UnixClock;
use crate::ended_request::EndedRequest;
use collector::TraceCollector;
use export::SpanExporter;
use headers::header_lines;
use span::{TracedRequest, sampling_position};

/// Requests whose spans wait to be sent; more are lost.
const MOST_WAITING: usize = 4096;

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// A collector that takes OTLP over HTTP: `http://host:4318`.
    pub endpoint: String,
    /// Headers that go with spans, `name=value` with commas between them and values
    /// percent-encoded, as in `OTEL_EXPORTER_OTLP_HEADERS`.
    pub headers: String,
    /// Of requests that are not part of a trace, how many make one of their own: from 0 to 1. A
    /// request that is part of a trace is told of where that trace says so.
    pub sampling_ratio: f64,
    /// What the server goes by in traces.
    pub service: String,
}

/// Takes finished requests to the task that sends them.
pub(super) struct TraceQueue {
    queue: mpsc::Sender<TracedRequest>,
    sampling_ratio: f64,
    lost: Arc<AtomicU64>,
}

impl TraceQueue {
    /// Starts to send, on the runtime that this is called on.
    pub(super) fn start_exporter(options: TraceOptions, clock: UnixClock) -> Result<Self> {
        let TraceOptions { endpoint, headers, sampling_ratio, service } = options;
        let mut wrong = Vec::new();
        if !(0.0..=1.0).contains(&sampling_ratio) {
            wrong.push(format!(
                "{sampling_ratio} of all requests are sampled, expected from 0 to 1"
            ));
        }
        if service.is_empty() {
            wrong.push("the service has no name".to_owned());
        }
        let headers = header_lines(&headers).unwrap_or_else(|error| {
            wrong.push(error.to_string());
            String::new()
        });
        let collector =
            TraceCollector::new(&endpoint, headers).map_err(|error| wrong.push(error.to_string()));
        let (Ok(collector), true) = (collector, wrong.is_empty()) else {
            return Err(Error::usage(format!("traces: {}", wrong.join("; "))));
        };
        let runtime = Handle::try_current()
            .map_err(|error| Error::usage(format!("traces need a runtime: {error}")))?;
        let (queue, finished) = mpsc::channel(MOST_WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let exporter = SpanExporter::new(collector, service, clock, Arc::clone(&lost));
        // It ends once the queue's other end is dropped, with the telemetry.
        drop(runtime.spawn(exporter.export_spans(finished)));
        Ok(Self { queue, sampling_ratio, lost })
    }

    /// Takes a request that has ended, where it is to be told of. Never waits.
    pub(super) fn queue_spans(&self, ended: &EndedRequest<'_>) {
        let is_sampled = match ended.trace {
            Some(trace) => trace.flags & 1 == 1,
            None => sampling_position(ended.request) < self.sampling_ratio,
        };
        if is_sampled && self.queue.try_send(TracedRequest::new(ended)).is_err() {
            self.lost.fetch_add(1 + ended.hop_timings.len() as u64, Ordering::Relaxed);
        }
    }

    /// Spans that no collector got.
    pub(super) fn lost_spans(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
