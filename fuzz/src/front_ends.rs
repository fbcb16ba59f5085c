//! Requests as clients send them, to front ends that have no engine behind them.

use std::cell::RefCell;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Version};
use http_body_util::BodyExt;
use tessera_gateway::{FrontEndOptions, grpc_router, http_router};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use fake::Fake;

#[allow(dead_code, reason = "the tests of the gateway need more of it")]
#[path = "../../crates/gateway/tests/front_ends/fake.rs"]
mod fake;

/// Bytes of the largest body: what is not refused has to fit into memory.
const LARGEST_BODY: usize = 16 << 20;

/// What bodies are sent to.
const PATHS: [&str; 8] = [
    "/v2/models/add/infer",
    "/v2/models/echo/infer",
    "/v2/models/one/infer",
    "/v2/models/one/versions/1/infer",
    "/v2/repository/index",
    "/v2/repository/models/late/load",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/models/stats",
];

/// The calls that messages are sent to.
const CALLS: [&str; 6] = [
    "ModelInfer",
    "ModelMetadata",
    "ModelConfig",
    "RepositoryIndex",
    "ServerMetadata",
    "ModelReady",
];

thread_local! {
    /// Made once: what describes the services takes longer than a case.
    static GRPC: Router =
        grpc_router(service(), options()).expect("descriptions of services");
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

fn run(future: impl Future<Output = ()>) {
    RUNTIME.with_borrow_mut(|runtime| {
        let new = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.get_or_insert_with(new).block_on(future);
    });
}

/// Refuses the names that the dispatcher would, so that it answers with every output that it has.
fn service() -> Arc<Fake> {
    Arc::new(Fake { checks_inputs: true, ..Fake::default() })
}

fn options() -> FrontEndOptions {
    FrontEndOptions { largest_body: LARGEST_BODY, ..FrontEndOptions::default() }
}

/// Sends a body over HTTP. The first byte says where to, the second how it is encoded and where its
/// JSON ends.
pub fn send_http_body(bytes: &[u8]) {
    let [to, how, body @ ..] = bytes else { return };
    let path = PATHS[usize::from(*to) % PATHS.len()];
    let mut request = Request::new(Body::from(body.to_vec()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().expect("a path");
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if let Some(encoding) = [None, None, Some("gzip"), Some("deflate")][usize::from(how % 4)] {
        headers.insert("content-encoding", HeaderValue::from_static(encoding));
    }
    if how / 4 > 0 {
        let length = body.len().saturating_sub(usize::from(how / 4) - 1);
        headers.insert("inference-header-content-length", HeaderValue::from(length));
        headers.insert("content-type", HeaderValue::from_static("application/octet-stream"));
    }
    run(async {
        let router = http_router(service(), options());
        let response = router.oneshot(request).await.expect("an answer");
        let (status, body) = (response.status(), response.into_body().collect().await);
        assert_ne!(status.as_u16(), 500, "{body:?}");
    });
}

/// Sends a message over gRPC. The first byte says which call it is of.
pub fn send_grpc_message(bytes: &[u8]) {
    let [call, message @ ..] = bytes else { return };
    let call = CALLS[usize::from(*call) % CALLS.len()];
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message);
    let mut request = Request::new(Body::from(framed));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = format!("/inference.GRPCInferenceService/{call}").parse().expect("a path");
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    run(async {
        let response = GRPC.with(Router::clone).oneshot(request).await.expect("an answer");
        // What is wrong is said in the trailers, not by breaking off.
        response.into_body().collect().await.expect("an answer to its end");
    });
}
