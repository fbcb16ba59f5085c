//! What intent takes, what it refuses, and that the schemas say the same.

use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::Device;
use tessera_deploy::{Batching, BatchingChoice, Isolation};

use super::schema::conforms;
use crate::{DeviceChoice, PathStep, StepInput, System, TaskDefinition, TaskPath};

fn rich() -> Value {
    json!({
        "blocks": ["stem", "left", "right", "join", "spare"],
        "tasks": {
            "task1": {
                "path": [
                    "stem",
                    {"block": "left", "device": ["cpu", "cuda:0"]},
                    {"name": "r.1", "block": "right", "inputs": ["stem.1", "$0"]},
                    {"block": "join", "inputs": ["left", "r.1", "r.1.2"]}
                ],
                "exits": {"exit_15": 0.4},
                "deadline_ms": 5e2,
                "degrade": true,
                "isolation": "process",
                "replicas": 2,
                "device": "cuda:1",
                "batching": {"max_rows": 8, "max_wait_ms": 2},
                "max_rows": 64
            },
            "careful": {
                "model": "resnet50",
                "thresholds": {
                    "early": [
                        {"threshold": 0.25, "accuracy": 0.96},
                        {"threshold": 0.5, "accuracy": 0.9}
                    ]
                },
                "accuracy": 0.97,
                "least_accuracy": 0.93
            },
            "task2": {"model": "resnet50/3", "batching": "off", "device": "cpu"},
            "task3": ["stem"],
            "task4": {"model": "resnet50", "device": ["cpu", "cuda:0", "cuda:12"]},
            "task5": {"path": [{"block": "stem", "device": "cpu"}], "device": "cuda:0"}
        },
        "fusion": false,
        "isolation": "thread"
    })
}

#[test]
fn the_document_of_blockflow_is_taken() {
    let document = json!({
        "blocks": ["block1", "block2", "block3"],
        "tasks": {"task1": ["block1", "block2"], "task2": ["block1"]}
    });
    let system = System::from_json(&document).unwrap();
    let steps = vec![PathStep::from_block("block1"), PathStep::from_block("block2")];
    assert_eq!(system.tasks["task1"], TaskDefinition::new(TaskPath::Path(steps)));
    assert!(system.fusion);
    assert_eq!(system.unused_blocks(), ["block3"]);
    conforms("System", &document).unwrap();
}

#[test]
fn the_richer_form_is_taken() {
    let system = System::from_json(&rich()).unwrap();
    let task = &system.tasks["task1"];
    let TaskPath::Path(steps) = &task.path else { panic!("{task:?}") };
    let of = |name: &str, output| StepInput::Step { name: name.to_owned(), output };
    assert_eq!(steps[2].inputs, Some(vec![of("stem", 1), StepInput::Task(0)]));
    assert_eq!(steps[3].inputs, Some(vec![of("left", 0), of("r.1", 0), of("r.1", 2)]));
    assert_eq!((steps[2].name.as_str(), steps[2].block.as_str()), ("r.1", "right"));
    assert_eq!(task.exits["exit_15"], 0.4);
    assert_eq!((task.deadline_ms, task.replicas, task.max_rows), (Some(500), Some(2), Some(64)));
    assert_eq!((task.degrade, task.isolation), (true, Some(Isolation::Process)));
    assert_eq!(task.device, Some(DeviceChoice::All(Device::Cuda(1))));
    let careful = &system.tasks["careful"];
    assert_eq!((careful.accuracy, careful.least_accuracy), (Some(0.97), Some(0.93)));
    let settings = &careful.thresholds["early"];
    assert_eq!((settings.len(), settings[1].threshold, settings[1].accuracy), (2, 0.5, 0.9));
    let batching = Batching { max_rows: 8, max_wait: Duration::from_millis(2) };
    assert_eq!(task.batching, Some(BatchingChoice::On(batching)));
    assert_eq!(system.tasks["task2"].path, TaskPath::Model("resnet50/3".to_owned()));
    assert_eq!((system.fusion, system.isolation), (false, Some(Isolation::Thread)));
    assert_eq!(system.unused_blocks(), ["spare"]);
    conforms("System", &rich()).unwrap();
}

#[test]
fn what_is_written_is_what_was_read() {
    let blockflow = json!({"tasks": {"a": ["b", "m/0"], "c": {"model": "m", "batching": "auto"}}});
    for document in [blockflow, rich(), json!({"tasks": {}})] {
        let system = System::from_json(&document).unwrap();
        let written = serde_json::to_value(&system).unwrap();
        conforms("System", &written).unwrap();
        assert_eq!(System::from_json(&written).unwrap(), system);
        assert_eq!(serde_json::from_value::<System>(written).unwrap(), system);
    }
}

