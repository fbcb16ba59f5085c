//! `grpc.health.v1`: whether the server is ready, for probes that know no protocol of ours.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::generated::grpc_inference_service_server::SERVICE_NAME;
use crate::service::InferenceService;

/// How often it is looked whether the server is still as it was: a prober notices within this.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Answers probes with what a service says of itself.
pub(super) struct HealthFrontEnd {
    pub(super) service: Arc<dyn InferenceService>,
}

/// How what a probe names is: the server for the empty name, or the protocol's service.
fn serving_status(service: &dyn InferenceService, name: &str) -> ServingStatus {
    match name {
        "" | SERVICE_NAME if service.is_ready() => ServingStatus::Serving,
        "" | SERVICE_NAME => ServingStatus::NotServing,
        _ => ServingStatus::ServiceUnknown,
    }
}

#[tonic::async_trait]
impl Health for HealthFrontEnd {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        match serving_status(self.service.as_ref(), &name) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!(
                "there is no service \"{name}\", expected \"\" or \"{SERVICE_NAME}\""
            ))),
            status => Ok(Response::new(HealthCheckResponse { status: status.into() })),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (service, name) = (Arc::clone(&self.service), request.into_inner().service);
        let changes = stream::unfold(None, move |sent| {
            let (service, name) = (Arc::clone(&service), name.clone());
            async move {
                let status = next_status(service.as_ref(), &name, sent).await;
                Some((Ok(HealthCheckResponse { status: status.into() }), Some(status)))
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}

/// Waits until the status is another than the one that was sent; the first is sent at once.
async fn next_status(
    service: &dyn InferenceService,
    name: &str,
    sent: Option<ServingStatus>,
) -> ServingStatus {
    loop {
        let status = serving_status(service, name);
        if sent != Some(status) {
            return status;
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}
