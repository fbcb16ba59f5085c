//! The run second by second.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tessera_core::{Error, Result};

/// A last second that is shorter than this says nothing.
const MIN_LAST_SECOND: f64 = 0.1;

/// What came back within one second of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Second {
    /// When it began, from the end of the warm-up.
    pub at_s: u64,
    /// Answers that were OK, per second.
    pub throughput_per_second: f64,
    /// The latency that half of them are below; none where there was no answer.
    pub p50_ms: Option<f64>,
    /// The latency that 99 of 100 of them are below.
    pub p99_ms: Option<f64>,
    /// Requests that ended in anything but an answer.
    pub errors: u64,
}

/// Collects seconds one after the other.
///
/// Only the histogram of the second under way is there; one for every second would take hundreds
/// of megabytes over an hour.
#[derive(Debug)]
pub(crate) struct SecondSeries {
    seconds: Vec<Second>,
    latencies: Histogram<u32>,
    errors: u64,
}

impl SecondSeries {
    pub(crate) fn new() -> Result<Self> {
        let latencies = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 2)
            .map_err(|error| Error::invalid(format!("histogram: {error}")))?;
        Ok(Self { seconds: Vec::new(), latencies, errors: 0 })
    }

    /// Notes a request that ended then, with its latency in nanoseconds where it was OK.
    pub(crate) fn record_latency(&mut self, at: Duration, latency: Option<u64>) {
        // One that comes after its second was closed, by the race of two clients, counts in the
        // next.
        self.close_before(at.as_secs());
        match latency {
            Some(latency) => self.latencies.saturating_record(latency),
            None => self.errors += 1,
        }
    }

    /// Every second of a run that took this long; those without an answer too.
    pub(crate) fn into_seconds(mut self, duration: Duration) -> Vec<Second> {
        self.close_before(duration.as_secs());
        let rest = duration.as_secs_f64().fract();
        if rest >= MIN_LAST_SECOND && self.seconds.len() as u64 == duration.as_secs() {
            self.close_second(rest);
        }
        self.seconds
    }

    fn close_before(&mut self, second: u64) {
        while (self.seconds.len() as u64) < second {
            self.close_second(1.0);
        }
    }

    fn close_second(&mut self, length: f64) {
        let some = !self.latencies.is_empty();
        let latencies = &self.latencies;
        let quantile = |share: f64| {
            some.then(|| latencies.value_at_quantile(share).min(latencies.max()) as f64 / 1e6)
        };
        let second = Second {
            at_s: self.seconds.len() as u64,
            throughput_per_second: latencies.len() as f64 / length,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            errors: self.errors,
        };
        self.seconds.push(second);
        self.latencies.reset();
        self.errors = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_answers_is_there_and_empty() {
        let mut series = SecondSeries::new().unwrap();
        series.record_latency(Duration::from_millis(100), Some(2_000_000));
        series.record_latency(Duration::from_millis(200), None);
        series.record_latency(Duration::from_millis(2100), Some(4_000_000));
        series.record_latency(Duration::from_millis(2400), Some(4_000_000));
        let seconds = series.into_seconds(Duration::from_millis(2500));
        assert_eq!(seconds.len(), 3);
        assert_eq!((seconds[0].throughput_per_second, seconds[0].errors), (1.0, 1));
        assert_eq!((seconds[1].throughput_per_second, seconds[1].p50_ms), (0.0, None));
        // Half a second, so its rate is twice its count.
        assert_eq!(seconds[2].throughput_per_second, 4.0);
        assert!((seconds[2].p99_ms.unwrap() - 4.0).abs() < 0.05);
    }
}
