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

use crate::client::{Exchange, Outcome};
use crate::latency::{self, nanoseconds};
use crate::series::Series;

/// The most distinct values of a parameter that are counted one by one.
const MOST_VALUES: usize = 64;

/// How requests ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
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
    /// Requests that were given up because the run was stopped.
    pub abandoned: u64,
}

impl Outcomes {
    /// Requests that went wrong; those that were given up did not.
    pub fn errors(&self) -> u64 {
        self.status.values().sum::<u64>() + self.invalid + self.connection + self.timeout
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.ok + self.errors() + self.abandoned
    }

    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::Status(status) => *self.status.entry(status).or_default() += 1,
            Outcome::Invalid => self.invalid += 1,
            Outcome::Connection => self.connection += 1,
            Outcome::Timeout => self.timeout += 1,
        }
    }
}

/// The measured time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) start: Instant,
    /// None where a number of requests ends the run.
    pub(crate) end: Option<Instant>,
}

impl Window {
    pub(crate) fn contains(&self, time: Instant) -> bool {
        time >= self.start && self.end.is_none_or(|end| time < end)
    }
}

/// A request that ended.
pub(crate) struct Sample {
    /// When it was due.
    pub(crate) due: Instant,
    /// When it was handed out; later than due where the generator was late.
    pub(crate) queued: Instant,
    pub(crate) ended: Instant,
    pub(crate) exchange: Exchange,
}

/// Counts what came back.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) window: Window,
    pub(crate) deadline: Option<Duration>,
    /// Of answers that were OK.
    pub(crate) latencies: Histogram<u64>,
    /// How late requests were handed out.
    pub(crate) lags: Histogram<u64>,
    pub(crate) outcomes: Outcomes,
    pub(crate) exits: BTreeMap<String, u64>,
    pub(crate) degraded: BTreeMap<String, u64>,
    /// The first message of every kind of failure.
    pub(crate) messages: BTreeMap<String, String>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Answers that came in the measured time.
    pub(crate) answered: u64,
    /// Those of them within the deadline.
    pub(crate) good: u64,
    pub(crate) series: Series,
    /// When the last request ended that counts.
    pub(crate) last: Option<Instant>,
    /// Answers in all, the warm-up's included.
    pub(crate) all_answers: u64,
    /// Failures in all, the warm-up's included.
    pub(crate) all_errors: u64,
}

impl Recorder {
    pub(crate) fn new(window: Window, deadline: Option<Duration>) -> Result<Self> {
        Ok(Self {
            window,
            deadline,
            latencies: latency::histogram()?,
            lags: latency::histogram()?,
            outcomes: Outcomes::default(),
            exits: BTreeMap::new(),
            degraded: BTreeMap::new(),
            messages: BTreeMap::new(),
            sent: 0,
            received: 0,
            answered: 0,
            good: 0,
            series: Series::new()?,
            last: None,
            all_answers: 0,
            all_errors: 0,
        })
    }

    pub(crate) fn record(&mut self, sample: Sample) {
        let Sample { due, queued, ended, exchange } = sample;
        let ok = exchange.outcome == Outcome::Ok;
        let took = ended.saturating_duration_since(due);
        match ok {
            true => self.all_answers += 1,
            false => self.all_errors += 1,
        }
        if self.window.contains(ended) {
            let latency = ok.then(|| nanoseconds(took));
            let at = ended.saturating_duration_since(self.window.start);
            self.series.record(at, latency);
            if ok {
                self.answered += 1;
                self.good += u64::from(self.deadline.is_none_or(|deadline| took <= deadline));
            }
        }
        // Even of the warm-up: why nothing works is of interest at once.
        if let (Some(message), Some(kind)) = (exchange.message, kind(exchange.outcome)) {
            self.messages.entry(kind).or_insert(message);
        }
        if !self.window.contains(due) {
            return;
        }
        self.last = self.last.max(Some(ended));
        self.outcomes.count(exchange.outcome);
        self.lags.saturating_record(nanoseconds(queued.saturating_duration_since(due)));
        self.sent += exchange.sent;
        self.received += exchange.received;
        if ok {
            self.latencies.saturating_record(nanoseconds(took));
            exchange.remarks.exits.into_iter().for_each(|exit| count(&mut self.exits, exit));
            if let Some(reason) = exchange.remarks.degraded {
                count(&mut self.degraded, reason);
            }
        }
    }
}

/// What a failure is called; `None` for an answer.
fn kind(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Ok => None,
        Outcome::Status(status) => Some(format!("HTTP {status}")),
        Outcome::Invalid => Some("invalid".to_owned()),
        Outcome::Connection => Some("connection".to_owned()),
        Outcome::Timeout => Some("timeout".to_owned()),
    }
}

/// Counts a value; a server that makes up a new one for every answer does not fill the memory.
fn count(counts: &mut BTreeMap<String, u64>, value: String) {
    let known = counts.len() < MOST_VALUES || counts.contains_key(&value);
    let value = if known { value } else { "other".to_owned() };
    *counts.entry(value).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::Remarks;

    fn sample(start: Instant, due: u64, ended: u64, outcome: Outcome) -> Sample {
        let at = |ms| start + Duration::from_millis(ms);
        let remarks = Remarks { exits: vec!["early".to_owned()], degraded: None };
        let message = (outcome != Outcome::Ok).then(|| format!("at {due}"));
        let exchange = Exchange { outcome, sent: 10, received: 20, remarks, message };
        Sample { due: at(due), queued: at(due), ended: at(ended), exchange }
    }

    #[test]
    fn latency_is_of_requests_due_in_the_window_and_throughput_of_answers_in_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let window = Window { start: at(1000), end: Some(at(2000)) };
        let mut recorder = Recorder::new(window, Some(Duration::from_millis(200))).unwrap();
        // Due in the warm-up: the first counts nowhere, the second as throughput only.
        recorder.record(sample(start, 500, 600, Outcome::Ok));
        recorder.record(sample(start, 900, 1050, Outcome::Ok));
        recorder.record(sample(start, 1100, 1200, Outcome::Ok));
        recorder.record(sample(start, 1200, 1500, Outcome::Ok));
        recorder.record(sample(start, 1300, 1310, Outcome::Status(503)));
        recorder.record(sample(start, 1400, 1410, Outcome::Status(503)));
        // It ends too late for throughput, and is the longest latency.
        recorder.record(sample(start, 1900, 2900, Outcome::Ok));
        assert_eq!((recorder.answered, recorder.good), (3, 2));
        assert_eq!((recorder.outcomes.ok, recorder.outcomes.errors()), (3, 2));
        assert_eq!(recorder.outcomes.status.get(&503), Some(&2));
        assert_eq!((recorder.sent, recorder.received), (50, 100));
        assert_eq!(recorder.exits.get("early"), Some(&3));
        assert_eq!(recorder.messages.get("HTTP 503").map(String::as_str), Some("at 1300"));
        assert_eq!(recorder.last, Some(at(2900)));
        assert_eq!((recorder.all_answers, recorder.all_errors), (5, 2));
        let latency = latency::Latency::of(&recorder.latencies).unwrap();
        assert_eq!(latency.count, 3);
        assert!((latency.max_ms - 1000.0).abs() < 1.0, "{latency:?}");
    }

    #[test]
    fn values_without_end_are_counted_together() {
        let mut counts = BTreeMap::new();
        (0..200).for_each(|index| count(&mut counts, index.to_string()));
        assert_eq!(counts.len(), MOST_VALUES + 1);
        assert_eq!(counts["other"], 200 - MOST_VALUES as u64);
    }
}
