//! The server as scripts expect it that were written for Triton.

use serde_json::{Value, json};
use tessera_gateway::FrontEndOptions;
use tessera_gateway::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tessera_gateway::inference::{ModelMetadataRequest, ServerMetadataRequest};

use crate::fake::Server;
use crate::grpc::start_server;

fn options() -> FrontEndOptions {
    FrontEndOptions { triton_names: true, ..FrontEndOptions::default() }
}

fn input(name: &str, datatype: &str, shape: &[usize]) -> Value {
    let data = vec![1; shape.iter().product()];
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

#[tokio::test]
async fn it_is_called_triton_and_words_errors_so() {
    let server = Server::with(options());
    assert_eq!(server.get("/v2").await.json()["name"], "triton");
    for path in ["/v2/models/foo", "/v2/models/foo/config", "/v2/models/foo/stats"] {
        let error = server.get(path).await.error();
        assert_eq!(error, "Request for unknown model: 'foo' is not found", "{path}");
    }
    let error = server.get("/v2/models/add/versions/9").await.error();
    assert_eq!(error, "Request for unknown model: 'add' version 9 is not found");
    let error = server.post("/v2/repository/models/foo/load", "").await.error();
    assert_eq!(error, "failed to load 'foo', failed to poll from model repository");

    let (a, b) = (input("a", "FP32", &[1, 3]), input("b", "FP32", &[1, 3]));
    let nine = |name: &str| input(name, "FP32", &[9, 3]);
    for (request, expected) in [
        (
            json!({"inputs": [a, input("c", "FP32", &[1, 3])]}),
            "unexpected inference input 'c' for model 'add'",
        ),
        (
            json!({"inputs": [a]}),
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'add'. Got \
          input(s) ['a'], but missing required input(s) ['b']. Please provide all required \
          input(s).",
        ),
        (
            json!({"inputs": [a, b], "outputs": [{"name": "z"}]}),
            "unexpected inference output 'z' for model 'add'",
        ),
        (
            json!({"id": "7", "inputs": [nine("a"), nine("b")]}),
            "[request id: 7] inference request batch-size must be <= 8 for 'add'",
        ),
        (
            json!({"inputs": [a, input("b", "INT32", &[1, 3])]}),
            "[request id: <id_unknown>] inference input 'b' data-type is 'INT32', but model 'add' \
          expects 'FP32'",
        ),
    ] {
        assert_eq!(server.infer("add", &request).await.error(), expected);
    }
    let request = json!({"inputs": [a, input("b", "FP32", &[1, 4])]});
    let error = server.infer("add", &request).await.error();
    let expected = "[request id: <id_unknown>] unexpected shape for input 'b' for model 'add'. \
                    Expected [-1,3], got [1,4]. NOTE: Setting a non-zero max_batch_size";
    assert!(error.starts_with(expected), "{error}");
    server.infer("add", &json!({"inputs": [a, b]})).await.json();
}

#[tokio::test]
async fn so_it_is_over_grpc() {
    let (address, _) = start_server(options()).await;
    let mut client =
        GrpcInferenceServiceClient::connect(format!("http://{address}")).await.unwrap();
    let metadata = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(metadata.name, "triton");
    let unknown = ModelMetadataRequest { name: "foo".into(), version: String::new() };
    let error = client.model_metadata(unknown).await.unwrap_err();
    assert_eq!(error.message(), "Request for unknown model: 'foo' is not found");
}
