//! The schemas of what is told each second, of requests that are worth a look, and of what was
//! changed.

use serde_json::{Value, json};

use super::schema_parts::{
    Schemas, array_schema, count_schema, named_schemas, object_schema, schema_reference,
    string_schema,
};

fn number_schema() -> Value {
    json!({"type": "number", "minimum": 0})
}

fn map_schema(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

/// Rates by how requests ended.
const RATES: [&str; 5] = [
    "answered_per_second",
    "degraded_per_second",
    "failed_per_second",
    "refused_per_second",
    "cancelled_per_second",
];
const TIMES: [&str; 3] = ["p50_ms", "p90_ms", "p99_ms"];

/// An object with these fields; the rates must be there, too, and the times may be.
fn rated_schema<const N: usize>(required: usize, fields: [(&str, Value); N]) -> Value {
    let mut schema = object_schema(required, fields);
    for name in RATES {
        schema["properties"][name] = number_schema();
        if let Some(must) = schema["required"].as_array_mut() {
            must.push(name.into());
        }
    }
    for name in TIMES {
        schema["properties"][name] = number_schema();
    }
    schema
}

pub(super) fn live_schemas() -> Schemas {
    named_schemas([
        (
            "LiveReport",
            rated_schema(
                6,
                [
                    ("at", count_schema()),
                    ("seconds", number_schema()),
                    ("waiting", count_schema()),
                    ("tasks", array_schema(schema_reference("LiveTask"))),
                    ("units", array_schema(schema_reference("LiveUnit"))),
                    ("memory", array_schema(schema_reference("LiveMemory"))),
                ],
            ),
        ),
        (
            "LiveTask",
            rated_schema(
                4,
                [
                    ("name", string_schema()),
                    ("version", string_schema()),
                    ("ready", json!({"type": "boolean"})),
                    ("in_flight", count_schema()),
                    ("exits", map_schema(number_schema())),
                    ("stayed_per_second", number_schema()),
                ],
            ),
        ),
        ("LiveUnit", unit_schema()),
        (
            "LiveMemory",
            object_schema(
                4,
                [
                    ("device", string_schema()),
                    ("weight_bytes", count_schema()),
                    ("apart_bytes", count_schema()),
                    ("saved_bytes", count_schema()),
                    ("budget_bytes", count_schema()),
                    ("used_bytes", count_schema()),
                ],
            ),
        ),
        ("HistoryEntry", history_schema()),
        (
            "HistoryLists",
            object_schema(
                2,
                [
                    ("changes", array_schema(schema_reference("HistoryEntry"))),
                    ("instances", array_schema(json!({"type": "object"}))),
                ],
            ),
        ),
        ("EndedRequest", request_schema()),
        (
            "RequestLists",
            object_schema(
                5,
                ["slowest", "failed", "refused", "degraded", "cancelled"]
                    .map(|name| (name, array_schema(schema_reference("EndedRequest")))),
            ),
        ),
    ])
}

fn unit_schema() -> Value {
    object_schema(
        11,
        [
            ("name", string_schema()),
            ("tasks", array_schema(string_schema())),
            ("device", string_schema()),
            ("weight_bytes", count_schema()),
            ("instances", count_schema()),
            ("up", count_schema()),
            ("restarts", count_schema()),
            ("in_flight", count_schema()),
            ("requests_per_second", number_schema()),
            ("runs_per_second", number_schema()),
            ("busy", number_schema()),
            ("waiting_p50_ms", number_schema()),
            ("waiting_p99_ms", number_schema()),
            ("computing_p50_ms", number_schema()),
            ("computing_p99_ms", number_schema()),
            ("weight_places", map_schema(count_schema())),
        ],
    )
}

fn history_schema() -> Value {
    let definition = || json!({"type": "object"});
    let task = object_schema(0, [("before", definition()), ("after", definition())]);
    object_schema(
        5,
        [
            ("number", count_schema()),
            ("at", count_schema()),
            ("tasks", map_schema(task)),
            ("started", array_schema(string_schema())),
            ("stopped", array_schema(string_schema())),
            ("who", string_schema()),
            ("undoes", count_schema()),
            ("undone_by", count_schema()),
        ],
    )
}

fn request_schema() -> Value {
    let hop = object_schema(
        6,
        [
            ("unit", string_schema()),
            ("instance", string_schema()),
            ("waited_us", number_schema()),
            ("computed_us", number_schema()),
            ("overhead_us", number_schema()),
            ("batch", count_schema()),
            ("loading_us", number_schema()),
        ],
    );
    object_schema(
        15,
        [
            ("kind", string_schema()),
            ("at", count_schema()),
            ("task", string_schema()),
            ("version", string_schema()),
            ("request", string_schema()),
            ("id", string_schema()),
            ("outcome", string_schema()),
            ("exits", array_schema(json!({"type": ["string", "null"]}))),
            ("rows", count_schema()),
            ("retries", count_schema()),
            ("ms", number_schema()),
            ("waited_ms", number_schema()),
            ("computed_ms", number_schema()),
            ("overhead_ms", number_schema()),
            ("hops", array_schema(hop)),
            ("reason", string_schema()),
            ("loading_ms", number_schema()),
        ],
    )
}
