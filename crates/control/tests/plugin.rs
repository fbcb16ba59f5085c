//! Plugins, well-behaved and otherwise, as real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};
use tessera_control::PlacementPlugin;
use tessera_core::{Error, ErrorKind};
use tessera_plan::SearchLimit;
use tessera_plan::placement::{
    PlacementOptions, PlacementPlan, PlacementProblem, PlacementSolution, plan_placement,
};

/// A device and a cloud that is ten times as fast; layers of 1 s on the device.
fn problem() -> PlacementProblem {
    let text = r#"{
        "nodes": [
            {"name": "device", "input": true, "flops_per_second": 1e9},
            {"name": "cloud", "tier": 1, "flops_per_second": 1e10, "memory_bytes": 25}
        ],
        "throughput_bits_per_second": [[null, 8], [8, null]],
        "latency_ms": [[null, 0], [0, null]],
        "layers": [
            {"flops": 1e9, "memory_bytes": 10, "input_bytes": 4},
            {"flops": 1e9, "memory_bytes": 10, "input_bytes": 1},
            {"flops": 1e9, "memory_bytes": 10, "input_bytes": 1}
        ]
    }"#;
    serde_json::from_str(text).unwrap()
}

/// A problem with two settings of an exit, both of which reach the accuracy.
fn problem_with_thresholds() -> PlacementProblem {
    let mut problem = problem();
    let layers = std::mem::take(&mut problem.layers);
    let model = serde_json::json!({
        "name": "only", "accuracy": 0.9, "least_accuracy": 0.5, "layers": layers,
    });
    problem.models = vec![serde_json::from_value(model).unwrap()];
    problem.models[0].layers[0].exit = serde_json::from_value(serde_json::json!([
        {"threshold": 0.25, "rate": 0.0, "accuracy": 0.9},
        {"threshold": 0.5, "rate": 0.5, "accuracy": 0.8},
    ]))
    .unwrap();
    problem
}

/// Writes an executable. The file is never open for writing in this process: another thread that
/// starts something at that moment would make it busy.
fn write(folder: &TempDir, text: &str) -> PathBuf {
    let (draft, path) = (folder.path().join("draft"), folder.path().join("plugin"));
    fs::write(&draft, text).unwrap();
    let copied = Command::new("install").arg("-m755").arg(&draft).arg(&path).status().unwrap();
    assert!(copied.success());
    path
}

fn ask(
    path: &Path,
    problem: &PlacementProblem,
    time_limit: f64,
) -> Result<PlacementSolution, Error> {
    let plugin = PlacementPlugin::new(path, Duration::from_secs_f64(time_limit));
    plan_placement(&plugin, problem, &PlacementOptions::default())
}

/// What is said of a plugin, without its name; it must be one line, and come soon.
fn complaint_with(script: &str, problem: &PlacementProblem, time_limit: f64) -> String {
    let folder = tempdir().unwrap();
    let path = write(&folder, script);
    let start = Instant::now();
    let error = ask(&path, problem, time_limit).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(15), "{script}: {:?}", start.elapsed());
    assert_eq!(error.lines().count(), 1, "{error}");
    let named = format!("{}: ", path.display());
    error.strip_prefix(&named).unwrap_or_else(|| panic!("not named: {error}")).to_owned()
}

#[test]
fn a_plan_that_meets_the_constraints_is_taken() {
    let folder = tempdir().unwrap();
    let path = write(
        &folder,
        "#!/bin/sh\ncat > /dev/null\necho '{\"nodes\": [\"device\", \"cloud\", \"cloud\"]}'\n",
    );
    let planned = ask(&path, &problem(), 10.0).unwrap();
    assert_eq!(planned.plan.models[0].nodes, [0, 1, 1]);
    assert!((planned.latency_seconds - 2.2).abs() < 1e-12, "{}", planned.latency_seconds);
    assert!(!planned.proved && planned.bound_seconds.is_none());
}

