//! Traces: a span per request and one per hop, sent to an OpenTelemetry collector.
//!
//! Our own few hundred lines: all spans of a request are known when it ends, so that there is nothing
//! to be opened, carried along and closed, which is what OpenTelemetry's SDK is for.

mod collector;
mod export;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::clock::Clock;
use crate::dispatcher::Ended;
use collector::Collector;
use export::Exporter;
use span::{Finished, chance};

/// Requests whose spans wait to be sent; more are lost.
const MOST_WAITING: usize = 4096;

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// A collector that takes OTLP over HTTP: `http://host:4318`.
    pub endpoint: String,
    /// Of requests that are not part of a trace, how many make one of their own: from 0 to 1. A
    /// request that is part of a trace is told of where that trace says so.
    pub sampled: f64,
    /// What the server goes by in traces.
    pub service: String,
}

/// Takes finished requests to the task that sends them.
pub(super) struct Traces {
    queue: mpsc::Sender<Finished>,
    sampled: f64,
    lost: Arc<AtomicU64>,
}

impl Traces {
    /// Starts to send, on the runtime that this is called on.
    pub(super) fn start(options: TraceOptions, clock: Clock) -> Result<Self> {
        let TraceOptions { endpoint, sampled, service } = options;
        let mut wrong = Vec::new();
        if !(0.0..=1.0).contains(&sampled) {
            wrong.push(format!("{sampled} of all requests are sampled, expected from 0 to 1"));
        }
        if service.is_empty() {
            wrong.push("the service has no name".to_owned());
        }
        let collector = Collector::new(&endpoint).map_err(|error| wrong.push(error.to_string()));
        let (Ok(collector), true) = (collector, wrong.is_empty()) else {
            return Err(Error::usage(format!("traces: {}", wrong.join("; "))));
        };
        let runtime = Handle::try_current()
            .map_err(|error| Error::usage(format!("traces need a runtime: {error}")))?;
        let (queue, finished) = mpsc::channel(MOST_WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let exporter = Exporter::new(collector, service, clock, Arc::clone(&lost));
        // It ends once the queue's other end is dropped, with the monitor.
        drop(runtime.spawn(exporter.run(finished)));
        Ok(Self { queue, sampled, lost })
    }

    /// Takes a request that has ended, where it is to be told of. Never waits.
    pub(super) fn note(&self, ended: &Ended<'_>) {
        let is_sampled = match ended.trace {
            Some(trace) => trace.flags & 1 == 1,
            None => chance(ended.request) < self.sampled,
        };
        if is_sampled && self.queue.try_send(Finished::new(ended)).is_err() {
            self.lost.fetch_add(1 + ended.records.len() as u64, Ordering::Relaxed);
        }
    }

    /// Spans that no collector got.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
