//! Where metrics and usage are read over HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use super::exposition::MEDIA_TYPE;
use super::{Monitor, TakeSample};

#[derive(Clone)]
struct Source {
    monitor: Arc<Monitor>,
    sample: TakeSample,
}

impl Monitor {
    /// `GET /metrics` in Prometheus' text format, and `GET /usage`: what processes used in the last
    /// minute, as JSON.
    pub fn router(self: &Arc<Self>, sample: TakeSample) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/usage", get(usage))
            .with_state(Source { monitor: Arc::clone(self), sample })
    }
}

async fn metrics(State(source): State<Source>) -> impl IntoResponse {
    let sample = (source.sample)();
    ([(CONTENT_TYPE, MEDIA_TYPE)], source.monitor.metrics(&sample))
}

async fn usage(State(source): State<Source>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], source.monitor.last_minute().to_string())
}