#[test]
fn a_plugin_reads_the_problem_with_the_previous_plan_and_the_seed() {
    let folder = tempdir().unwrap();
    let seen = folder.path().join("seen.json");
    let script = format!(
        "#!/bin/sh\ncat > {}\necho '{{\"nodes\": [\"device\", \"device\", \"cloud\"]}}'\n",
        seen.display()
    );
    let path = write(&folder, &script);
    let problem = problem();
    let file = serde_json::from_str(r#"{"nodes": ["device", "device", "device"]}"#).unwrap();
    let previous = PlacementPlan::from_file(&problem, &file).unwrap();
    let options =
        PlacementOptions { previous: Some(&previous), seed: 42, ..PlacementOptions::default() };
    plan_placement(&PlacementPlugin::new(&path, Duration::from_secs(10)), &problem, &options)
        .unwrap();
    let seen: serde_json::Value = serde_json::from_slice(&fs::read(&seen).unwrap()).unwrap();
    assert_eq!(seen["seed"], 42);
    assert_eq!(seen["previous"]["nodes"], serde_json::json!(["device", "device", "device"]));
    assert_eq!(seen["nodes"][1]["name"], "cloud");
    assert_eq!(seen["layers"][0]["input_bytes"], 4.0);
    assert_eq!(seen["throughput_bits_per_second"][0][1], 8.0);
}

#[test]
fn a_plugin_is_asked_once_for_each_setting_of_an_exit() {
    let folder = tempdir().unwrap();
    let seen = folder.path().join("seen");
    let script = format!(
        "#!/bin/sh\ncat >> {0}\necho >> {0}\necho '{{\"models\": [{{\"name\": \"only\", \"nodes\": [\"device\", \"device\", \"cloud\"]}}]}}'\n",
        seen.display()
    );
    let path = write(&folder, &script);
    let problem = problem_with_thresholds();
    let planned = ask(&path, &problem, 10.0).unwrap();
    // The setting with which half of the requests leave early is the quicker one.
    assert_eq!(planned.plan.models[0].settings, [Some(1), None, None]);
    let seen = fs::read_to_string(&seen).unwrap();
    let thresholds: Vec<serde_json::Value> = seen
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|seen| seen["models"][0]["layers"][0]["exit"].clone())
        .collect();
    assert_eq!(thresholds.len(), 2);
    for (exit, threshold) in thresholds.iter().zip([0.25, 0.5]) {
        assert_eq!(exit.as_array().unwrap().len(), 1);
        assert_eq!(exit[0]["threshold"], threshold);
    }
}

#[test]
fn a_plugin_that_hangs_is_ended_with_all_that_it_started() {
    let folder = tempdir().unwrap();
    let numbers = folder.path().join("numbers");
    let script = format!(
        "#!/bin/sh\nsleep 1000 &\necho $! >> {0}\necho $$ >> {0}\nsleep 1000\n",
        numbers.display()
    );
    let path = write(&folder, &script);
    let start = Instant::now();
    let error = ask(&path, &problem(), 0.5).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(
        error.to_string(),
        format!("{}: no plan within 0.5 s; it was ended", path.display())
    );
    let numbers = fs::read_to_string(&numbers).unwrap();
    assert_eq!(numbers.lines().count(), 2);
    for number in numbers.lines() {
        // Killed, and gone as soon as who looks after orphans has seen it.
        let patience = Instant::now() + Duration::from_secs(2);
        let stat = || fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < patience, "process {number} is still there: {}", stat());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_time_limit_is_for_all_settings_together() {
    let slow = "#!/bin/sh\nsleep 1000\n";
    let start = Instant::now();
    let said = complaint_with(slow, &problem_with_thresholds(), 1.0);
    assert_eq!(said, "no plan within 1 s; it was ended");
    assert!(start.elapsed() < Duration::from_millis(1900), "{:?}", start.elapsed());
}

#[test]
fn what_goes_wrong_is_said_in_one_line() {
    let cases = [
        // Crashes.
        ("#!/bin/sh\ncat > /dev/null\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\necho one >&2\necho two >&2\necho >&2\nexit 1\n", "exit code 1: two"),
        ("#!/bin/sh\nkill -SEGV $$\n", "ended by signal 11"),
        // A plan is no excuse for a failure.
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\nexit 7\n",
            "exit code 7",
        ),
        // Rubbish.
        ("#!/bin/sh\ncat > /dev/null\n", "it wrote nothing, expected a plan"),
        ("#!/bin/sh\necho hello\n", "what it wrote is no plan: expected value at line 1 column 1"),
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\"], \"cost\": 3}'\n",
            "what it wrote is no plan: unknown field `cost`, expected one of `nodes`, `thresholds`, `models` at line 1 column 28",
        ),
        // Invalid plans.
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\"]}'\n",
            "nodes: 1, expected one for each of 3 layers",
        ),
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"fog\", \"cloud\"]}'\n",
            "nodes[1]: no node \"fog\"",
        ),
        (
            "#!/bin/sh\necho '{\"nodes\": [\"cloud\", \"cloud\", \"cloud\"]}'\n",
            "cloud has 25 bytes of memory, its layers need 30 (constraint 6.1)",
        ),
        (
            "#!/bin/sh\necho '{\"nodes\": [\"cloud\", \"device\", \"device\"]}'\n",
            "layer 1 is on device, in a lower tier than cloud with the layer before it (constraint 6.4)",
        ),
        // Names with line breaks in them stay in one line.
        (
            "#!/bin/sh\nprintf '{\"nodes\": [\"device\", \"a\\\\nb\", \"cloud\"]}'\n",
            "nodes[1]: no node \"a b\"",
        ),
        (
            "#!/bin/sh\nprintf '{\"a\\\\nb\": 1}'\n",
            "what it wrote is no plan: unknown field `a b`, expected one of `nodes`, `thresholds`, `models` at line 1 column 7",
        ),
        // Endless output.
        ("#!/bin/sh\nexec yes\n", "it wrote more than 16 MB"),
        // A plan, and then nothing happens any more.
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\nexec sleep 1000\n",
            "no plan within 0.5 s; it was ended",
        ),
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\nexec sleep 1000 >&- 2>&-\n",
            "no plan within 0.5 s; it was ended",
        ),
        // A plan, but what it started lives on with its output.
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\nsleep 1000 &\n",
            "it ended, but a process that it started keeps its output open",
        ),
        // The same out of reach: in a session of its own.
        (
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\nsetsid sleep 5 &\n",
            "it ended, but a process that it started keeps its output open",
        ),
    ];
    for (script, expected) in cases {
        // Only who never comes to an end is given little time.
        let time_limit = if expected.contains("within 0.5 s") { 0.5 } else { 60.0 };
        assert_eq!(complaint_with(script, &problem(), time_limit), expected, "{script}");
    }
}

