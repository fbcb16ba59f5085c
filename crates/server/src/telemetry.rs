//! The part that others look at: metrics, events, traces.

use std::sync::Arc;

use axum::Router;
use tessera_core::Result;
use tessera_telemetry::{TakeSample, Telemetry, TelemetryOptions, TraceOptions};

use crate::listeners::{Listener, PortContext, RunningListener};

/// Where spans are sent.
#[derive(Clone, Debug, Default)]
pub struct TelemetryConfig {
    /// The collector that spans are sent to (OTLP over HTTP).
    pub traces: Option<String>,
    /// Headers that go with spans: `NAME=VALUE`, percent-encoded, with commas between them.
    pub trace_headers: String,
}

impl TelemetryConfig {
    /// Starts it.
    pub fn build(self) -> Result<Arc<Telemetry>> {
        let traces = self.traces.map(|endpoint| TraceOptions {
            endpoint,
            headers: self.trace_headers,
            sampling_ratio: 1.0,
            service: "tessera".to_owned(),
        });
        Telemetry::new(TelemetryOptions { traces })
    }
}

/// Answers with metrics, and probes with `health`, until it is closed, and keeps an eye on the
/// samples meanwhile.
pub(crate) fn serve_telemetry(
    telemetry: &Arc<Telemetry>,
    sample: TakeSample,
    health: Router,
    listener: Listener,
    context: &PortContext,
) -> RunningListener {
    let router = telemetry.metrics_router(Arc::clone(&sample)).merge(health);
    let running = listener.serve_router(router, context);
    tokio::spawn(Arc::clone(telemetry).watch_samples(sample));
    running
}
