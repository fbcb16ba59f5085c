//! The schemas of what goes in and comes out, as exact as what reads them.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::live_schemas::live_schemas;
use super::schema_parts::{
    Schemas, array_schema, count_schema, named_schemas, object_schema, one_of, pattern_schema,
    schema_reference, string_schema, with_description,
};
use crate::intent_reader::{
    DEADLINE_MS, DEVICE_PATTERN, MOST_THRESHOLDS, REPLICAS, ROWS, TOKEN_SECONDS, WAIT_MS, WEIGHTS,
};
use crate::names::{self, NODE_PATTERN};

pub(super) fn all_schemas() -> Value {
    let mut schemas = Map::new();
    for group in [
        intent_schemas(),
        change_schemas(),
        model_schemas(),
        task_schemas(),
        unit_schemas(),
        cluster_schemas(),
        live_schemas(),
    ] {
        schemas.extend(group);
    }
    Value::Object(schemas)
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

fn range_schema(range: &RangeInclusive<u64>) -> Value {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
}

fn model_schemas() -> Schemas {
    let block = object_schema(
        3,
        [
            ("hash", string_schema()),
            ("weight_bytes", count_schema()),
            ("shared_with", array_schema(string_schema())),
        ],
    );
    let model = || {
        [
            ("name", string_schema()),
            ("hash", string_schema()),
            ("blocks", array_schema(schema_reference("ModelBlock"))),
            ("weight_bytes", count_schema()),
            ("exits", array_schema(string_schema())),
        ]
    };
    let [name, hash, blocks, weight_bytes, exits] = model();
    let recut = "Models that are cut further for what they have in common with this one. Their \
                 tasks run so with the next task that is put.";
    let stored = [
        name,
        hash,
        blocks,
        weight_bytes,
        exits,
        ("new_weight_bytes", count_schema()),
        ("shared_weight_bytes", count_schema()),
        ("recut", with_description(array_schema(string_schema()), recut)),
        ("is_kept", json!({"type": "boolean"})),
    ];
    named_schemas([
        ("ModelBlock", block),
        ("ModelStatus", object_schema(5, model())),
        (
            "ModelList",
            object_schema(1, [("models", array_schema(schema_reference("ModelStatus")))]),
        ),
        ("StoredModel", object_schema(9, stored)),
    ])
}

fn intent_schemas() -> Schemas {
    let tasks = json!({
        "type": "object",
        "propertyNames": pattern_schema(names::TASK_PATTERN),
        "additionalProperties": schema_reference("Task")
    });
    let blocks =
        json!({"type": "array", "items": schema_reference("BlockName"), "uniqueItems": true});
    let names_only = json!({
        "type": "array",
        "items": schema_reference("BlockName"),
        "minItems": 1,
        "uniqueItems": true,
        "description": "The blocks that a request passes, in order."
    });
    let step = object_schema(
        1,
        [
            ("block", schema_reference("BlockName")),
            (
                "name",
                with_description(
                    pattern_schema(names::TASK_PATTERN),
                    "Where it is left out: the block's.",
                ),
            ),
            ("inputs", array_schema(schema_reference("StepInput"))),
            ("device", schema_reference("Device")),
        ],
    );
    let path = json!({
        "type": "array",
        "items": {"anyOf": [schema_reference("BlockName"), schema_reference("PathStep")]},
        "minItems": 1,
        "uniqueItems": true
    });
    named_schemas([
        (
            "System",
            object_schema(
                1,
                [
                    ("tasks", tasks),
                    (
                        "blocks",
                        with_description(blocks, "Where it is given, paths name none but these."),
                    ),
                    (
                        "fusion",
                        json!({
                            "type": "boolean",
                            "default": true,
                            "description": "Whether blocks that nobody tells apart run as one."
                        }),
                    ),
                    ("isolation", schema_reference("Isolation")),
                ],
            ),
        ),
        (
            "Task",
            json!({"anyOf": [names_only, schema_reference("TaskOfSteps"), schema_reference("TaskOfModel")]}),
        ),
        ("TaskOfSteps", task_of("path", path)),
        ("TaskOfModel", task_of("model", schema_reference("BlockName"))),
        ("PathStep", step),
        (
            "StepInput",
            with_description(
                pattern_schema(names::STEP_INPUT_PATTERN),
                "STEP, STEP.N for its output N, or $N \
            for input N of the task.",
            ),
        ),
        (
            "BlockName",
            with_description(
                pattern_schema(names::BLOCK_PATTERN),
                "A model, MODEL/NUMBER for one block of it, or \
            a block by its hash or the beginning of it.",
            ),
        ),
        ("Isolation", one_of(&["thread", "process"])),
        ("ResidencyChoice", residency_schema()),
        ("Device", device_schema()),
        ("Node", node_schema()),
        ("Batching", batching_schema()),
        ("Threshold", json!({"type": "number", "minimum": 0, "maximum": 1})),
        ("Share", json!({"type": "number", "minimum": 0, "maximum": 1})),
        ("ThresholdChoice", threshold_choice_schema()),
        ("NewThreshold", object_schema(1, [("threshold", schema_reference("Threshold"))])),
    ])
}

fn task_of(what: &str, path: Value) -> Value {
    let exits = json!({"type": "object", "additionalProperties": schema_reference("Threshold")});
    let share = |what: &str| with_description(schema_reference("Share"), what);
    let choices = json!({
        "type": "object",
        "additionalProperties": schema_reference("ThresholdChoice")
    });
    let mut task = object_schema(
        1,
        [
            (what, path),
            ("exits", with_description(exits, "Thresholds of exits, by their names: they stay.")),
            (
                "thresholds",
                with_description(
                    choices,
                    "What may be chosen for each exit, in a cluster; the first is used until more \
                     is known.",
                ),
            ),
            ("accuracy", share("Of right answers where no exit is taken.")),
            ("least_accuracy", share("Of right answers that thresholds are chosen for.")),
            ("deadline_ms", range_schema(&DEADLINE_MS)),
            ("degrade", json!({"type": "boolean", "default": false})),
            ("weight", range_schema(&WEIGHTS)),
            ("isolation", schema_reference("Isolation")),
            ("replicas", range_schema(&REPLICAS)),
            ("device", schema_reference("Device")),
            ("node", schema_reference("Node")),
            ("input_node", pattern_schema(NODE_PATTERN)),
            ("batching", schema_reference("Batching")),
            ("max_rows", range_schema(&ROWS)),
            ("residency", schema_reference("ResidencyChoice")),
        ],
    );
    let goal = ["thresholds", "accuracy", "least_accuracy"];
    let others = |name: &str| goal.into_iter().filter(|other| *other != name).collect::<Vec<_>>();
    let needed = goal.map(|name| (name.to_owned(), Value::from(others(name))));
    task["dependentRequired"] = Value::Object(needed.into_iter().collect());
    task
}

/// Where weights of an instance may be.
const WEIGHT_PLACES: [&str; 6] = ["disk", "waiting", "loading", "memory", "leaving", "gpu"];

fn residency_schema() -> Value {
    with_description(
        one_of(&["auto", "pinned", "on-demand", "direct"]),
        "Where weights are while nobody uses them, where memory for them is bounded: in memory \
         while there is room, in memory whatever others need, or on disk; or, also while they are \
         used, in the host's memory, which a GPU reads over the bus.",
    )
}

fn threshold_choice_schema() -> Value {
    let setting = object_schema(
        2,
        [("threshold", schema_reference("Threshold")), ("accuracy", schema_reference("Share"))],
    );
    let mut choice = array_schema(setting);
    choice["minItems"] = 1.into();
    choice["maxItems"] = MOST_THRESHOLDS.into();
    choice
}

fn node_schema() -> Value {
    let each = json!({"type": "array", "items": pattern_schema(NODE_PATTERN), "minItems": 1});
    with_description(
        json!({"anyOf": [pattern_schema(NODE_PATTERN), each]}),
        "The node that all blocks run at, or one for each, in a cluster; placed where it is left out.",
    )
}

fn device_schema() -> Value {
    let each = json!({"type": "array", "items": pattern_schema(DEVICE_PATTERN), "minItems": 1});
    let device = json!({"anyOf": [pattern_schema(DEVICE_PATTERN), each]});
    with_description(device, "What blocks run on: one device for all, or a list with one for each.")
}

fn batching_schema() -> Value {
    let on = object_schema(
        2,
        [("max_rows", range_schema(&ROWS)), ("max_wait_ms", range_schema(&WAIT_MS))],
    );
    json!({"anyOf": [one_of(&["auto", "off"]), on]})
}

fn change_schemas() -> Schemas {
    let versions = json!({
        "type": "object",
        "propertyNames": pattern_schema(names::TASK_PATTERN),
        "additionalProperties": pattern_schema("^[0-9]+$"),
        "description": "The tasks that the change is about, with their versions."
    });
    named_schemas([
        (
            "Changed",
            object_schema(
                7,
                [
                    ("started", array_schema(string_schema())),
                    ("kept", array_schema(string_schema())),
                    ("stopped", array_schema(string_schema())),
                    (
                        "fused",
                        array_schema(object_schema(
                            2,
                            [("unit", string_schema()), ("blocks", array_schema(string_schema()))],
                        )),
                    ),
                    ("unused", array_schema(schema_reference("BlockName"))),
                    ("tasks", versions),
                    ("warnings", array_schema(string_schema())),
                ],
            ),
        ),
        ("Error", object_schema(1, [("error", string_schema())])),
    ])
}

fn task_schemas() -> Schemas {
    let fields = || {
        [
            ("name", pattern_schema(names::TASK_PATTERN)),
            ("version", string_schema()),
            ("state", one_of(&["ready", "loading", "unavailable"])),
            ("reason", text_or_null()),
            (
                "path",
                with_description(array_schema(string_schema()), "The units that a request passes."),
            ),
            ("exits", array_schema(schema_reference("ExitStatus"))),
            ("in_flight", count_schema()),
        ]
    };
    let [name, version, state, reason, path, exits, in_flight] = fields();
    let definition = json!({
        "anyOf": [schema_reference("TaskOfSteps"), schema_reference("TaskOfModel"), {"type": "null"}]
    });
    let detail = [name, version, state, reason, path, exits, in_flight, ("definition", definition)];
    let exit = [
        ("name", string_schema()),
        ("threshold", schema_reference("Threshold")),
        ("taken", count_schema()),
    ];
    named_schemas([
        ("TaskList", object_schema(1, [("tasks", array_schema(schema_reference("TaskStatus")))])),
        ("TaskStatus", object_schema(7, fields())),
        ("TaskDetail", object_schema(8, detail)),
        ("ExitList", object_schema(1, [("exits", array_schema(schema_reference("ExitStatus")))])),
        ("ExitStatus", object_schema(3, exit)),
    ])
}

fn unit_schemas() -> Schemas {
    let number_or_null = json!({"type": ["number", "null"], "minimum": 0});
    let integer_or_null = json!({"type": ["integer", "null"], "minimum": 0});
    let states = ["starting", "up", "restarting", "failed", "stopped"];
    named_schemas([
        ("UnitList", object_schema(1, [("units", array_schema(schema_reference("UnitStatus")))])),
        (
            "UnitStatus",
            object_schema(
                8,
                [
                    ("name", string_schema()),
                    (
                        "blocks",
                        with_description(
                            array_schema(string_schema()),
                            "The hashes of its blocks.",
                        ),
                    ),
                    ("tasks", array_schema(pattern_schema(names::TASK_PATTERN))),
                    ("isolation", schema_reference("Isolation")),
                    ("device", pattern_schema(DEVICE_PATTERN)),
                    ("weight_bytes", count_schema()),
                    ("max_batch_rows", integer_or_null.clone()),
                    ("instances", array_schema(schema_reference("InstanceReport"))),
                    ("node", pattern_schema(NODE_PATTERN)),
                ],
            ),
        ),
        (
            "InstanceReport",
            object_schema(
                7,
                [
                    ("name", string_schema()),
                    ("state", one_of(&states)),
                    ("reason", text_or_null()),
                    ("process", integer_or_null),
                    ("restarts", count_schema()),
                    ("requests", count_schema()),
                    ("in_flight", count_schema()),
                    ("weights", schema_reference("WeightReport")),
                ],
            ),
        ),
        (
            "WeightReport",
            object_schema(
                1,
                [
                    ("place", one_of(&WEIGHT_PLACES)),
                    ("loads", with_description(count_schema(), "Where they come and go.")),
                    ("evictions", count_schema()),
                    ("load_ms", with_description(json!({"type": "number"}), "In the mean.")),
                ],
            ),
        ),
        (
            "PingAnswers",
            object_schema(1, [("answers", array_schema(schema_reference("PingAnswer")))]),
        ),
        (
            "PingAnswer",
            object_schema(
                5,
                [
                    ("instance", string_schema()),
                    ("answered_ms", number_or_null),
                    ("error", text_or_null()),
                    ("busy_ms", count_schema()),
                    ("requests", count_schema()),
                ],
            ),
        ),
    ])
}

fn threshold_change_schema() -> Value {
    let thresholds =
        || json!({"type": "object", "additionalProperties": schema_reference("Threshold")});
    object_schema(
        6,
        [
            ("task", string_schema()),
            ("decided_ms", with_description(count_schema(), "In milliseconds since 1970.")),
            ("from", with_description(thresholds(), "By exit.")),
            ("to", thresholds()),
            (
                "before_ms",
                with_description(
                    json!({"type": ["number", "null"]}),
                    "Null where they were not accurate enough.",
                ),
            ),
            ("after_ms", json!({"type": "number"})),
        ],
    )
}

/// Nodes and tokens of a cluster.
fn cluster_schemas() -> Schemas {
    let number = || json!({"type": "number"});
    let number_or_null = json!({"type": ["number", "null"]});
    named_schemas([
        ("NodeList", object_schema(1, [("nodes", array_schema(schema_reference("NodeStatus")))])),
        (
            "NodeStatus",
            object_schema(
                15,
                [
                    ("name", pattern_schema(NODE_PATTERN)),
                    ("state", one_of(&["attached", "away", "drained"])),
                    ("since_seconds", count_schema()),
                    ("version", string_schema()),
                    ("engine", string_schema()),
                    ("cores", count_schema()),
                    ("memory_bytes", count_schema()),
                    ("available_memory_bytes", count_schema()),
                    ("available_storage_bytes", count_schema()),
                    ("idle_cores", number()),
                    ("gpus", array_schema(string_schema())),
                    (
                        "round_trip_ms",
                        with_description(number_or_null.clone(), "Milliseconds to it and back."),
                    ),
                    ("http", text_or_null()),
                    ("grpc", text_or_null()),
                    ("units", array_schema(string_schema())),
                ],
            ),
        ),
        (
            "ClusterPlan",
            object_schema(
                5,
                [
                    ("strategy", string_schema()),
                    ("tasks", array_schema(schema_reference("TaskPlan"))),
                    ("links", array_schema(schema_reference("Link"))),
                    ("moves", array_schema(schema_reference("Move"))),
                    ("threshold_changes", array_schema(schema_reference("ThresholdChange"))),
                    (
                        "reason",
                        with_description(
                            string_schema(),
                            "Why there is no plan, where there is none.",
                        ),
                    ),
                    (
                        "problem",
                        with_description(
                            json!({"type": "object"}),
                            "What was planned for, as `tessera plan placement` takes it.",
                        ),
                    ),
                ],
            ),
        ),
        (
            "TaskPlan",
            object_schema(
                9,
                [
                    ("task", string_schema()),
                    ("input_node", pattern_schema(NODE_PATTERN)),
                    ("nodes", array_schema(string_schema())),
                    ("planned_nodes", array_schema(string_schema())),
                    ("expected_ms", number_or_null.clone()),
                    ("planned_ms", number()),
                    ("requests_per_minute", number()),
                    ("moves", json!({"type": "boolean"})),
                    ("exits", array_schema(schema_reference("ExitPlan"))),
                    (
                        "reason",
                        with_description(
                            string_schema(),
                            "Why it stays, where another plan is better.",
                        ),
                    ),
                    (
                        "degrade_reason",
                        with_description(
                            string_schema(),
                            "Why it can't answer from its exit where requests come in.",
                        ),
                    ),
                    ("least_accuracy", schema_reference("Share")),
                    ("expected_accuracy", schema_reference("Share")),
                    ("planned_accuracy", schema_reference("Share")),
                    (
                        "threshold_reason",
                        with_description(
                            string_schema(),
                            "Why thresholds stay as they are, or can't be chosen.",
                        ),
                    ),
                ],
            ),
        ),
        (
            "ExitPlan",
            object_schema(
                5,
                [
                    ("exit", string_schema()),
                    ("threshold", schema_reference("Threshold")),
                    ("planned_threshold", schema_reference("Threshold")),
                    (
                        "rate",
                        with_description(
                            schema_reference("Share"),
                            "Of the requests that get there, those that leave.",
                        ),
                    ),
                    ("planned_rate", schema_reference("Share")),
                ],
            ),
        ),
        ("ThresholdChange", threshold_change_schema()),
        (
            "Link",
            object_schema(
                8,
                [
                    ("from", pattern_schema(NODE_PATTERN)),
                    ("to", pattern_schema(NODE_PATTERN)),
                    ("round_trip_ms", number_or_null.clone()),
                    ("megabits_per_second", number_or_null.clone()),
                    (
                        "hop_ms",
                        with_description(
                            number_or_null.clone(),
                            "What a request's way over it takes beside that, as it was seen.",
                        ),
                    ),
                    ("probe_bytes", with_description(count_schema(), "Sent to find that out.")),
                    ("is_cut", json!({"type": "boolean"})),
                    (
                        "is_filtered",
                        with_description(
                            json!({"type": "boolean"}),
                            "Whether no UDP comes through.",
                        ),
                    ),
                ],
            ),
        ),
        (
            "Move",
            object_schema(
                7,
                [
                    ("task", string_schema()),
                    ("decided_ms", with_description(count_schema(), "In milliseconds since 1970.")),
                    ("from", array_schema(string_schema())),
                    ("to", array_schema(string_schema())),
                    ("before_ms", number_or_null.clone()),
                    ("after_ms", number()),
                    (
                        "took_ms",
                        with_description(
                            number_or_null,
                            "Until requests went there; null while they do not.",
                        ),
                    ),
                    ("error", string_schema()),
                ],
            ),
        ),
        ("TokenList", object_schema(1, [("tokens", array_schema(schema_reference("Token")))])),
        (
            "Token",
            object_schema(
                5,
                [
                    ("id", pattern_schema(names::TOKEN_PATTERN)),
                    ("state", one_of(&["valid", "used", "expired", "revoked"])),
                    (
                        "created",
                        with_description(count_schema(), "In seconds since 1970, as expires."),
                    ),
                    ("expires", count_schema()),
                    ("used_by", text_or_null()),
                    (
                        "token",
                        with_description(
                            string_schema(),
                            "With its secret: only where it was made just now.",
                        ),
                    ),
                ],
            ),
        ),
        (
            "NewToken",
            with_description(
                object_schema(0, [("life_seconds", range_schema(&TOKEN_SECONDS))]),
                "How long the token lets a node in; an hour where nothing is said.",
            ),
        ),
    ])
}
