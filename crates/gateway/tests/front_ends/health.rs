//! Health as probes ask for it: `grpc.health.v1`.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::grpc::open_channel;

const PATIENCE: Duration = Duration::from_secs(10);

fn probe(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

#[tokio::test]
async fn a_probe_gets_whether_the_server_is_ready() {
    let (channel, fake) = open_channel().await;
    let mut client = HealthClient::new(channel);
    for service in ["", "inference.GRPCInferenceService"] {
        *fake.loaded.lock().unwrap() = false;
        let answer = client.check(probe(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::NotServing, "{service}");
        *fake.loaded.lock().unwrap() = true;
        let answer = client.check(probe(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(probe("nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("\"nobody\""), "{}", unknown.message());
}

#[tokio::test]
async fn a_watcher_gets_every_change() {
    let (channel, fake) = open_channel().await;
    let mut client = HealthClient::new(channel);
    let mut watched = client.watch(probe("")).await.unwrap().into_inner();
    for (ready, expected) in [
        (false, ServingStatus::NotServing),
        (true, ServingStatus::Serving),
        (false, ServingStatus::NotServing),
    ] {
        *fake.loaded.lock().unwrap() = ready;
        let answer = timeout(PATIENCE, watched.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status(), expected);
    }
    let mut unknown = client.watch(probe("nobody")).await.unwrap().into_inner();
    let answer = timeout(PATIENCE, unknown.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), ServingStatus::ServiceUnknown);
}
