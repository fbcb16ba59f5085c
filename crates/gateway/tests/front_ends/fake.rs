//! A service without engines, and a client without sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request as HttpRequest, StatusCode};
use serde_json::Value;
use tessera_core::{DType, Device, Dim, Error, Result, Tensor, TensorMut, TensorType};
use tessera_dispatch::{
    BatchStatistics, DurationTotal, InferenceRequest, InferenceResponse, Refusal, TaskStatistics,
};
use tessera_gateway::{
    FrontEndOptions, InferenceService, LoadOverrides, OutputLabels, ServiceFuture, TaskDescription,
    TaskInfo, TaskState, http_router,
};
use tessera_graph::TensorPort;
use tessera_tensormq::TraceContext;
use tower::ServiceExt;

/// What the service was asked beside the tensors.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) version: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) trace: Option<TraceContext>,
}

/// Answers `add` with the sum of its inputs, and every other task with its inputs.
#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) asked: Mutex<Vec<Asked>>,
    pub(crate) loaded: Mutex<bool>,
    /// Whether inputs that a task does not have are refused, and not echoed.
    pub(crate) checks_inputs: bool,
    /// Lets go on what is slow.
    pub(crate) release: tokio::sync::Notify,
    /// What the last model was loaded with.
    pub(crate) overrides: Mutex<LoadOverrides>,
}

fn port(name: &str, dtype: DType, dims: &[Option<usize>]) -> TensorPort {
    let dims = dims.iter().map(|dim| dim.map_or(Dim::Unknown, Dim::Fixed)).collect();
    TensorPort {
        name: name.into(),
        tensor_type: TensorType::new(dtype, dims),
        is_row_wise: true,
        default: None,
    }
}

fn task(
    name: &str,
    inputs: Vec<TensorPort>,
    outputs: Vec<TensorPort>,
    max_batch_size: usize,
) -> TaskInfo {
    TaskInfo {
        name: name.into(),
        version: "1".into(),
        state: TaskState::Ready,
        inputs,
        outputs,
        max_batch_size,
        batching: (max_batch_size > 0).then_some((max_batch_size, Duration::from_micros(500))),
        description: Arc::default(),
    }
}

/// What is known of `add` beside what it takes and gives.
fn description() -> TaskDescription {
    let labels = vec!["zero".to_owned(), "one".to_owned()];
    TaskDescription {
        formats: BTreeMap::from([("a".to_owned(), "FORMAT_NCHW".to_owned())]),
        labels: BTreeMap::from([(
            "sum".to_owned(),
            OutputLabels { file: "sums.txt".to_owned(), labels },
        )]),
        instances: 2,
        device: Device::Cpu,
    }
}

impl InferenceService for Fake {
    fn list_tasks(&self) -> Vec<TaskInfo> {
        let row = |name| port(name, DType::F32, &[None, Some(3)]);
        let anything = |name| port(name, DType::I32, &[None]);
        let echo = || vec![anything("x"), anything("y")];
        let state = if *self.loaded.lock().unwrap() {
            TaskState::Ready
        } else {
            TaskState::Unavailable("unloaded".into())
        };
        vec![
            TaskInfo {
                description: Arc::new(description()),
                ..task("add", vec![row("a"), row("b")], vec![row("sum")], 8)
            },
            task("open", vec![port("x", DType::F32, &[None, Some(2), None])], vec![row("x")], 0),
            task("scalar", vec![port("x", DType::F32, &[None])], vec![row("x")], 8),
            task("echo", echo(), echo(), 0),
            task("a name/ü", echo(), echo(), 0),
            task("one", vec![row("x")], vec![row("x")], 8),
            TaskInfo { state, ..task("late", echo(), echo(), 0) },
            TaskInfo {
                state: TaskState::Loading(String::new()),
                ..task("loading", echo(), echo(), 0)
            },
        ]
    }

    fn find_task(&self, name: &str, version: &str) -> Result<TaskInfo> {
        let found = self.list_tasks().into_iter().find(|task| task.name == name);
        let task = found.ok_or_else(|| Error::not_found(format!("there is no task \"{name}\"")))?;
        if !version.is_empty() && version != task.version {
            return Err(Error::not_found(format!("task \"{name}\" has no version \"{version}\"")));
        }
        Ok(task)
    }

    fn is_ready(&self) -> bool {
        *self.loaded.lock().unwrap()
    }

    fn task_statistics(&self, name: &str) -> Result<TaskStatistics> {
        self.find_task(name, "")?;
        let success = DurationTotal { count: 3, nanoseconds: 4500 };
        let compute_infer = DurationTotal { count: 2, nanoseconds: 900 };
        let batches = vec![BatchStatistics { rows: 4, compute_infer, ..Default::default() }];
        let totals = TaskStatistics::default();
        Ok(TaskStatistics { inferences: 5, executions: 3, success, batches, ..totals })
    }

