//! Counts what came back.
//!
//! Latencies and outcomes are of the requests that were *due* in the measured time, and all of
//! those are waited for: the ones that a stall at the end holds up would be missed otherwise.
//! Throughput and goodput are of the answers that *came* in the measured time, whenever their
//! requests were due: a server that falls behind is not credited with what it does afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tessera_core::Result;

use crate::exchange::{Exchange, ExchangeOutcome};
use crate::latency::{self, clamped_nanoseconds};
use crate::series::SecondSeries;

/// The most distinct values of a parameter that are counted one by one.
const MAX_DISTINCT_VALUES: usize = 64;

/// How requests ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCounts {
    /// Answers.
    pub ok: u64,
    /// Refusals and failures, by HTTP status.
    pub status: BTreeMap<u16, u64>,
    /// HTTP 200 with something else than an answer of the protocol.
    pub invalid: u64,
    /// Connections that could not be made, or broke.
    pub connection: u64,
    /// Requests without an answer in time.
    pub timeout: u64,
    /// Requests that were cancelled because the run was stopped.
    pub abandoned: u64,
}

impl OutcomeCounts {
    /// Requests that went wrong; those that were cancelled did not.
    pub fn errors(&self) -> u64 {
        self.status.values().sum::<u64>() + self.invalid + self.connection + self.timeout
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.ok + self.errors() + self.abandoned
    }

    fn count_outcome(&mut self, outcome: ExchangeOutcome) {
        match outcome {
            ExchangeOutcome::Ok => self.ok += 1,
            ExchangeOutcome::Status(status) => *self.status.entry(status).or_default() += 1,
            ExchangeOutcome::Invalid => self.invalid += 1,
            ExchangeOutcome::Connection => self.connection += 1,
            ExchangeOutcome::Timeout => self.timeout += 1,
        }
    }
}

/// The measured time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementWindow {
    pub(crate) start: Instant,
    /// None where a number of requests ends the run.
    pub(crate) end: Option<Instant>,
}

impl MeasurementWindow {
    pub(crate) fn contains(&self, time: Instant) -> bool {
        time >= self.start && self.end.is_none_or(|end| time < end)
    }
}

/// A request that ended.
pub(crate) struct TimedRequest {
    /// When it was due.
    pub(crate) due: Instant,
    /// When it was handed out; later than due where the generator was late.
    pub(crate) queued: Instant,
    pub(crate) ended: Instant,
    pub(crate) exchange: Exchange,
}

/// Counts what came back.
#[derive(Debug)]
pub(crate) struct OutcomeCollector {
    pub(crate) window: MeasurementWindow,
    pub(crate) deadline: Option<Duration>,
    /// Of answers that were OK.
    pub(crate) latencies: Histogram<u64>,
    /// How late requests were handed out.
    pub(crate) lags: Histogram<u64>,
    pub(crate) outcomes: OutcomeCounts,
    pub(crate) exits: BTreeMap<String, u64>,
    pub(crate) degraded: BTreeMap<String, u64>,
    /// The first message of every kind of failure.
    pub(crate) messages: BTreeMap<String, String>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Answers that came in the measured time.
    pub(crate) answers_in_window: u64,
    /// Those of them within the deadline.
    pub(crate) answers_in_deadline: u64,
    pub(crate) series: SecondSeries,
    /// When the last request ended that counts.
    pub(crate) last: Option<Instant>,
    /// Answers in all, the warm-up's included.
    pub(crate) all_answers: u64,
    /// Failures in all, the warm-up's included.
    pub(crate) all_errors: u64,
}

impl OutcomeCollector {
    pub(crate) fn new(window: MeasurementWindow, deadline: Option<Duration>) -> Result<Self> {
        Ok(Self {
            window,
            deadline,
            latencies: latency::empty_histogram()?,
            lags: latency::empty_histogram()?,
            outcomes: OutcomeCounts::default(),
            exits: BTreeMap::new(),
            degraded: BTreeMap::new(),
            messages: BTreeMap::new(),
            sent: 0,
            received: 0,
            answers_in_window: 0,
            answers_in_deadline: 0,
            series: SecondSeries::new()?,
            last: None,
            all_answers: 0,
            all_errors: 0,
        })
    }

