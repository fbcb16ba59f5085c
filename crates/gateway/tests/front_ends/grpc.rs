//! The same over gRPC, through a socket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tessera_gateway::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tessera_gateway::inference::infer_parameter::ParameterChoice;
use tessera_gateway::inference::model_config::SchedulingChoice;
use tessera_gateway::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use tessera_gateway::inference::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryUnregisterRequest, InferParameter, InferTensorContents, ModelConfigRequest,
    ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryUnregisterRequest,
};
use tessera_gateway::{ByteBudget, FrontEndOptions, InferenceService, grpc_router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::fake::{Fake, f32_bytes};
use crate::shared_memory::SharedFile;

type Client = GrpcInferenceServiceClient<Channel>;

async fn connect() -> (Client, Arc<Fake>) {
    let (channel, fake) = open_channel().await;
    (Client::new(channel), fake)
}

/// A connection to a server of its own.
pub(crate) async fn open_channel() -> (Channel, Arc<Fake>) {
    let (address, fake) = start_server(FrontEndOptions::default()).await;
    (Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap(), fake)
}

/// Starts a server; where it is.
pub(crate) async fn start_server(options: FrontEndOptions) -> (SocketAddr, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let service: Arc<dyn InferenceService> = Arc::<Fake>::clone(&fake);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = grpc_router(service, options).unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, fake)
}

fn text(value: &str) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::StringParam(value.into())) }
}

fn number(value: i64) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
}

fn range(offset: i64, byte_size: i64) -> HashMap<String, InferParameter> {
    HashMap::from([
        ("shared_memory_region".to_owned(), text("r")),
        ("shared_memory_offset".to_owned(), number(offset)),
        ("shared_memory_byte_size".to_owned(), number(byte_size)),
    ])
}

fn row(name: &str) -> InferInputTensor {
    InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 3],
        ..InferInputTensor::default()
    }
}

fn add(id: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "add".into(),
        id: id.into(),
        inputs: vec![row("a"), row("b")],
        raw_input_contents: vec![
            f32_bytes(&[1., 2., 3.]).into(),
            f32_bytes(&[10., 20., 30.]).into(),
        ],
        ..ModelInferRequest::default()
    }
}

async fn refused(client: &mut Client, request: ModelInferRequest) -> Status {
    client.model_infer(request).await.unwrap_err()
}

