//! The spans of a request, in OTLP's JSON.

use serde_json::{Value, json};
use tessera_deploy::HopTiming;
use tessera_tensormq::{RequestId, TraceContext};

use crate::clock::UnixClock;
use crate::ended_request::{EndedRequest, RequestOutcome};
use crate::request_summary::{outcome_name, outcome_reason, unit_of};

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER`.
const SPAN_KIND_INTERNAL: u8 = 1;
const SPAN_KIND_SERVER: u8 = 2;

/// `STATUS_CODE_ERROR`.
const STATUS_CODE_ERROR: u8 = 2;

/// A copy of a request that has ended. Spans are made of it later, outside of the dispatcher's
/// lock.
pub(super) struct TracedRequest {
    task: String,
    version: String,
    request: RequestId,
    id: String,
    rows: usize,
    accepted: u64,
    ended: u64,
    hop_timings: Vec<HopTiming>,
    exits: Vec<Option<String>>,
    outcome: &'static str,
    is_error: bool,
    reason: Option<String>,
    parent: Option<TraceContext>,
}

impl TracedRequest {
    pub(super) fn new(ended: &EndedRequest<'_>) -> Self {
        Self {
            task: ended.task.to_owned(),
            version: ended.version.to_owned(),
            request: ended.request,
            id: ended.id.to_owned(),
            rows: ended.rows,
            accepted: ended.accepted,
            ended: ended.ended,
            hop_timings: ended.hop_timings.to_vec(),
            exits: ended.exits.to_vec(),
            outcome: outcome_name(ended),
            is_error: matches!(
                ended.outcome,
                RequestOutcome::Failed(_) | RequestOutcome::Refused(_)
            ),
            reason: outcome_reason(ended),
            // All zeros stand for no trace.
            parent: ended.trace.filter(|parent| parent.trace != [0; 16]),
        }
    }

    /// The span of the request, then one per hop.
    pub(super) fn to_spans(&self, clock: UnixClock) -> Vec<Value> {
        let trace = match self.parent {
            Some(parent) => u128::from_be_bytes(parent.trace),
            None => trace_id(self.request),
        };
        let trace = format!("{trace:032x}");
        let number = span_id(self.request);
        let mut spans = Vec::with_capacity(1 + self.hop_timings.len());
        spans.push(self.request_span(&trace, number, clock));
        for (index, hop) in self.hop_timings.iter().enumerate() {
            let span = not_zero(mix_bits(number.wrapping_add(index as u64 + 1)));
            let start = self.accepted.saturating_add(hop.started);
            let end = start.saturating_add(hop.computed).saturating_add(hop.overhead);
            let unit = unit_of(&hop.instance);
            spans.push(json!({
                "traceId": trace,
                "spanId": format!("{span:016x}"),
                "parentSpanId": format!("{number:016x}"),
                "name": format!("unit {unit}"),
                "kind": SPAN_KIND_INTERNAL,
                "startTimeUnixNano": clock.unix_nanoseconds(start).to_string(),
                "endTimeUnixNano": clock.unix_nanoseconds(end).to_string(),
                "attributes": [
                    string_attribute("tessera.unit", unit),
                    string_attribute("tessera.instance", &hop.instance),
                    integer_attribute("tessera.waited_us", hop.waited / 1000),
                    integer_attribute("tessera.loading_us", hop.loading / 1000),
                    integer_attribute("tessera.computed_us", hop.computed / 1000),
                    integer_attribute("tessera.overhead_us", hop.overhead / 1000),
                    integer_attribute("tessera.batch", hop.batch),
                ],
            }));
        }
        spans
    }

    fn request_span(&self, trace: &str, number: u64, clock: UnixClock) -> Value {
        let mut attributes = vec![
            string_attribute("tessera.request", &self.request.to_string()),
            string_attribute("tessera.task", &self.task),
            string_attribute("tessera.version", &self.version),
            string_attribute("tessera.outcome", self.outcome),
            integer_attribute("tessera.rows", self.rows as u64),
        ];
        if !self.id.is_empty() {
            attributes.push(string_attribute("tessera.id", &self.id));
        }
        if let Some(reason) = &self.reason {
            attributes.push(string_attribute("tessera.why", reason));
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
            "kind": SPAN_KIND_SERVER,
            "startTimeUnixNano": clock.unix_nanoseconds(self.accepted).to_string(),
            "endTimeUnixNano": clock.unix_nanoseconds(self.ended).to_string(),
            "attributes": attributes,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = format!("{:016x}", u64::from_be_bytes(parent.span)).into();
        }
        if self.is_error {
            span["status"] = json!({"code": STATUS_CODE_ERROR, "message": self.reason});
        }
        span
    }
}

fn string_attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Integers of 64 bits are text in OTLP's JSON.
fn integer_attribute(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// Where a request stands between 0 and 1: the same each time, and evenly spread.
pub(super) fn sampling_position(request: RequestId) -> f64 {
    // The 53 bits that a float holds.
    (mix_bits(span_id(request)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A trace for a request that comes without one. Numbers of requests follow each other, and
/// collectors take the lower half of a trace for random: so it is mixed.
fn trace_id(request: RequestId) -> u128 {
    let trace = (request.0 >> 64 << 64) | u128::from(mix_bits(request.0 as u64));
    trace.max(1)
}

fn span_id(request: RequestId) -> u64 {
    not_zero(mix_bits(mix_bits((request.0 >> 64) as u64) ^ request.0 as u64))
}

/// Zero stands for no span.
fn not_zero(number: u64) -> u64 {
    number.max(1)
}

/// Spreads numbers evenly, no two to the same (SplitMix64).
fn mix_bits(number: u64) -> u64 {
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
        let traces: HashSet<u128> = many.clone().map(|number| trace_id(request(number))).collect();
        let spans: HashSet<u64> = many.clone().map(|number| span_id(request(number))).collect();
        assert_eq!((traces.len(), spans.len()), (10_000, 10_000));
        let taken = many.filter(|&number| sampling_position(request(number)) < 0.1).count();
        assert!((900..1100).contains(&taken), "{taken}");
    }
}