    fn allocate_input(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        TensorMut::new_zeroed(dtype, shape)
    }

    fn infer(
        &self,
        request: InferenceRequest,
    ) -> ServiceFuture<'_, Result<InferenceResponse, Refusal>> {
        let InferenceRequest { task, version, id, inputs, timeout, trace } = request;
        self.asked.lock().unwrap().push(Asked { version, timeout, trace });
        Box::pin(async move {
            let exit = |name: &str| Some(name.to_owned());
            let (exits, degraded) = match id.as_str() {
                "full" => {
                    let retry_after = Some(Duration::from_millis(1500));
                    return Err(Refusal { error: Error::full("no room"), retry_after });
                }
                "slow" => {
                    self.release.notified().await;
                    (Vec::new(), None)
                }
                "late" => return Err(Error::timed_out("too late").into()),
                "exit" => (vec![exit("early"), exit("early")], None),
                "exits" => (vec![exit("early"), None], Some("in a hurry".to_owned())),
                _ => (Vec::new(), None),
            };
            if self.checks_inputs {
                self.check_input_names(&task, &inputs)?;
            }
            let outputs = if task == "add" { vec![sum(&inputs)?] } else { inputs };
            Ok(InferenceResponse { outputs, exits, degraded })
        })
    }

    fn load_task<'a>(
        &'a self,
        name: &'a str,
        overrides: LoadOverrides,
    ) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            self.find_task(name, "")?;
            *self.loaded.lock().unwrap() = true;
            *self.overrides.lock().unwrap() = overrides;
            Ok(())
        })
    }

    fn unload_task<'a>(&'a self, _: &'a str) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            *self.loaded.lock().unwrap() = false;
            Ok(())
        })
    }
}

impl Fake {
    /// What the dispatcher refuses before anything is computed.
    fn check_input_names(&self, task: &str, inputs: &[(String, Tensor)]) -> Result<()> {
        let expected = self.find_task(task, "")?.inputs;
        let is_given = |name: &str| inputs.iter().any(|(given, _)| given == name);
        let is_known = |name: &str| expected.iter().any(|port| port.name == name);
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !is_known(name)) {
            return Err(Error::invalid(format!("unknown input \"{name}\"")));
        }
        match expected.iter().find(|port| !is_given(&port.name)) {
            Some(port) => Err(Error::invalid(format!("input \"{}\" is missing", port.name))),
            None => Ok(()),
        }
    }
}

fn sum(inputs: &[(String, Tensor)]) -> Result<(String, Tensor)> {
    let [(_, a), (_, b)] = inputs else {
        return Err(Error::invalid("add takes two inputs"));
    };
    let values = |tensor: &Tensor| tensor.to_f64().unwrap_or_default();
    let sums: Vec<f32> = values(a).iter().zip(values(b)).map(|(x, y)| (x + y) as f32).collect();
    Ok(("sum".into(), Tensor::from_f32(a.shape(), &sums)?))
}

/// A server whose handlers are called and not connected to.
pub(crate) struct Server {
    pub(crate) fake: Arc<Fake>,
    router: Router,
}

/// A response that was read to its end.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(FrontEndOptions::default())
    }

    pub(crate) fn with(options: FrontEndOptions) -> Self {
        let fake = Arc::new(Fake::default());
        let service: Arc<dyn InferenceService> = Arc::<Fake>::clone(&fake);
        Self { fake, router: http_router(service, options) }
    }

    pub(crate) async fn send(&self, request: HttpRequest<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, &[], Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        self.call(Method::POST, path, &[], body.into()).await
    }

    /// Sends a request for inference as JSON.
    pub(crate) async fn infer(&self, task: &str, request: &Value) -> Reply {
        self.post(&format!("/v2/models/{task}/infer"), request.to_string()).await
    }

    /// Sends a request for inference with bytes after its JSON.
    pub(crate) async fn infer_binary(
        &self,
        task: &str,
        request: &Value,
        tensors: &[&[u8]],
    ) -> Reply {
        let mut body = request.to_string().into_bytes();
        let len = body.len().to_string();
        for tensor in tensors {
            body.extend_from_slice(tensor);
        }
        let headers = [("Inference-Header-Content-Length", len.as_str())];
        self.call(Method::POST, &format!("/v2/models/{task}/infer"), &headers, body).await
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Reply {
        let mut request = HttpRequest::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body)).unwrap()).await
    }
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The JSON and the bytes after it.
    pub(crate) fn split(&self) -> (Value, &[u8]) {
        let len = self.header("inference-header-content-length").parse().unwrap();
        let (json, tensors) = self.body.split_at(len);
        (serde_json::from_slice(json).unwrap(), tensors)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// What is wrong; panics where nothing is.
    pub(crate) fn error(&self) -> String {
        assert!(!self.status.is_success(), "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/json");
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

/// The bytes of `f32` values.
pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