#[tokio::test]
async fn the_server_and_its_tasks_are_described() {
    let (mut client, _) = connect().await;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(!client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let metadata = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(metadata.name, "tessera");

    let asked = ModelMetadataRequest { name: "add".into(), version: String::new() };
    let metadata = client.model_metadata(asked).await.unwrap().into_inner();
    assert_eq!(metadata.inputs[0].shape, [-1, 3]);
    assert_eq!(metadata.outputs[0].datatype, "FP32");
    assert_eq!(metadata.platform, "onnxruntime_onnx");
    assert_eq!(metadata.properties["max_batch_size"], "8");

    let asked = ModelConfigRequest { name: "add".into(), version: "1".into() };
    let config = client.model_config(asked).await.unwrap().into_inner().config.unwrap();
    assert_eq!((config.max_batch_size, config.input[0].data_type), (8, 11));
    assert_eq!(config.input[0].dims, [3]);
    assert_eq!(
        (config.platform.as_str(), config.backend.as_str()),
        ("onnxruntime_onnx", "onnxruntime")
    );
    assert_eq!((config.input[0].format, config.input[1].format), (2, 0));
    assert_eq!(config.output[0].label_filename, "sums.txt");
    assert_eq!((config.instance_group[0].count, config.instance_group[0].kind), (2, 2));
    let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else {
        panic!("requests of this task are put together");
    };
    assert_eq!(batching.max_queue_delay_microseconds, 500);

    let asked = ModelStatisticsRequest { name: "add".into(), version: String::new() };
    let statistics = client.model_statistics(asked).await.unwrap().into_inner();
    assert_eq!(statistics.model_stats[0].inference_count, 5);
    assert_eq!(statistics.model_stats[0].batch_stats[0].batch_size, 4);
    let unknown = ModelMetadataRequest { name: "nobody".into(), version: String::new() };
    assert_eq!(client.model_metadata(unknown).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn models_are_loaded_and_unloaded() {
    let (mut client, _) = connect().await;
    let ready = || ModelReadyRequest { name: "late".into(), version: String::new() };
    assert!(!client.model_ready(ready()).await.unwrap().into_inner().ready);
    let load = RepositoryModelLoadRequest { model_name: "late".into(), ..Default::default() };
    client.repository_model_load(load).await.unwrap();
    assert!(client.model_ready(ready()).await.unwrap().into_inner().ready);
    let unload = RepositoryModelUnloadRequest { model_name: "late".into(), ..Default::default() };
    client.repository_model_unload(unload).await.unwrap();
    let asked = RepositoryIndexRequest { ready: false, ..Default::default() };
    let index = client.repository_index(asked).await.unwrap().into_inner();
    let late = index.models.iter().find(|model| model.name == "late").unwrap();
    assert_eq!((late.state.as_str(), late.reason.as_str()), ("UNAVAILABLE", "unloaded"));
}

#[tokio::test]
async fn raw_inputs_are_answered_with_raw_outputs() {
    let (mut client, fake) = connect().await;
    let mut request = Request::new(add("7"));
    request.set_timeout(Duration::from_secs(5));
    let answer = client.model_infer(request).await.unwrap().into_inner();
    assert_eq!((answer.id.as_str(), answer.model_version.as_str()), ("7", "1"));
    assert_eq!(answer.outputs[0].shape, [1, 3]);
    assert_eq!(answer.raw_output_contents[0], f32_bytes(&[11., 22., 33.]));
    let asked = fake.asked.lock().unwrap()[0].clone();
    assert!(asked.timeout.is_some_and(|timeout| timeout <= Duration::from_secs(5)));
}

#[tokio::test]
async fn typed_contents_are_read_and_checked() {
    let (mut client, _) = connect().await;
    let input = |datatype: &str, contents: InferTensorContents| ModelInferRequest {
        model_name: "echo".into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: datatype.into(),
            shape: vec![2],
            contents: Some(contents),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    };
    let small =
        |values: Vec<i32>| InferTensorContents { int_contents: values, ..Default::default() };
    let answer = client.model_infer(input("INT8", small(vec![-1, 2]))).await.unwrap().into_inner();
    assert_eq!(answer.raw_output_contents[0], vec![255u8, 2]);
    let strings =
        InferTensorContents { bytes_contents: vec!["ab".into(), "c".into()], ..Default::default() };
    let answer = client.model_infer(input("BYTES", strings)).await.unwrap().into_inner();
    assert_eq!(answer.raw_output_contents[0], b"\x02\0\0\0ab\x01\0\0\0c".to_vec());

    for (request, expected) in [
        (input("INT8", small(vec![0, 128])), "input \"x\": value 1 is 128"),
        (input("INT8", small(vec![0])), "contents has 1"),
        (input("INT64", small(vec![0, 1])), "contents has 0"),
        (input("FP16", small(vec![0, 1])), "raw_input_contents"),
    ] {
        let status = refused(&mut client, request).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(expected), "{}", status.message());
    }
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong() {
    let (mut client, _) = connect().await;
    let mut short = add("");
    short.raw_input_contents.pop();
    let mut many = add("");
    many.raw_input_contents.push(vec![0; 4].into());
    let mut cut = add("");
    cut.raw_input_contents[1] = vec![0; 11].into();
    let mut twice = add("");
    twice.inputs[1].name = "a".into();
    let mut negative = add("");
    negative.inputs[0].shape = vec![-1, 3];
    let mut both = add("");
    both.inputs[0].contents = Some(InferTensorContents::default());
    let mut sequence = add("");
    sequence.parameters.insert("sequence_id".into(), number(3));
    let mut output = add("");
    output.outputs =
        vec![InferRequestedOutputTensor { name: "q".into(), parameters: HashMap::new() }];
    for (request, expected) in [
        (short, "input \"b\": has no data"),
        (many, "raw_input_contents has 3 tensors"),
        (cut, "input \"b\": f32[1,3] needs 12 bytes, got 11"),
        (twice, "input \"a\" is there twice"),
        (negative, "negative"),
        (both, "beside raw_input_contents"),
        (sequence, "sequence_id"),
        (output, "has no output \"q\""),
    ] {
        let status = refused(&mut client, request).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{expected}");
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let full = refused(&mut client, add("full")).await;
    assert_eq!(full.code(), Code::Unavailable);
    assert_eq!(full.metadata().get("retry-after").unwrap(), "2");
    assert_eq!(refused(&mut client, add("late")).await.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_stream_is_answered_in_order_and_survives_errors() {
    let (mut client, _) = connect().await;
    let asked = ["1", "full", "exit", "4"];
    let requests: Vec<ModelInferRequest> = asked.into_iter().map(add).collect();
    let mut answers =
        client.model_stream_infer(futures_util::stream::iter(requests)).await.unwrap().into_inner();
    for id in asked {
        let answer = answers.message().await.unwrap().unwrap();
        let response = answer.infer_response.unwrap();
        assert_eq!(response.id, id);
        assert_eq!(answer.error_message, if id == "full" { "no room" } else { "" });
        assert_eq!(response.parameters.contains_key("exit"), id == "exit");
        assert!(response.parameters.contains_key("triton_final_response"));
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn tensors_are_in_shared_memory() {
    let (mut client, _) = connect().await;
    let file = SharedFile::new("grpc", &f32_bytes(&[1., 2., 3., 10., 20., 30., 0., 0., 0.]));
    let region = SystemSharedMemoryRegisterRequest {
        name: "r".into(),
        key: file.key.clone(),
        offset: 0,
        byte_size: 36,
    };
    client.system_shared_memory_register(region.clone()).await.unwrap();
    let again = client.system_shared_memory_register(region).await.unwrap_err();
    assert_eq!(again.code(), Code::InvalidArgument);
    let asked = SystemSharedMemoryStatusRequest::default();
    let status = client.system_shared_memory_status(asked).await.unwrap().into_inner();
    assert_eq!(status.regions["r"].byte_size, 36);

    let mut request = add("");
    // One input in shared memory and one in the message.
    request.inputs[0].parameters = range(12, 12);
    request.raw_input_contents.remove(0);
    request.outputs =
        vec![InferRequestedOutputTensor { name: "sum".into(), parameters: range(24, 12) }];
    let answer = client.model_infer(request).await.unwrap().into_inner();
    assert!(answer.raw_output_contents[0].is_empty());
    assert_eq!(answer.outputs[0].parameters["shared_memory_region"], text("r"));
    assert_eq!(file.bytes()[24..], f32_bytes(&[20., 40., 60.]));

    let cuda = CudaSharedMemoryRegisterRequest {
        name: "r".into(),
        raw_handle: vec![0; 64].into(),
        device_id: 1000,
        byte_size: 4,
    };
    let taken = client.cuda_shared_memory_register(cuda.clone()).await.unwrap_err();
    assert_eq!(taken.code(), Code::InvalidArgument);
    assert_eq!(taken.message(), "shared memory region 'r' already in manager");

    let all = SystemSharedMemoryUnregisterRequest::default();
    client.system_shared_memory_unregister(all).await.unwrap();
    let none = CudaSharedMemoryUnregisterRequest::default();
    client.cuda_shared_memory_unregister(none).await.unwrap();
    let refused = client.cuda_shared_memory_register(cuda).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("'r': cuda:1000: "), "{}", refused.message());
    let all = CudaSharedMemoryStatusRequest::default();
    assert!(client.cuda_shared_memory_status(all).await.unwrap().into_inner().regions.is_empty());
    let one = CudaSharedMemoryStatusRequest { name: "r".into() };
    let unknown = client.cuda_shared_memory_status(one).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

/// A server with these bounds, and a client that compresses what it sends.
async fn connect_compressing(options: FrontEndOptions) -> Client {
    let (address, _) = start_server(options).await;
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    Client::new(channel.unwrap()).send_compressed(CompressionEncoding::Gzip)
}

fn zeros(count: usize) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "one".into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "UINT8".into(),
            shape: vec![1, i64::try_from(count).unwrap()],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![vec![0; count].into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn small_messages_that_become_large_ones_are_refused() {
    let options = FrontEndOptions { largest_body: 1 << 20, ..FrontEndOptions::default() };
    let mut client = connect_compressing(options).await;
    let error = client.model_infer(zeros(8 << 20)).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    assert!(error.message().contains("too large"), "{error}");
    let budget = Arc::new(ByteBudget::new(4 << 20));
    let options = FrontEndOptions { budget: Arc::clone(&budget), ..FrontEndOptions::default() };
    let mut client = connect_compressing(options).await;
    let error = client.model_infer(zeros(8 << 20)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("requests and answers under way"), "{error}");
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn compressed_messages_are_read() {
    let mut client = connect_compressing(FrontEndOptions::default()).await;
    let live = client.server_live(ServerLiveRequest::default()).await.unwrap();
    assert!(live.into_inner().live);
    let metadata = client.server_metadata(ServerMetadataRequest::default()).await.unwrap();
    assert_eq!(metadata.into_inner().name, "tessera");
}

#[tokio::test]
async fn plain_http_gets_an_error_and_no_200() {
    let (address, _) = start_server(FrontEndOptions::default()).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n", "HTTP/1.1 415 "),
        ("GET /v2/health/ready HTTP/1.1\r\n", "HTTP/1.1 415 "),
        (
            "POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\n\
             Content-Type: application/json\r\n",
            "HTTP/1.1 415 ",
        ),
        (
            "POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\n\
             Content-Type: application/grpc\r\n",
            "HTTP/1.1 505 ",
        ),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("{request}Host: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(status), "{request}{answer}");
        assert!(answer.contains("this port speaks gRPC"), "{answer}");
    }
}
