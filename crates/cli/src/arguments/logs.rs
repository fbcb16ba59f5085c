//! What a role writes to its log, and whom it sends traces to.

use clap::Args;
use tessera_server::TelemetryConfig;
use tracing::level_filters::LevelFilter;

#[derive(Args)]
pub(crate) struct LogArguments {
    /// error, warn, info, debug or trace
    #[arg(long, default_value = "info", value_name = "LEVEL", env = "TESSERA_LOG")]
    pub(crate) log: LevelFilter,
    /// Write logs as JSON
    #[arg(long)]
    pub(crate) log_json: bool,
}

#[derive(Args)]
pub(crate) struct TraceArguments {
    /// Send OpenTelemetry spans to this collector (OTLP over HTTP), such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<String>,
    /// Headers that go with spans: NAME=VALUE, percent-encoded, with commas between them
    #[arg(
        long,
        value_name = "HEADERS",
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true
    )]
    pub(crate) trace_headers: Option<String>,
}

impl TraceArguments {
    /// Where spans are sent.
    pub(crate) fn telemetry_config(&self) -> TelemetryConfig {
        TelemetryConfig {
            traces: self.traces.clone(),
            trace_headers: self.trace_headers.clone().unwrap_or_default(),
        }
    }
}
