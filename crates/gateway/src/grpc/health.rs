//! Whether a role is alive and ready, for probes that know no protocol of ours: `grpc.health.v1`,
//! and `GET /health/live` and `/health/ready`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use futures_util::{Stream, stream};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// How often it is looked whether the server is still as it was: a prober notices within this.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Says whether something is ready.
pub type IsReady = Arc<dyn Fn() -> bool + Send + Sync>;

/// What answers probes of a role that speaks no protocol of clients.
pub fn health_router(is_ready: IsReady) -> Router {
    let grpc = HealthServer::new(HealthFrontEnd::new(Arc::clone(&is_ready), None));
    let ready =
        move || async move { if is_ready() { (StatusCode::OK, "ready\n") } else { NOT_READY } };
    Routes::new(grpc)
        .into_axum_router()
        .reset_fallback()
        .route("/health/live", get(|| async { "alive\n" }))
        .route("/health/ready", get(ready))
}

const NOT_READY: (StatusCode, &str) = (StatusCode::SERVICE_UNAVAILABLE, "not ready\n");

/// Answers probes.
#[derive(Clone)]
pub(super) struct HealthFrontEnd {
    is_ready: IsReady,
    /// The name of the one service, beside the server itself.
    service_name: Option<&'static str>,
}

impl HealthFrontEnd {
    pub(super) fn new(is_ready: IsReady, service_name: Option<&'static str>) -> Self {
        Self { is_ready, service_name }
    }

    /// How what a probe names is: the server for the empty name, or its service.
    fn serving_status(&self, name: &str) -> ServingStatus {
        match name {
            name if !name.is_empty() && Some(name) != self.service_name => {
                ServingStatus::ServiceUnknown
            }
            _ if (self.is_ready)() => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        }
    }
}

#[tonic::async_trait]
impl Health for HealthFrontEnd {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        match self.serving_status(&name) {
            ServingStatus::ServiceUnknown => {
                let or = self.service_name.map(|name| format!(" or \"{name}\""));
                let or = or.unwrap_or_default();
                let message = format!("there is no service \"{name}\", expected \"\"{or}");
                Err(Status::not_found(message))
            }
            status => Ok(Response::new(HealthCheckResponse { status: status.into() })),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (front_end, name) = (self.clone(), request.into_inner().service);
        let changes = stream::unfold(None, move |sent| {
            let (front_end, name) = (front_end.clone(), name.clone());
            async move {
                let status = next_status(&front_end, &name, sent).await;
                Some((Ok(HealthCheckResponse { status: status.into() }), Some(status)))
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}

/// Waits until the status is another than the one that was sent; the first is sent at once.
async fn next_status(
    front_end: &HealthFrontEnd,
    name: &str,
    sent: Option<ServingStatus>,
) -> ServingStatus {
    loop {
        let status = front_end.serving_status(name);
        if sent != Some(status) {
            return status;
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}