/// A task, and what is said of it.
fn refused(task: Value) -> String {
    let message = System::from_json(&json!({"tasks": {"t": task}})).unwrap_err().to_string();
    assert!(TaskDefinition::from_json(&task).is_err(), "{task}");
    message
}

#[test]
fn what_a_schema_can_tell_is_refused_with_its_field() {
    let cases = [
        (json!("a"), "tasks.t: \"a\", expected an array of names or an object"),
        (json!([]), "tasks.t: the path has no steps"),
        (json!([1]), "tasks.t[0]: 1, expected the name of a model"),
        (json!(["a/x"]), "tasks.t[0]: \"a/x\", expected the name of a model"),
        (json!([{"block": "a"}]), "tasks.t[0]: an object, expected the name"),
        (
            json!(["a", "b", "a"]),
            "tasks.t[2]: \"a\" is also step 0, counted from 0, which makes the path a cycle",
        ),
        (json!({}), "tasks.t: it has no path, expected path or model"),
        (json!({"path": ["a"], "model": "b"}), "tasks.t: it has a path and a model"),
        (json!({"path": "a"}), "tasks.t.path: \"a\", expected an array"),
        (json!({"path": []}), "tasks.t.path: the path has no steps"),
        (json!({"path": ["a", "a"]}), "tasks.t.path[1]: \"a\" is also step 0"),
        (json!({"path": [{"name": "a"}]}), "tasks.t.path[0].block: it is missing"),
        (json!({"path": [{"block": "a", "name": "x/1"}]}), "tasks.t.path[0].name: \"x/1\""),
        (json!({"path": [{"block": "a", "from": 1}]}), "tasks.t.path[0].from: unknown field"),
        (
            json!({"path": [{"block": "a", "inputs": "$0"}]}),
            "tasks.t.path[0].inputs: \"$0\", expected an array",
        ),
        (
            json!({"path": [{"block": "a", "inputs": [0]}]}),
            "tasks.t.path[0].inputs[0]: 0, expected STEP",
        ),
        (json!({"model": ""}), "tasks.t.model: \"\", expected the name of a model"),
        (
            json!({"model": "m", "deadline": 5}),
            "tasks.t.deadline: unknown field, expected one of path, model",
        ),
        (
            json!({"model": "m", "exits": {"exit_15": 1.5}}),
            "tasks.t.exits.exit_15: threshold 1.5, expected 0 to 1",
        ),
        (
            json!({"model": "m", "exits": {"e": "0.5"}}),
            "tasks.t.exits.e: \"0.5\", expected a number",
        ),
        (json!({"model": "m", "exits": [0.5]}), "tasks.t.exits: an array, expected an object"),
        (
            json!({"model": "m", "least_accuracy": 0.9}),
            "tasks.t.accuracy: it is missing, and thresholds are chosen with it; \
             tasks.t.thresholds: it is missing",
        ),
        (json!({"model": "m", "thresholds": {}}), "tasks.t.least_accuracy: it is missing"),
        (
            json!({"model": "m", "thresholds": {"e": []}, "accuracy": 1, "least_accuracy": 0.9}),
            "tasks.t.thresholds.e: the list is empty",
        ),
        (
            json!({
                "model": "m",
                "thresholds": {"e": [{"threshold": 0.5}]},
                "accuracy": 1,
                "least_accuracy": 90
            }),
            "tasks.t.thresholds.e[0].accuracy: it is missing; \
             tasks.t.least_accuracy: an accuracy of 90, expected 0 to 1",
        ),
        (
            json!({"model": "m", "deadline_ms": 0}),
            "tasks.t.deadline_ms: 0, expected an integer from 1",
        ),
        (
            json!({"model": "m", "deadline_ms": 1.5}),
            "tasks.t.deadline_ms: 1.5, expected an integer",
        ),
        (json!({"model": "m", "deadline_ms": null}), "tasks.t.deadline_ms: null"),
        (json!({"model": "m", "degrade": 1}), "tasks.t.degrade: 1, expected true or false"),
        (
            json!({"model": "m", "isolation": "vm"}),
            "tasks.t.isolation: \"vm\", expected \"thread\" or",
        ),
        (
            json!({"model": "m", "replicas": -1}),
            "tasks.t.replicas: -1, expected an integer from 1 to 64",
        ),
        (
            json!({"model": "m", "device": "cuda:+1"}),
            "tasks.t.device: \"cuda:+1\", expected \"cpu\"",
        ),
        (json!({"model": "m", "device": "gpu"}), "tasks.t.device: \"gpu\""),
        (json!({"model": "m", "device": []}), "tasks.t.device: the list is empty"),
        (
            json!({"model": "m", "device": ["cpu", "gpu", "cuda"]}),
            "tasks.t.device[1]: \"gpu\", expected \"cpu\" or \"cuda:N\"; tasks.t.device[2]: \"cuda\"",
        ),
        (
            json!({"path": [{"block": "a", "device": {}}]}),
            "tasks.t.path[0].device: an object, expected \"cpu\", \"cuda:N\", or a list",
        ),
        (json!({"model": "m", "batching": true}), "tasks.t.batching: true, expected \"auto\""),
        (
            json!({"model": "m", "batching": {"max_rows": 8}}),
            "tasks.t.batching.max_wait_ms: it is missing",
        ),
        (
            json!({"model": "m", "batching": {"max_rows": 0, "max_wait_ms": 1}}),
            "tasks.t.batching.max_rows: 0",
        ),
        (
            json!({"model": "m", "max_rows": 1e9}),
            "tasks.t.max_rows: 1000000000.0, expected an integer",
        ),
    ];
    for (task, expected) in cases {
        assert!(conforms("Task", &task).is_err(), "{task}");
        let message = refused(task);
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
}

#[test]
fn what_only_the_whole_tells_is_refused_with_its_field() {
    let cases = [
        (
            json!({"tasks": {"t": {"path": ["a", {"block": "b", "inputs": ["c"]}]}}}),
            "tasks.t.path[1].inputs[0]: there is no step \"c\", expected STEP, STEP.N or $N with one of \
             the steps a, b",
        ),
        (
            json!({"tasks": {"t": {"path": [{"block": "a", "inputs": ["$x"]}]}}}),
            "tasks.t.path[0].inputs[0]: there is no step \"$x\"",
        ),
        (
            json!({"tasks": {"t": {"path": ["a", {"block": "b", "name": "a"}]}}}),
            "tasks.t.path[1]: \"a\" is also step 0",
        ),
        (json!({"blocks": ["a"], "tasks": {"t": ["b"]}}), "tasks.t[0]: \"b\" is not among blocks"),
    ];
    for (document, expected) in cases {
        let message = System::from_json(&document).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
}

#[test]
fn a_system_that_is_wrong_is_refused_with_its_field() {
    let cases = [
        (json!([]), "the document: an array, expected an object"),
        (json!({}), "tasks: it is missing"),
        (json!({"tasks": []}), "tasks: an array, expected an object"),
        (json!({"tasks": {}, "task": {}}), "task: unknown field, expected one of blocks, tasks"),
        (json!({"tasks": {"a/b": ["c"]}}), "tasks.a/b: this is no name for a task"),
        (json!({"tasks": {".a": ["c"]}}), "tasks..a: this is no name for a task"),
        (json!({"tasks": {"": ["c"]}}), "tasks.: this is no name for a task"),
        (json!({"tasks": {}, "blocks": {}}), "blocks: an object, expected an array"),
        (json!({"tasks": {}, "blocks": ["a", "a"]}), "blocks[1]: \"a\" is there twice"),
        (json!({"tasks": {}, "fusion": "yes"}), "fusion: \"yes\", expected true or false"),
        (json!({"tasks": {}, "isolation": 1}), "isolation: 1, expected"),
    ];
    for (document, expected) in cases {
        assert!(conforms("System", &document).is_err(), "{document}");
        let message = System::from_json(&document).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
}

#[test]
fn everything_that_is_wrong_is_told_up_to_ten_problems() {
    let document = json!({"tasks": {"a": [1], "b": {"model": "m", "replicas": 0}}, "fusion": 1});
    let message = System::from_json(&document).unwrap_err().to_string();
    for part in ["tasks.a[0]: 1", "; tasks.b.replicas: 0", "fusion: 1, expected true or false; "] {
        assert!(message.contains(part), "{message}");
    }
    let many = vec![1; 25];
    let message = TaskDefinition::from_json(&json!(many)).unwrap_err().to_string();
    assert_eq!(message.matches("expected").count(), 10);
    assert!(message.ends_with("; and 15 more"), "{message}");
}

#[test]
fn a_threshold_is_a_number_from_0_to_1() {
    assert_eq!(crate::intent_reader::read_threshold(&json!({"threshold": 1})).unwrap(), 1.0);
    let cases = [
        (json!({"threshold": 1.5}), "threshold: threshold 1.5, expected 0 to 1"),
        (json!({"threshold": "high"}), "threshold: \"high\", expected a number from 0 to 1"),
        (json!({}), "threshold: it is missing"),
        (json!({"threshold": 0, "x": 0}), "x: unknown field"),
        (json!(0.5), "the document: 0.5, expected an object"),
    ];
    for (document, expected) in cases {
        assert!(conforms("NewThreshold", &document).is_err(), "{document}");
        let message = crate::intent_reader::read_threshold(&document).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}
