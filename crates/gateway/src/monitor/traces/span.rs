//! The spans of a request, in OTLP's JSON.

use serde_json::{Value, json};
use tessera_plan::Record;
use tessera_tensormq::{RequestId, TraceContext};

use super::super::clock::Clock;
use super::super::facts::{block_of, outcome_of, why};
use crate::dispatcher::{Ended, EndedAs};

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;

/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// A copy of a request that has ended. Spans are made of it later, outside of the dispatcher's lock.
pub(super) struct Finished {
    task: String,
    version: String,
    request: RequestId,
    id: String,
    rows: usize,
    accepted: u64,
    ended: u64,
    records: Vec<Record>,
    exits: Vec<Option<String>>,
    outcome: &'static str,
    is_error: bool,
    why: Option<String>,
    parent: Option<TraceContext>,
}

impl Finished {
    pub(super) fn new(ended: &Ended<'_>) -> Self {
        Self {
            task: ended.task.to_owned(),
            version: ended.version.to_owned(),
            request: ended.request,
            id: ended.id.to_owned(),
            rows: ended.rows,
            accepted: ended.accepted,
            ended: ended.ended,
            records: ended.records.to_vec(),
            exits: ended.exits.to_vec(),
            outcome: outcome_of(ended),
            is_error: matches!(ended.outcome, EndedAs::Failed(_) | EndedAs::Refused(_)),
            why: why(ended),
            // All zeros stand for no trace.
            parent: ended.trace.filter(|parent| parent.trace != [0; 16]),
        }
    }

    /// The span of the request, then one per hop.
    pub(super) fn spans(&self, clock: Clock) -> Vec<Value> {
        let trace = match self.parent {
            Some(parent) => u128::from_be_bytes(parent.trace),
            None => trace_of(self.request),
        };
        let trace = format!("{trace:032x}");
        let number = span_of(self.request);
        let mut spans = Vec::with_capacity(1 + self.records.len());
        spans.push(self.of_request(&trace, number, clock));
        for (index, record) in self.records.iter().enumerate() {
            let hop = not_zero(mix(number.wrapping_add(index as u64 + 1)));
            let end = record.started.saturating_add(record.computed);
            let end = end.saturating_add(record.overhead);
            let block = block_of(&record.instance);
            spans.push(json!({
                "traceId": trace,
                "spanId": format!("{hop:016x}"),
                "parentSpanId": format!("{number:016x}"),
                "name": format!("block {block}"),
                "kind": INTERNAL,
                "startTimeUnixNano": clock.unix_nanoseconds(record.started).to_string(),
                "endTimeUnixNano": clock.unix_nanoseconds(end).to_string(),
                "attributes": [
                    text("tessera.block", block),
                    text("tessera.instance", &record.instance),
                    integer("tessera.waited_us", record.waited / 1000),
                    integer("tessera.computed_us", record.computed / 1000),
                    integer("tessera.overhead_us", record.overhead / 1000),
                    integer("tessera.batch", record.batch),
                ],
            }));
        }
        spans
    }

    fn of_request(&self, trace: &str, number: u64, clock: Clock) -> Value {
        let mut attributes = vec![
            text("tessera.request", &self.request.to_string()),
            text("tessera.task", &self.task),
            text("tessera.version", &self.version),
            text("tessera.outcome", self.outcome),
            integer("tessera.rows", self.rows as u64),
        ];
        if !self.id.is_empty() {
            attributes.push(text("tessera.id", &self.id));
        }
        if let Some(why) = &self.why {
            attributes.push(text("tessera.why", why));
        }
        if !self.exits.is_empty() {
            // A row that went to the end has no name here.
            let exit =
                |exit: &Option<String>| json!({"stringValue": exit.as_deref().unwrap_or("")});
            let exits: Vec<Value> = self.exits.iter().map(exit).collect();
            let value = json!({"arrayValue": {"values": exits}});
            attributes.push(json!({"key": "tessera.exits", "value": value}));
        }
        let mut span = json!({
            "traceId": trace,
            "spanId": format!("{number:016x}"),
            "name": self.task,
            "kind": SERVER,
            "startTimeUnixNano": clock.unix_nanoseconds(self.accepted).to_string(),
            "endTimeUnixNano": clock.unix_nanoseconds(self.ended).to_string(),
            "attributes": attributes,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = format!("{:016x}", u64::from_be_bytes(parent.span)).into();
        }
        if self.is_error {
            span["status"] = json!({"code": ERROR, "message": self.why});
        }
        span
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Integers of 64 bits are text in OTLP's JSON.
fn integer(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// Where a request stands between 0 and 1: the same each time, and evenly spread.
pub(super) fn chance(request: RequestId) -> f64 {
    // The 53 bits that a float holds.
    (mix(span_of(request)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A trace for a request that comes without one. Numbers of requests follow each other, and collectors
/// take the lower half of a trace for random: so it is mixed.
fn trace_of(request: RequestId) -> u128 {
    let trace = (request.0 >> 64 << 64) | u128::from(mix(request.0 as u64));
    trace.max(1)
}

fn span_of(request: RequestId) -> u64 {
    not_zero(mix(mix((request.0 >> 64) as u64) ^ request.0 as u64))
}

/// Zero stands for no span.
fn not_zero(number: u64) -> u64 {
    number.max(1)
}

/// Spreads numbers evenly, no two to the same (SplitMix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn requests_have_traces_and_spans_of_their_own_and_even_chances() {
        let request = |number: u128| RequestId((7 << 64) | number);
        let many = 0..10_000_u128;
        let traces: HashSet<u128> = many.clone().map(|number| trace_of(request(number))).collect();
        let spans: HashSet<u64> = many.clone().map(|number| span_of(request(number))).collect();
        assert_eq!((traces.len(), spans.len()), (10_000, 10_000));
        let taken = many.filter(|&number| chance(request(number)) < 0.1).count();
        assert!((900..1100).contains(&taken), "{taken}");
    }
}
