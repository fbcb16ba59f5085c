//! How a run is getting on, for whoever watches.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Sending, but not counting yet.
    WarmUp,
    /// Sending and counting.
    Measuring,
    /// Waiting for the answers to what was sent.
    Draining,
}

/// How a run is getting on, about five times a second.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadProgress {
    /// What it is doing.
    pub phase: LoadPhase,
    /// Time since it began, with the warm-up.
    pub elapsed: Duration,
    /// Time that it takes, with the warm-up, where that is known.
    pub total: Option<Duration>,
    /// Requests that count and have ended, whichever way.
    pub done: u64,
    /// Requests that are to be sent, where that is known.
    pub requests: Option<u64>,
    /// The rate that is offered, in the open loop.
    pub offered_per_second: Option<f64>,
    /// Answers that were OK, per second, over the last second.
    pub rate_per_second: f64,
    /// The latency so far that half the answers are below, zero while there are none.
    pub p50_ms: f64,
    /// The latency so far that 99 of 100 answers are below, zero while there are none.
    pub p99_ms: f64,
    /// Requests that went wrong, those of the warm-up included.
    pub errors: u64,
}

/// The rate over the last second.
#[derive(Debug, Default)]
pub(crate) struct RecentRate(VecDeque<(Instant, u64)>);

impl RecentRate {
    /// Notes that there were `count` by `now`, and gives the rate per second.
    pub(crate) fn add_count(&mut self, now: Instant, count: u64) -> f64 {
        self.0.push_back((now, count));
        while self.0.len() > 6 {
            self.0.pop_front();
        }
        let Some(&(since, before)) = self.0.front() else { return 0.0 };
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if seconds > 0.0 { count.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}
