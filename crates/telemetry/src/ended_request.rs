//! A request that has ended, as the dispatcher tells it to whoever observes.

use tessera_core::Error;
use tessera_deploy::HopTiming;
use tessera_tensormq::{RequestId, TraceContext};

/// Is told what happens.
pub trait RequestObserver: Send + Sync {
    /// A request has ended. Must not wait.
    fn request_ended(&self, ended: &EndedRequest<'_>);
}

/// A request that has ended.
#[derive(Debug)]
pub struct EndedRequest<'a> {
    /// The task.
    pub task: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Our number of the request.
    pub request: RequestId,
    /// The client's name for it; may be empty.
    pub id: &'a str,
    /// Rows of its batch.
    pub rows: usize,
    /// When it was accepted, by the host's monotonic clock, in nanoseconds.
    pub accepted: u64,
    /// When it ended, by the same clock.
    pub ended: u64,
    /// What happened on its way, per part of it.
    pub hop_timings: &'a [HopTiming],
    /// Per row, the exit that was taken.
    pub exits: &'a [Option<String>],
    /// How it ended.
    pub outcome: RequestOutcome<'a>,
    /// How often parts of it were sent again.
    pub retries: u32,
    /// The trace that it is part of.
    pub trace: Option<TraceContext>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum RequestOutcome<'a> {
    /// With an answer.
    Answered,
    /// With an answer of an exit that was not certain enough, and why.
    Degraded(&'a str),
    /// With an error.
    Failed(&'a Error),
    /// Refused, as it could not be finished in time.
    Refused(&'a Error),
    /// The client went away.
    Cancelled,
}
