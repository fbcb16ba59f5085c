//! What the front ends of the protocol ask of whoever answers: tasks, and answers to requests.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tessera_core::{DType, Error, Result, Tensor, TensorMut};
use tessera_graph::Port;
use tessera_tensormq::TraceContext;

/// A future that a service returns.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request of a client, read and checked as far as the protocol goes.
#[derive(Debug)]
pub struct Request {
    /// The task: what the protocol calls a model.
    pub task: String,
    /// The version that was asked for; empty for any.
    pub version: String,
    /// The client's own name for the request; empty where it gave none.
    pub id: String,
    /// Inputs by name, in the order in which they came.
    pub inputs: Vec<(String, Tensor)>,
    /// How long the client waits.
    pub timeout: Option<Duration>,
    /// The trace that the request is part of.
    pub trace: Option<TraceContext>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// The task's outputs by name, in the task's order.
    pub outputs: Vec<(String, Tensor)>,
    /// Per row of the batch, the exit that was taken; empty where all went to the end.
    pub exits: Vec<Option<String>>,
    /// Why the answer comes from an exit that was not certain enough; `None` for a full answer.
    pub degraded: Option<String>,
}

/// Why a request is not answered.
#[derive(Debug)]
pub struct Refusal {
    /// What is wrong.
    pub error: Error,
    /// When it may be worth trying again.
    pub retry_after: Option<Duration>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None }
    }
}

/// Whether a task answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It answers.
    Ready,
    /// It is on its way.
    Loading,
    /// It does not answer, and why; empty for one that nobody asked for.
    Unavailable(String),
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
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
    /// Most rows of one request; 0 where the first dimension is no batch.
    pub max_batch_size: usize,
    /// The largest batch that is put together of several requests, and how long it is waited for;
    /// `None` where requests are not put together.
    pub batching: Option<(usize, Duration)>,
}

/// How often something happened and how long it took, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// How long in all, in nanoseconds.
    pub nanoseconds: u64,
}

/// What a task did since the server started.
#[derive(Clone, Debug, Default)]
pub struct TaskStatistics {
    /// Rows that were answered.
    pub inferences: u64,
    /// Runs: several requests in one batch count once.
    pub executions: u64,
    /// When the last request came, in milliseconds since 1970; 0 for never.
    pub last_inference_ms: u64,
    /// Requests that were answered, from end to end.
    pub success: Spent,
    /// Requests that were not, from end to end.
    pub fail: Spent,
    /// Waiting, before the first block and between blocks.
    pub queue: Spent,
    /// Getting inputs to where blocks read them.
    pub compute_input: Spent,
    /// Computing.
    pub compute_infer: Spent,
    /// Getting outputs to where the client reads them.
    pub compute_output: Spent,
}

/// Who answers the requests that the front ends take.
pub trait Service: Send + Sync + 'static {
    /// Every task there is, those that can be loaded and are not included, by name.
    fn tasks(&self) -> Vec<TaskInfo>;

    /// One task; `NotFound` names the task or the version that is not there.
    fn task(&self, name: &str, version: &str) -> Result<TaskInfo>;

    /// Whether every task that should answer does.
    fn is_ready(&self) -> bool;

    /// What a task did.
    fn statistics(&self, name: &str) -> Result<TaskStatistics>;

    /// Memory for an input, such that blocks can read it without a copy.
    fn memory(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut>;

    /// Answers a request. Dropped before it is done, the request is given up.
    fn infer(&self, request: Request) -> Answering<'_, Result<Answer, Refusal>>;

    /// Starts to serve a model of the repository as a task of the same name, and waits until it answers.
    fn load<'a>(&'a self, name: &'a str) -> Answering<'a, Result<()>>;

    /// Stops serving a task.
    fn unload<'a>(&'a self, name: &'a str) -> Answering<'a, Result<()>>;
}