    pub(crate) fn record_outcome(&mut self, sample: TimedRequest) {
        let TimedRequest { due, queued, ended, exchange } = sample;
        let ok = exchange.outcome == ExchangeOutcome::Ok;
        let took = ended.saturating_duration_since(due);
        if ok {
            self.all_answers += 1;
        } else {
            self.all_errors += 1;
        }
        if self.window.contains(ended) {
            let latency = ok.then(|| clamped_nanoseconds(took));
            let at = ended.saturating_duration_since(self.window.start);
            self.series.record_latency(at, latency);
            if ok {
                self.answers_in_window += 1;
                self.answers_in_deadline +=
                    u64::from(self.deadline.is_none_or(|deadline| took <= deadline));
            }
        }
        // Even of the warm-up: why nothing works is of interest at once.
        if let (Some(message), Some(kind)) = (exchange.message, failure_name(exchange.outcome)) {
            self.messages.entry(kind).or_insert(message);
        }
        if !self.window.contains(due) {
            return;
        }
        self.last = self.last.max(Some(ended));
        self.outcomes.count_outcome(exchange.outcome);
        self.lags.saturating_record(clamped_nanoseconds(queued.saturating_duration_since(due)));
        self.sent += exchange.sent;
        self.received += exchange.received;
        if ok {
            self.latencies.saturating_record(clamped_nanoseconds(took));
            exchange.remarks.exits.into_iter().for_each(|exit| count_value(&mut self.exits, exit));
            if let Some(reason) = exchange.remarks.degraded {
                count_value(&mut self.degraded, reason);
            }
        }
    }
}

/// What a failure is called; `None` for an answer.
fn failure_name(outcome: ExchangeOutcome) -> Option<String> {
    match outcome {
        ExchangeOutcome::Ok => None,
        ExchangeOutcome::Status(status) => Some(format!("HTTP {status}")),
        ExchangeOutcome::Invalid => Some("invalid".to_owned()),
        ExchangeOutcome::Connection => Some("connection".to_owned()),
        ExchangeOutcome::Timeout => Some("timeout".to_owned()),
    }
}

/// Counts a value; a server that makes up a new one for every answer does not fill the memory.
fn count_value(counts: &mut BTreeMap<String, u64>, value: String) {
    let known = counts.len() < MAX_DISTINCT_VALUES || counts.contains_key(&value);
    let value = if known { value } else { "other".to_owned() };
    *counts.entry(value).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::ResponseRemarks;

    fn sample(start: Instant, due: u64, ended: u64, outcome: ExchangeOutcome) -> TimedRequest {
        let at = |ms| start + Duration::from_millis(ms);
        let remarks = ResponseRemarks { exits: vec!["early".to_owned()], degraded: None };
        let message = (outcome != ExchangeOutcome::Ok).then(|| format!("at {due}"));
        let exchange = Exchange { outcome, sent: 10, received: 20, remarks, message };
        TimedRequest { due: at(due), queued: at(due), ended: at(ended), exchange }
    }

    #[test]
    fn latency_is_of_requests_due_in_the_window_and_throughput_of_answers_in_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let window = MeasurementWindow { start: at(1000), end: Some(at(2000)) };
        let mut collector =
            OutcomeCollector::new(window, Some(Duration::from_millis(200))).unwrap();
        // Due in the warm-up: the first counts nowhere, the second as throughput only.
        collector.record_outcome(sample(start, 500, 600, ExchangeOutcome::Ok));
        collector.record_outcome(sample(start, 900, 1050, ExchangeOutcome::Ok));
        collector.record_outcome(sample(start, 1100, 1200, ExchangeOutcome::Ok));
        collector.record_outcome(sample(start, 1200, 1500, ExchangeOutcome::Ok));
        collector.record_outcome(sample(start, 1300, 1310, ExchangeOutcome::Status(503)));
        collector.record_outcome(sample(start, 1400, 1410, ExchangeOutcome::Status(503)));
        // It ends too late for throughput, and is the longest latency.
        collector.record_outcome(sample(start, 1900, 2900, ExchangeOutcome::Ok));
        assert_eq!((collector.answers_in_window, collector.answers_in_deadline), (3, 2));
        assert_eq!((collector.outcomes.ok, collector.outcomes.errors()), (3, 2));
        assert_eq!(collector.outcomes.status.get(&503), Some(&2));
        assert_eq!((collector.sent, collector.received), (50, 100));
        assert_eq!(collector.exits.get("early"), Some(&3));
        assert_eq!(collector.messages.get("HTTP 503").map(String::as_str), Some("at 1300"));
        assert_eq!(collector.last, Some(at(2900)));
        assert_eq!((collector.all_answers, collector.all_errors), (5, 2));
        let latency = latency::LoadLatency::from_histogram(&collector.latencies).unwrap();
        assert_eq!(latency.count, 3);
        assert!((latency.max_ms - 1000.0).abs() < 1.0, "{latency:?}");
    }

    #[test]
    fn values_without_end_are_counted_together() {
        let mut counts = BTreeMap::new();
        (0..200).for_each(|index| count_value(&mut counts, index.to_string()));
        assert_eq!(counts.len(), MAX_DISTINCT_VALUES + 1);
        assert_eq!(counts["other"], 200 - MAX_DISTINCT_VALUES as u64);
    }
}
