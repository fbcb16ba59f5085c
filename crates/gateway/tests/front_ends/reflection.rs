//! Server reflection: clients without the protocol's files (`grpcurl`) learn what there is.

use futures_util::stream;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

use crate::grpc::open_channel;

fn ask(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(message) }
}

#[tokio::test]
async fn services_and_their_messages_are_described() {
    let (channel, _) = open_channel().await;
    let mut client = ServerReflectionClient::new(channel);
    let asked = stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("inference.ModelConfig".into())),
    ]);
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    let Some(ServerReflectionResponse {
        message_response: Some(MessageResponse::ListServicesResponse(listed)),
        ..
    }) = answers.message().await.unwrap()
    else {
        panic!("no list of services");
    };
    let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
    for name in ["inference.GRPCInferenceService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let Some(ServerReflectionResponse {
        message_response: Some(MessageResponse::FileDescriptorResponse(file)),
        ..
    }) = answers.message().await.unwrap()
    else {
        panic!("no description");
    };
    let file = String::from_utf8_lossy(&file.file_descriptor_proto[0]).into_owned();
    assert!(file.contains("dynamic_batching"));
}

#[tokio::test]
async fn older_clients_ask_for_the_alpha() {
    use v1alpha::server_reflection_request::MessageRequest;

    let (channel, _) = open_channel().await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let asked = stream::iter([v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    }]);
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().unwrap().message_response.is_some());
}
