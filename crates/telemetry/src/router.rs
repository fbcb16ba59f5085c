//! Where metrics and usage are read over HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use super::{TakeSample, Telemetry};
use crate::exposition::MEDIA_TYPE;

#[derive(Clone)]
struct MetricsSource {
    telemetry: Arc<Telemetry>,
    sample: TakeSample,
}

impl Telemetry {
    /// `GET /metrics` in Prometheus' text format, and `GET /usage`: what processes used in the last
    /// minute, as JSON.
    pub fn metrics_router(self: &Arc<Self>, sample: TakeSample) -> Router {
        Router::new()
            .route("/metrics", get(get_metrics))
            .route("/usage", get(get_usage))
            .with_state(MetricsSource { telemetry: Arc::clone(self), sample })
    }
}

async fn get_metrics(State(source): State<MetricsSource>) -> impl IntoResponse {
    let sample = (source.sample)();
    ([(CONTENT_TYPE, MEDIA_TYPE)], source.telemetry.metrics_text(&sample))
}

async fn get_usage(State(source): State<MetricsSource>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], source.telemetry.last_minute().to_string())
}
