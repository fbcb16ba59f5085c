//! What the front ends of the protocol ask of whoever answers: tasks, and answers to requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{DType, Device, Result, TensorMut};
use tessera_dispatch::{
    InferenceRequest, InferenceResponse, Refusal, TaskAvailability, TaskStatistics,
};
use tessera_graph::TensorPort;

/// A future that a service returns.
pub type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether a task answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It answers.
    Ready,
    /// It is on its way, and what it waits for.
    Loading(String),
    /// It does not answer, and why; empty for one that nobody asked for.
    Unavailable(String),
}

impl From<TaskAvailability> for TaskState {
    fn from(availability: TaskAvailability) -> Self {
        match availability {
            TaskAvailability::Ready => Self::Ready,
            TaskAvailability::Loading(reason) => Self::Loading(reason),
            TaskAvailability::Unavailable(reason) => Self::Unavailable(reason),
        }
    }
}

/// A task, as clients see it.
#[derive(Clone, Debug)]
pub struct TaskInfo {
    /// Its name.
    pub name: String,
    /// Its version; every change of a task makes a new one.
    pub version: String,
    /// Whether it answers.
    pub state: TaskState,
    /// What it takes.
    pub inputs: Vec<TensorPort>,
    /// What it gives.
    pub outputs: Vec<TensorPort>,
    /// Most rows of one request; 0 where the first dimension is no batch.
    pub max_batch_size: usize,
    /// The largest batch that is put together of several requests, and how long it is waited for;
    /// `None` where requests are not put together.
    pub batching: Option<(usize, Duration)>,
    /// What is known of it beside that.
    pub description: Arc<TaskDescription>,
}

/// What clients may want to know of a task and what answering does not need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskDescription {
    /// How images are laid out (`FORMAT_NCHW`, `FORMAT_NHWC`), by input.
    pub formats: BTreeMap<String, String>,
    /// What classes are called, by output.
    pub labels: BTreeMap<String, OutputLabels>,
    /// Instances of each of its units; 0 where that is not known.
    pub instances: usize,
    /// What they run on.
    pub device: Device,
}

/// What the classes of an output are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputLabels {
    /// The file that they come from.
    pub file: String,
    /// The labels, in the order of classes.
    pub labels: Vec<String>,
}

/// What a client loads a model with, in place of what the repository has.
#[derive(Clone, Debug, Default)]
pub struct LoadOverrides {
    /// The configuration, as JSON.
    pub config: Option<String>,
    /// Files of the model by their paths in its folder: `1/model.onnx`.
    pub files: BTreeMap<String, Bytes>,
}

/// Who answers the requests that the front ends take.
pub trait InferenceService: Send + Sync + 'static {
    /// Every task there is, those that can be loaded and are not included, by name.
    fn list_tasks(&self) -> Vec<TaskInfo>;

    /// One task; `NotFound` names the task or the version that is not there.
    fn find_task(&self, name: &str, version: &str) -> Result<TaskInfo>;

    /// Whether every task that should answer does.
    fn is_ready(&self) -> bool;

    /// What a task did.
    fn task_statistics(&self, name: &str) -> Result<TaskStatistics>;

    /// Memory for an input, such that units can read it without a copy.
    fn allocate_input(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut>;

    /// Answers a request. Dropped before it is done, the request is cancelled.
    fn infer(
        &self,
        request: InferenceRequest,
    ) -> ServiceFuture<'_, Result<InferenceResponse, Refusal>>;

    /// Starts to serve a model as a task of the same name, and waits until it answers: one of the
    /// repository, or one that the client brings.
    fn load_task<'a>(
        &'a self,
        name: &'a str,
        overrides: LoadOverrides,
    ) -> ServiceFuture<'a, Result<()>>;

    /// Stops serving a task; one that is not there is fine.
    fn unload_task<'a>(&'a self, name: &'a str) -> ServiceFuture<'a, Result<()>>;
}
