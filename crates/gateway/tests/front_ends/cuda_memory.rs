//! Tensors in the memory of a GPU that a client shares, over HTTP and gRPC.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tessera_core::{DType, Tensor};
use tessera_cuda::{Gpu, IpcMemory};

use crate::fake::Server;
use crate::shared_memory::SharedFile;

const REGISTER: &str = "/v2/cudasharedmemory/region/r/register";

fn registration(handle: &[u8], device_id: i64, byte_size: u64) -> String {
    let handle = json!({"b64": STANDARD.encode(handle)});
    json!({"raw_handle": handle, "device_id": device_id, "byte_size": byte_size}).to_string()
}

fn range(offset: u64, byte_size: u64) -> Value {
    json!({"shared_memory_region": "r", "shared_memory_offset": offset,
           "shared_memory_byte_size": byte_size})
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[tokio::test]
async fn regions_that_make_no_sense_are_refused() {
    let server = Server::new();
    let b64 = |text: &str| json!({"raw_handle": {"b64": text}, "device_id": 0, "byte_size": 4});
    for (body, expected) in [
        (String::new(), "shared memory region 'r' has no raw_handle"),
        (b64("no*base64").to_string(), "raw_handle: base64: "),
        (b64("AAAA").to_string(), "raw_handle has 3 bytes, expected 64"),
        (registration(&[0; 64], 0, 0), "byte_size is 0, expected 1 or more"),
        (registration(&[0; 64], -1, 4), "device_id is -1, expected the number of a GPU"),
        (registration(&[0; 64], 1000, 4), "shared memory region 'r': cuda:1000: "),
        // Without a GPU the driver is missing; with one there is no such memory.
        (registration(&[0; 64], 0, 4), "shared memory region 'r': "),
        ("{".to_owned(), "line 1 column 1"),
    ] {
        let reply = server.post(REGISTER, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{expected}");
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
    assert_eq!(server.get("/v2/cudasharedmemory/status").await.json(), json!([]));
}

#[tokio::test]
async fn a_name_is_registered_in_one_kind_of_memory_alone() {
    let server = Server::new();
    let file = SharedFile::new("either", &[0; 32]);
    let region = json!({"key": file.key, "byte_size": 32}).to_string();
    let system = "/v2/systemsharedmemory/region/r/register";
    assert_eq!(server.post(system, region).await.status, StatusCode::OK);
    let taken = server.post(REGISTER, registration(&[0; 64], 0, 4)).await;
    assert_eq!(taken.status, StatusCode::BAD_REQUEST);
    assert_eq!(taken.error(), "shared memory region 'r' already in manager");
    for path in ["region/r/unregister", "unregister"] {
        let reply = server.post(&format!("/v2/cudasharedmemory/{path}"), "").await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
    }
    assert_eq!(server.get("/v2/cudasharedmemory/status").await.json(), json!([]));
    let one = server.get("/v2/cudasharedmemory/region/r/status").await;
    assert_eq!(one.status, StatusCode::NOT_FOUND);
    assert_eq!(one.error(), "Unable to find cuda shared memory region: 'r'");
    let all = server.get("/v2/systemsharedmemory/status").await.json();
    assert_eq!(all.as_array().unwrap().len(), 1);
}

/// Another process that has memory on a GPU, as a client does: a process can't open its own.
struct Owner {
    child: Child,
    handle: Vec<u8>,
}

const OWNED: usize = 1024;

impl Owner {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cuda_memory::owner_of_memory", "--nocapture"])
            .env("TESSERA_TEST_OWNER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let handle = lines.find_map(|line| Some(line.unwrap().strip_prefix("handle ")?.to_owned()));
        Self { child, handle: STANDARD.decode(handle.unwrap()).unwrap() }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// What [`Owner`] runs: 0, 1, 2, … on the GPU until nobody needs it any more.
#[test]
fn owner_of_memory() {
    if std::env::var_os("TESSERA_TEST_OWNER").is_none() {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let (memory, handle) = IpcMemory::create_with_handle(&gpu, OWNED).unwrap();
    let values: Vec<i32> = (0..256).collect();
    let values = Tensor::copy_from_bytes(DType::I32, &[256], &bytes(&values)).unwrap();
    memory.write_tensor(0, &values).unwrap();
    assert!(memory.byte_len().unwrap() >= OWNED);
    println!("\nhandle {}", STANDARD.encode(handle));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[tokio::test]
async fn tensors_stay_in_the_memory_of_a_client() {
    if let Err(error) = Gpu::open(0) {
        eprintln!("skipped: no GPU: {error}");
        return;
    }
    let server = Server::new();
    let owner = Owner::start();
    let too_large = server.post(REGISTER, registration(&owner.handle, 0, 1 << 40)).await;
    assert_eq!(too_large.status, StatusCode::BAD_REQUEST);
    assert!(too_large.error().contains("byte_size is 1099511627776, the memory has "));
    let whole = registration(&owner.handle, 0, OWNED as u64);
    assert_eq!(server.post(REGISTER, whole.clone()).await.status, StatusCode::OK);
    let again = server.post(REGISTER, whole).await;
    assert_eq!(again.error(), "shared memory region 'r' already in manager");
    let statuses = json!([{"name": "r", "device_id": 0, "byte_size": OWNED}]);
    assert_eq!(server.get("/v2/cudasharedmemory/status").await.json(), statuses);
    assert_eq!(server.get("/v2/cudasharedmemory/region/r/status").await.json(), statuses);

    let input = |name: &str, count: u64, offset: u64| {
        json!({"name": name, "datatype": "INT32", "shape": [count],
               "parameters": range(offset, 4 * count)})
    };
    let values = |reply: &Value, output: usize| reply["outputs"][output]["data"].clone();
    // One in place, and one where kernels could not read it, which is copied on the GPU.
    let asked = json!({"inputs": [input("x", 3, 256), input("y", 2, 20)]});
    let reply = server.infer("echo", &asked).await.json();
    assert_eq!(values(&reply, 0), json!([64, 65, 66]));
    assert_eq!(values(&reply, 1), json!([5, 6]));

    // From the GPU to the GPU, and from the host to the GPU.
    let asked = json!({
        "inputs": [input("x", 3, 256), {"name": "y", "datatype": "INT32", "shape": [2], "data": [-1, -2]}],
        "outputs": [{"name": "x", "parameters": range(0, 12)},
                    {"name": "y", "parameters": range(12, 8)}],
    });
    let reply = server.infer("echo", &asked).await.json();
    assert!(reply["outputs"][0].get("data").is_none());
    let asked = json!({"inputs": [input("x", 6, 0)]});
    let reply = server.infer("echo", &asked).await.json();
    assert_eq!(values(&reply, 0), json!([64, 65, 66, -1, -2, 5]));

    for (changed, expected) in [
        (input("x", 2, 1020), "has 1024 bytes, asked for 8 at offset 1020"),
        (input("x", 2, 2), "offset 2, expected a multiple of 4"),
        (
            json!({"name": "x", "datatype": "BYTES", "shape": [1], "parameters": range(0, 8)}),
            "strings can't be in the memory of a GPU",
        ),
    ] {
        let reply = server.infer("echo", &json!({"inputs": [changed]})).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
    let small = json!({"inputs": [input("x", 3, 0)],
                       "outputs": [{"name": "x", "parameters": range(0, 8)}]});
    let reply = server.infer("echo", &small).await;
    assert!(reply.error().contains("8 bytes were set aside, the tensor has 12"));

    assert_eq!(server.post("/v2/cudasharedmemory/unregister", "").await.status, StatusCode::OK);
    let gone = server.infer("echo", &json!({"inputs": [input("x", 1, 0)]})).await;
    assert!(gone.error().contains("Unable to find shared memory region: 'r'"));
}
