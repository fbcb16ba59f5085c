//! Tensors in shared memory, over HTTP.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tessera_gateway::{ByteBudget, FrontEndOptions};

use crate::fake::{Server, f32_bytes};

/// A file in `/dev/shm` that goes away with its test.
pub(crate) struct SharedFile {
    pub(crate) key: String,
    path: PathBuf,
}

impl SharedFile {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let key = format!("/tessera-front-ends-{}-{name}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(&key[1..]);
        fs::write(&path, bytes).unwrap();
        Self { key, path }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        fs::remove_file(&self.path).unwrap();
    }
}

fn register(file: &SharedFile, byte_size: u64) -> String {
    json!({"key": file.key, "offset": 0, "byte_size": byte_size}).to_string()
}

const REGISTER: &str = "/v2/systemsharedmemory/region/r/register";

fn add(b_size: u64, out_size: u64) -> Value {
    let range = |offset: u64, byte_size: u64| {
        json!({"shared_memory_region": "r", "shared_memory_offset": offset,
               "shared_memory_byte_size": byte_size})
    };
    json!({
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 3], "parameters": range(0, 12)},
            {"name": "b", "datatype": "FP32", "shape": [1, 3], "parameters": range(12, b_size)},
        ],
        "outputs": [{"name": "sum", "parameters": range(24, out_size)}],
    })
}

#[tokio::test]
async fn inputs_are_read_from_and_outputs_written_to_a_region() {
    let server = Server::new();
    let inputs = f32_bytes(&[1., 2., 3., 10., 20., 30., 0., 0., 0., 7.]);
    let file = SharedFile::new("infer", &inputs);
    assert_eq!(server.post(REGISTER, register(&file, 40)).await.status, StatusCode::OK);
    let json = server.infer("add", &add(12, 16)).await.json();
    // Clients take an output that has parameters for one with binary data.
    assert!(json["outputs"][0].get("parameters").is_none());
    assert!(json["outputs"][0].get("data").is_none());
    assert_eq!(file.bytes()[24..], f32_bytes(&[11., 22., 33., 7.]));
}

#[tokio::test]
async fn regions_are_registered_listed_and_forgotten() {
    let server = Server::new();
    let file = SharedFile::new("listed", &[0; 64]);
    assert_eq!(server.post(REGISTER, register(&file, 64)).await.status, StatusCode::OK);
    let expected = json!([{"name": "r", "key": file.key, "offset": 0, "byte_size": 64}]);
    assert_eq!(server.get("/v2/systemsharedmemory/status").await.json(), expected);
    assert_eq!(server.get("/v2/systemsharedmemory/region/r/status").await.json(), expected);

    let again = server.post(REGISTER, register(&file, 64)).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST);
    assert_eq!(again.error(), "shared memory region 'r' already in manager");

    for path in ["region/r/unregister", "region/r/unregister", "unregister"] {
        let reply = server.post(&format!("/v2/systemsharedmemory/{path}"), "").await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
    }
    assert_eq!(server.get("/v2/systemsharedmemory/status").await.json(), json!([]));
    let gone = server.get("/v2/systemsharedmemory/region/r/status").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn regions_that_are_not_there_or_too_small_are_refused() {
    let server = Server::new();
    let file = SharedFile::new("small", &[0; 32]);
    for (body, expected) in [
        (register(&file, 33), "has 32 bytes, asked for 33"),
        (json!({"key": "/../etc/passwd", "byte_size": 1}).to_string(), "shared memory key"),
        (json!({"key": "/tessera-nobody", "byte_size": 1}).to_string(), "can't open"),
        (json!({"byte_size": 1}).to_string(), "has no key"),
        (json!({"key": file.key}).to_string(), "has no byte_size"),
        ("{".to_owned(), "line 1 column 1"),
    ] {
        let reply = server.post(REGISTER, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{expected}");
        assert!(reply.error().contains(expected), "{}", reply.error());
    }

    let unknown = server.infer("add", &add(12, 12)).await;
    assert!(unknown.error().contains("Unable to find shared memory region: 'r'"));
    server.post(REGISTER, register(&file, 32)).await;
    for (b_size, out_size, expected) in [
        (11, 12, "f32[1,3] needs 12 bytes, got 11"),
        (12, 8, "8 bytes were set aside, the tensor has 12"),
        (12, 12, "has 32 bytes, asked for 12 at offset 24"),
    ] {
        let reply = server.infer("add", &add(b_size, out_size)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
}

/// What an input of this many elements at a region is refused with.
async fn refused_read(server: &Server, elements: u64) -> String {
    let parameters = json!({
        "shared_memory_region": "r",
        "shared_memory_byte_size": elements * 4,
    });
    let input = |name: &str| {
        json!({"name": name, "datatype": "FP32", "shape": [1, elements],
               "parameters": parameters})
    };
    let reply = server.infer("add", &json!({"inputs": [input("a"), input("b")]})).await;
    assert!(!reply.status.is_success());
    reply.error()
}

#[tokio::test]
async fn what_a_client_says_of_a_region_takes_no_memory() {
    let server = Server::with(FrontEndOptions {
        budget: Arc::new(ByteBudget::new(1 << 30)),
        ..FrontEndOptions::default()
    });
    let file = SharedFile::new("claims", &[0; 32]);
    server.post(REGISTER, register(&file, 32)).await;
    let error = refused_read(&server, 250_000_000_000_000).await;
    assert!(error.contains("has 32 bytes, asked for 1000000000000000"), "{error}");
    // A file that says that it is large may have no pages at all.
    let sparse = SharedFile::new("sparse", &[]);
    fs::OpenOptions::new().write(true).open(&sparse.path).unwrap().set_len(100 << 30).unwrap();
    server.post("/v2/systemsharedmemory/unregister", "").await;
    server.post(REGISTER, register(&sparse, 100 << 30)).await;
    let error = refused_read(&server, 20 << 30).await;
    assert!(error.contains("requests and answers under way have 1073 MB"), "{error}");
}

#[tokio::test]
async fn a_region_that_is_forgotten_meanwhile_stays_until_the_answer() {
    let server = Server::new();
    let file = SharedFile::new("forgotten", &f32_bytes(&[1., 2., 3., 10., 20., 30., 0., 0., 0.]));
    server.post(REGISTER, register(&file, 36)).await;
    let mut request = add(12, 12);
    request["id"] = json!("slow");
    let (answer, forgotten) = tokio::join!(server.infer("add", &request), async {
        let forgotten = server.post("/v2/systemsharedmemory/region/r/unregister", "").await;
        server.fake.release.notify_one();
        forgotten
    });
    assert_eq!(forgotten.status, StatusCode::OK);
    assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
    assert_eq!(file.bytes()[24..], f32_bytes(&[11., 22., 33.]));
    // Where it is gone before, nothing is computed.
    let asked = server.fake.asked.lock().unwrap().len();
    let mut request = plain_add();
    request["outputs"] = json!([{"name": "sum", "parameters": {
        "shared_memory_region": "r", "shared_memory_byte_size": 12}}]);
    let refused = server.infer("add", &request).await;
    assert!(refused.error().contains("Unable to find shared memory region: 'r'"));
    assert_eq!(server.fake.asked.lock().unwrap().len(), asked);
}

/// The same with its inputs in the request.
fn plain_add() -> Value {
    let input =
        |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]});
    json!({"inputs": [input("a"), input("b")]})
}
