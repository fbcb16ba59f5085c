//! The schemas of what goes in and comes out, as exact as what reads them.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::component;
use crate::names;
use crate::read::{DEADLINE_MS, DEVICE, REPLICAS, ROWS, WAIT_MS};

pub(super) fn schemas() -> Value {
    let mut schemas = Map::new();
    for group in [intent(), changes(), tasks(), blocks()] {
        schemas.extend(group);
    }
    Value::Object(schemas)
}

type Schemas = Vec<(String, Value)>;

fn named<const N: usize>(schemas: [(&str, Value); N]) -> Schemas {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn schema(name: &str) -> Value {
    component("schemas", name)
}

/// An object with these fields and no others, of which the first so many must be there.
fn object<const N: usize>(required: usize, fields: [(&str, Value); N]) -> Value {
    let must: Vec<&str> = fields.iter().take(required).map(|(name, _)| *name).collect();
    let fields = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema));
    json!({
        "type": "object",
        "properties": fields.collect::<Map<String, Value>>(),
        "required": must,
        "additionalProperties": false
    })
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn pattern(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

fn one_of(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn within(range: &RangeInclusive<u64>) -> Value {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
}

fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

fn intent() -> Schemas {
    let tasks = json!({
        "type": "object",
        "propertyNames": pattern(names::TASK),
        "additionalProperties": schema("Task")
    });
    let blocks = json!({"type": "array", "items": schema("BlockName"), "uniqueItems": true});
    let names_only = json!({
        "type": "array",
        "items": schema("BlockName"),
        "minItems": 1,
        "uniqueItems": true,
        "description": "The blocks that a request passes, in order."
    });
    let step = object(
        1,
        [
            ("block", schema("BlockName")),
            ("name", described(pattern(names::TASK), "Where it is left out: the block's.")),
            ("inputs", list(schema("StepInput"))),
            ("device", schema("Device")),
        ],
    );
    let path = json!({
        "type": "array",
        "items": {"anyOf": [schema("BlockName"), schema("Step")]},
        "minItems": 1,
        "uniqueItems": true
    });
    named([
        (
            "System",
            object(
                1,
                [
                    ("tasks", tasks),
                    ("blocks", described(blocks, "Where it is given, paths name none but these.")),
                    (
                        "fusion",
                        json!({
                            "type": "boolean",
                            "default": true,
                            "description": "Whether blocks that nobody tells apart run as one."
                        }),
                    ),
                    ("isolation", schema("Isolation")),
                ],
            ),
        ),
        ("Task", json!({"anyOf": [names_only, schema("TaskOfSteps"), schema("TaskOfModel")]})),
        ("TaskOfSteps", task_of("path", path)),
        ("TaskOfModel", task_of("model", schema("BlockName"))),
        ("Step", step),
        (
            "StepInput",
            described(
                pattern(names::STEP_INPUT),
                "STEP, STEP.N for its output N, or $N \
            for input N of the task.",
            ),
        ),
        (
            "BlockName",
            described(
                pattern(names::BLOCK),
                "A model, MODEL/NUMBER for one block of it, or \
            a block by its hash or the beginning of it.",
            ),
        ),
        ("Isolation", one_of(&["thread", "process"])),
        ("Device", device()),
        ("Batching", batching()),
        ("Threshold", json!({"type": "number", "minimum": 0, "maximum": 1})),
        ("NewThreshold", object(1, [("threshold", schema("Threshold"))])),
    ])
}

fn task_of(what: &str, path: Value) -> Value {
    let exits = json!({"type": "object", "additionalProperties": schema("Threshold")});
    object(
        1,
        [
            (what, path),
            ("exits", described(exits, "Thresholds of exits, by their names.")),
            ("deadline_ms", within(&DEADLINE_MS)),
            ("degrade", json!({"type": "boolean", "default": false})),
            ("isolation", schema("Isolation")),
            ("replicas", within(&REPLICAS)),
            ("device", schema("Device")),
            ("batching", schema("Batching")),
            ("max_rows", within(&ROWS)),
        ],
    )
}

fn device() -> Value {
    let each = json!({"type": "array", "items": pattern(DEVICE), "minItems": 1});
    let device = json!({"anyOf": [pattern(DEVICE), each]});
    described(device, "What blocks run on: one device for all, or a list with one for each.")
}

fn batching() -> Value {
    let on = object(2, [("max_rows", within(&ROWS)), ("max_wait_ms", within(&WAIT_MS))]);
    json!({"anyOf": [one_of(&["auto", "off"]), on]})
}

fn changes() -> Schemas {
    let versions = json!({
        "type": "object",
        "propertyNames": pattern(names::TASK),
        "additionalProperties": pattern("^[0-9]+$"),
        "description": "Every task, with its version."
    });
    named([
        (
            "Changed",
            object(
                6,
                [
                    ("started", list(text())),
                    ("kept", list(text())),
                    ("stopped", list(text())),
                    ("fused", list(object(2, [("unit", text()), ("blocks", list(text()))]))),
                    ("unused", list(schema("BlockName"))),
                    ("tasks", versions),
                ],
            ),
        ),
        ("Error", object(1, [("error", text())])),
    ])
}

fn tasks() -> Schemas {
    let fields = || {
        [
            ("name", pattern(names::TASK)),
            ("version", text()),
            ("state", one_of(&["ready", "loading", "unavailable"])),
            ("reason", text_or_null()),
            ("path", described(list(text()), "The units that a request passes.")),
            ("exits", list(schema("ExitStatus"))),
            ("in_flight", count()),
        ]
    };
    let [name, version, state, reason, path, exits, in_flight] = fields();
    let definition = json!({
        "anyOf": [schema("TaskOfSteps"), schema("TaskOfModel"), {"type": "null"}]
    });
    let detail = [name, version, state, reason, path, exits, in_flight, ("definition", definition)];
    let exit = [("name", text()), ("threshold", schema("Threshold")), ("taken", count())];
    named([
        ("Tasks", object(1, [("tasks", list(schema("TaskStatus")))])),
        ("TaskStatus", object(7, fields())),
        ("TaskDetail", object(8, detail)),
        ("Exits", object(1, [("exits", list(schema("ExitStatus")))])),
        ("ExitStatus", object(3, exit)),
    ])
}

fn blocks() -> Schemas {
    let number_or_null = json!({"type": ["number", "null"], "minimum": 0});
    let integer_or_null = json!({"type": ["integer", "null"], "minimum": 0});
    let states = ["starting", "up", "restarting", "failed", "stopped"];
    named([
        ("Blocks", object(1, [("blocks", list(schema("BlockStatus")))])),
        (
            "BlockStatus",
            object(
                8,
                [
                    ("name", text()),
                    ("blocks", described(list(text()), "The hashes of its blocks.")),
                    ("tasks", list(pattern(names::TASK))),
                    ("isolation", schema("Isolation")),
                    ("device", pattern(DEVICE)),
                    ("weight_bytes", count()),
                    ("max_batch_rows", integer_or_null.clone()),
                    ("instances", list(schema("InstanceReport"))),
                ],
            ),
        ),
        (
            "InstanceReport",
            object(
                7,
                [
                    ("name", text()),
                    ("state", one_of(&states)),
                    ("reason", text_or_null()),
                    ("process", integer_or_null),
                    ("restarts", count()),
                    ("requests", count()),
                    ("in_flight", count()),
                ],
            ),
        ),
        ("Pinged", object(1, [("answers", list(schema("PingAnswer")))])),
        (
            "PingAnswer",
            object(
                5,
                [
                    ("instance", text()),
                    ("answered_ms", number_or_null),
                    ("error", text_or_null()),
                    ("busy_ms", count()),
                    ("requests", count()),
                ],
            ),
        ),
    ])
}