#[test]
fn what_cannot_be_started_is_named() {
    let folder = tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = ask(&missing, &problem(), 1.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with(&format!("{}: can't be started: ", missing.display())));
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let error = ask(&plain, &problem(), 1.0).unwrap_err().to_string();
    assert!(error.contains("can't be started: Permission denied"), "{error}");
}

#[test]
fn a_plugin_that_never_reads_a_large_problem_blocks_nothing() {
    // Far more than a pipe holds.
    let mut problem = problem();
    problem.layers = vec![problem.layers[0].clone(); 20_000];
    problem.nodes[1].memory_bytes = None;
    let folder = tempdir().unwrap();
    let names = vec!["\"device\""; 20_000].join(",");
    let script = format!("#!/bin/sh\ncat <<'END'\n{{\"nodes\": [{names}]}}\nEND\n");
    let path = write(&folder, &script);
    let planned = ask(&path, &problem, 10.0).unwrap();
    assert!(planned.plan.models[0].nodes.iter().all(|&node| node == 0));
    let said = complaint_with("#!/bin/sh\nexec sleep 1000\n", &problem, 0.5);
    assert_eq!(said, "no plan within 0.5 s; it was ended");
    let said = complaint_with("#!/bin/sh\nexec <&-\nexit 2\n", &problem, 60.0);
    assert_eq!(said, "exit code 2");
}

#[test]
fn a_time_limit_without_end_is_none() {
    let folder = tempdir().unwrap();
    let path =
        write(&folder, "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\n");
    let plugin = PlacementPlugin::new(&path, Duration::MAX);
    plan_placement(&plugin, &problem(), &PlacementOptions::default()).unwrap();
}

#[test]
fn the_example_plans_for_one_model_and_for_several() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plan/plugin.py");
    let planned = ask(&path, &problem(), 10.0).unwrap();
    assert_eq!(planned.plan.models[0].nodes, [0, 0, 0]);
    let mut tight = problem();
    tight.nodes[0].memory_bytes = Some(10.0);
    assert_eq!(ask(&path, &tight, 10.0).unwrap().plan.models[0].nodes, [0, 1, 1]);
    // Storage counts as memory does.
    let mut tight = problem();
    tight.nodes[0].storage_bytes = Some(2.0);
    tight.layers.iter_mut().for_each(|layer| layer.storage_bytes = 1.0);
    assert_eq!(ask(&path, &tight, 10.0).unwrap().plan.models[0].nodes, [0, 0, 1]);
    let planned = ask(&path, &problem_with_thresholds(), 10.0).unwrap();
    assert_eq!(planned.plan.models[0].nodes, [0, 0, 0]);
    let mut none = problem();
    none.nodes[0].memory_bytes = Some(5.0);
    let error = ask(&path, &none, 10.0).unwrap_err().to_string();
    let expected = "exit code 1: no node has room for layer 2 that may follow on cloud";
    assert_eq!(error, format!("{}: {expected}", path.display()));
}

#[test]
fn a_plugin_ends_when_its_caller_has_enough() {
    let folder = tempdir().unwrap();
    let path = write(&folder, "#!/bin/sh\nexec sleep 1000\n");
    let start = Instant::now();
    let enough = || start.elapsed() > Duration::from_millis(200);
    let options =
        PlacementOptions { limit: SearchLimit::new(&enough), ..PlacementOptions::default() };
    let error = plan_placement(
        &PlacementPlugin::new(&path, Duration::from_secs(100)),
        &problem(),
        &options,
    );
    let error = error.unwrap_err().to_string();
    assert_eq!(error, format!("{}: ended before it had a plan", path.display()));
    assert!(start.elapsed() < Duration::from_secs(2));
}
