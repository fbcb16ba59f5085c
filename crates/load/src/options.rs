//! What kind of load, and for how long.

use std::time::Duration;

use tessera_core::{Error, Result};

use crate::arrivals::Arrivals;
use crate::metrics_page::MetricsPage;

/// Longer than anyone means; it keeps sums of times from overflowing.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Who decides when the next request is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadMode {
    /// Clients that each wait for an answer before they send again.
    Closed {
        /// How many there are, each with a connection.
        clients: usize,
        /// How long they send, after the warm-up.
        duration: Option<Duration>,
        /// How many requests they send in all, after the warm-up. With a duration too, what comes
        /// first ends the run.
        requests: Option<u64>,
    },
    /// A schedule: requests are sent when they are due, whether or not others were answered.
    Open {
        /// Requests per second.
        rate: f64,
        /// How they follow each other.
        arrivals: Arrivals,
        /// How long they are sent, after the warm-up.
        duration: Duration,
        /// Seed of the schedule.
        seed: u64,
    },
}

/// What kind of load, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadTestOptions {
    /// Who decides when the next request is sent.
    pub mode: LoadMode,
    /// Time at the start that is not counted. In the open loop it should be longer than an answer
    /// takes: throughput counts the answers that came within the measured time.
    pub warm_up: Duration,
    /// Answers count towards goodput if they come within it.
    pub deadline: Option<Duration>,
    /// The most connections of an open loop; a request that finds none free waits, and the wait
    /// is part of its latency.
    pub max_connections: usize,
    /// The server's page of metrics, which tells what GPUs draw and do in the measured time.
    pub metrics: Option<MetricsPage>,
}

impl LoadTestOptions {
    /// A load with a second of warm-up, no deadline, up to 512 connections and no page of metrics.
    pub fn new(mode: LoadMode) -> Self {
        Self {
            mode,
            warm_up: Duration::from_secs(1),
            deadline: None,
            max_connections: 512,
            metrics: None,
        }
    }

    /// How long requests are sent and counted, where that is known.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match self.mode {
            LoadMode::Closed { duration, .. } => duration,
            LoadMode::Open { duration, .. } => Some(duration),
        }
    }

    pub(crate) fn check_limits(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::usage(text));
        match self.mode {
            LoadMode::Closed { clients: 0, .. } => return wrong("0 clients, expected 1 or more"),
            LoadMode::Closed { duration: None, requests: None, .. } => {
                return wrong("expected a duration or a number of requests");
            }
            LoadMode::Closed { requests: Some(0), .. } => {
                return wrong("0 requests, expected 1 or more");
            }
            LoadMode::Open { rate, .. } if !(rate.is_finite() && rate > 0.0) => {
                return Err(Error::usage(format!("rate {rate}, expected more than 0 a second")));
            }
            _ => {}
        }
        if self.max_connections == 0 {
            return wrong("0 connections, expected 1 or more");
        }
        let times = [self.duration(), self.deadline];
        if times.into_iter().flatten().any(|time| time.is_zero() || time > MAX_DURATION) {
            return wrong("a duration and a deadline are above zero and at most 30 days");
        }
        if self.warm_up > MAX_DURATION {
            return wrong("the warm-up is at most 30 days");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let closed = |clients, duration, requests| {
            LoadTestOptions::new(LoadMode::Closed { clients, duration, requests }).check_limits()
        };
        let second = Some(Duration::from_secs(1));
        assert!(closed(1, second, None).is_ok());
        assert!(closed(0, second, None).is_err());
        assert!(closed(1, None, None).is_err());
        assert!(closed(1, None, Some(0)).is_err());
        assert!(closed(1, Some(Duration::ZERO), None).is_err());
        let open = |rate| {
            let (arrivals, duration) = (Arrivals::Poisson, Duration::from_secs(1));
            LoadTestOptions::new(LoadMode::Open { rate, arrivals, duration, seed: 0 })
                .check_limits()
        };
        assert!(open(1.0).is_ok());
        assert!(open(0.0).is_err());
        assert!(open(f64::NAN).is_err());
    }
}
