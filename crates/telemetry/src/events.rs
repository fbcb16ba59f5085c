//! Events for those who watch, one JSON object each.

use serde::Serialize;
use serde_json::{Value, json};

use crate::ended_request::EndedRequest;
use crate::request_summary::{RequestTimes, outcome_name, outcome_reason, unit_of};
use crate::usage::CurrentUsage;

/// A request that has ended.
#[derive(Serialize)]
struct RequestEvent<'a> {
    kind: &'static str,
    at: u64,
    task: &'a str,
    version: &'a str,
    request: String,
    id: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    exits: &'a [Option<String>],
    rows: usize,
    retries: u32,
    ms: f64,
    waited_ms: f64,
    #[serde(skip_serializing_if = "is_zero")]
    loading_ms: f64,
    computed_ms: f64,
    overhead_ms: f64,
    hops: Vec<RequestEventHop<'a>>,
}

#[derive(Serialize)]
struct RequestEventHop<'a> {
    unit: &'a str,
    instance: &'a str,
    waited_us: f64,
    #[serde(skip_serializing_if = "is_zero")]
    loading_us: f64,
    computed_us: f64,
    overhead_us: f64,
    batch: u64,
}

/// Whether something took no time, and need not be told.
fn is_zero(time: &f64) -> bool {
    *time == 0.0
}

/// The event of a request; `at` in milliseconds since 1970.
pub(crate) fn request_event(ended: &EndedRequest<'_>, at: u64) -> serde_json::Result<String> {
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let times = RequestTimes::from_ended(ended);
    let hops = ended.hop_timings.iter().map(|hop| RequestEventHop {
        unit: unit_of(&hop.instance),
        instance: &hop.instance,
        waited_us: microseconds(hop.waited),
        loading_us: microseconds(hop.loading),
        computed_us: microseconds(hop.computed),
        overhead_us: microseconds(hop.overhead),
        batch: hop.batch,
    });
    serde_json::to_string(&RequestEvent {
        kind: "request",
        at,
        task: ended.task,
        version: ended.version,
        request: ended.request.to_string(),
        id: ended.id,
        outcome: outcome_name(ended),
        reason: outcome_reason(ended),
        exits: ended.exits,
        rows: ended.rows,
        retries: ended.retries,
        ms: milliseconds(times.all),
        waited_ms: milliseconds(times.waited),
        loading_ms: milliseconds(times.loading),
        computed_ms: milliseconds(times.computed),
        overhead_ms: milliseconds(times.overhead),
        hops: hops.collect(),
    })
}

/// The event of what processes use.
pub(crate) fn usage_event(used: &[CurrentUsage], at: u64) -> String {
    let instance = |used: &CurrentUsage| {
        json!({
            "unit": used.unit,
            "instance": used.instance,
            "pid": used.pid,
            "cpu": used.cpu,
            "cpu_seconds": used.cpu_seconds,
            "resident": used.resident,
            "shared": used.shared,
            "private": used.private_bytes(),
        })
    };
    let instances: Vec<Value> = used.iter().map(instance).collect();
    json!({ "kind": "usage", "at": at, "instances": instances }).to_string()
}

/// Somebody else's event, with a kind and a time where it has none.
pub(crate) fn complete_event(event: Value, at: u64) -> Value {
    let mut fields = match event {
        Value::Object(fields) => fields,
        other => serde_json::Map::from_iter([("value".to_owned(), other)]),
    };
    fields.entry("kind").or_insert_with(|| "note".into());
    fields.entry("at").or_insert_with(|| at.into());
    Value::Object(fields)
}
