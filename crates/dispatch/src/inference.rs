//! A request of a client, and what it gets: an answer, or why there is none.

use std::time::Duration;

use tessera_core::{Error, Tensor};
use tessera_tensormq::TraceContext;

/// A request of a client, read and checked as far as the protocol goes.
#[derive(Debug)]
pub struct InferenceRequest {
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
pub struct InferenceResponse {
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
