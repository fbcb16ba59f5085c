//! `tessera plan` and `tessera bench placement` as a user runs them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{command, interrupt, json, length, refuse, succeed, tessera, text};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn example(name: &str) -> String {
    text(&project().join("examples/plan").join(name)).to_owned()
}

/// The seconds that a field of a report says, in milliseconds.
fn milliseconds(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("no {field} in {report}")) * 1e3
}

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
}

/// A device and a cloud: three layers, of 10 ms each on the device and 1 ms in the cloud.
const SMALL: &str = "\
nodes:
  - {name: device, input: true, flops_per_second: 1.0e9, memory_bytes: 25}
  - {name: cloud, tier: 1, flops_per_second: 1.0e10, memory_bytes: 100}
throughput_bits_per_second: [[null, 8000], [8000, null]]
latency_ms: [[null, 5], [5, null]]
layers:
  - {name: one, flops: 1.0e7, memory_bytes: 10, input_bytes: 20}
  - {name: two, flops: 1.0e7, memory_bytes: 10, input_bytes: 2}
  - {name: three, flops: 1.0e7, memory_bytes: 10, input_bytes: 1}
";

fn small(folder: &TempDir) -> String {
    let path = folder.path().join("small.yaml");
    fs::write(&path, SMALL).unwrap();
    text(&path).to_owned()
}

/// Writes an executable; see the tests of plugins for why not simply so.
fn program(folder: &TempDir, name: &str, script: &str) -> String {
    let (draft, path) = (folder.path().join("draft"), folder.path().join(name));
    fs::write(&draft, script).unwrap();
    let done = Command::new("install").arg("-m755").arg(&draft).arg(&path).status().unwrap();
    assert!(done.success());
    fs::remove_file(&draft).unwrap();
    text(&path).to_owned()
}

#[test]
fn the_example_is_placed_as_its_numbers_say() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["plan", "placement", &example("placement.yaml")]);
    let nodes = json!(["device", "device", "edge", "edge", "cloud", "cloud"]);
    assert_eq!(report["plan"]["nodes"], nodes);
    assert_eq!((&report["proved"], &report["gap"]), (&json!(true), &json!(0.0)));
    // 20 on the device, 12 to the edge, 20 there, and of 0.4 requests 12 to the cloud and 2.1
    // there.
    assert_close(milliseconds(&report, "latency_seconds"), 20.0 + 12.0 + 20.0 + 0.4 * 14.1);
    assert_eq!(report["outcome"]["splits"], 2);
    assert!(report["plan_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_same_is_printed_every_time() {
    let folder = tempdir().unwrap();
    for strategy in ["exact", "genetic", "all", "pareto"] {
        for file in ["placement.yaml", "tenants.yaml", "exits.yaml"] {
            let arguments = ["plan", "placement", &example(file), "--strategy", strategy];
            let out = succeed(folder.path(), &arguments);
            assert_eq!(out, succeed(folder.path(), &arguments), "{arguments:?}");
            assert!(out.lines().count() > 2 && out.lines().all(|line| line.len() < 120), "{out}");
        }
    }
}

#[test]
fn a_problem_may_come_from_standard_input_and_be_json() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("problem");
    let file: Value = json(folder.path(), &["plan", "placement", &small(&folder)]);
    for problem in [SMALL.to_owned(), serde_json::to_string(&from_yaml()).unwrap()] {
        fs::write(&path, problem).unwrap();
        let mut command = command(folder.path());
        command.args(["plan", "placement", "-", "--json"]);
        let out = command.stdin(fs::File::open(&path).unwrap()).output().unwrap();
        let read: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(read["plan"], file["plan"]);
    }
}

/// [`SMALL`] as JSON.
fn from_yaml() -> Value {
    let layer = |bytes: u32| json!({"flops": 1e7, "memory_bytes": 10, "input_bytes": bytes});
    json!({
        "nodes": [
            {"name": "device", "input": true, "flops_per_second": 1e9, "memory_bytes": 25},
            {"name": "cloud", "tier": 1, "flops_per_second": 1e10, "memory_bytes": 100},
        ],
        "throughput_bits_per_second": [[null, 8000], [8000, null]],
        "latency_ms": [[null, 5], [5, null]],
        "layers": [layer(20), layer(2), layer(1)],
    })
}

#[test]
fn every_strategy_is_listed_and_can_be_asked_for() {
    let folder = tempdir().unwrap();
    let list = succeed(folder.path(), &["plan", "placement", "--strategy", "help"]);
    let names: Vec<&str> = list.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    for name in ["exact", "genetic", "first-fit", "cloud", "device", "pareto", "./PATH"] {
        assert!(names.contains(&name), "{list}");
    }
    let problem = example("exits.yaml");
    for name in names.iter().filter(|name| !name.contains('/')) {
        let report = json(folder.path(), &["plan", "placement", &problem, "--strategy", name]);
        assert_eq!(report["strategy"], *name);
        assert!(milliseconds(&report, "latency_seconds") >= 27.5 - 1e-9, "{report}");
    }
    let all = json(folder.path(), &["plan", "placement", &problem, "--strategy", "all"]);
    assert_eq!(length(&all["strategies"]), names.len() - 1);
    for row in all["strategies"].as_array().unwrap() {
        assert!(row["loss"].as_f64().unwrap() > -1e-12, "{row}");
    }
}

#[test]
fn strategies_that_find_no_plan_say_so_beside_those_that_do() {
    let folder = tempdir().unwrap();
    let arguments = ["plan", "placement", &small(&folder), "--strategy", "all"];
    let out = succeed(folder.path(), &arguments);
    let said = "device: device has 25 bytes of memory, its layers need 30 (constraint 6.1)";
    assert!(out.lines().any(|line| line == said), "{out}");
    let report = json(folder.path(), &arguments);
    let rows = report["strategies"].as_array().unwrap();
    let device = rows.iter().find(|row| row["strategy"] == "device").unwrap();
    assert!(device["error"].as_str().unwrap().contains("25 bytes"), "{device}");
    assert!(rows.iter().any(|row| row["strategy"] == "exact" && row["proved"] == true));
}

#[test]
fn several_models_share_their_blocks_and_count_by_their_weights() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["plan", "placement", &example("tenants.yaml")]);
    let models = &report["outcome"]["models"];
    let latency = |model: usize| milliseconds(&models[model], "latency_seconds");
    assert_close(latency(0), 26.0);
    assert_close(latency(1), 33.2);
    assert_close(milliseconds(&report, "latency_seconds"), (3.0 * 26.0 + 33.2) / 4.0);
    // The stem of both is on the edge node once: 30 of it, 30 and 10 of birds.
    assert_eq!(report["outcome"]["nodes"][1]["memory_bytes"], 70e6);
}

#[test]
fn thresholds_are_chosen_for_the_accuracy_that_is_asked_for() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["plan", "placement", &example("exits.yaml")]);
    assert_eq!(report["plan"]["models"][0]["thresholds"], json!([null, 0.5, null, null]));
    assert_close(report["outcome"]["accuracy"].as_f64().unwrap(), 0.5 * 0.90 + 0.5 * 0.95);
    assert_close(milliseconds(&report, "latency_seconds"), 10.0 + 0.5 * (30.0 + 5.0));
    // 4 W for 10 ms, 1 µJ for each of 100 kB for half of the requests, 200 W for 2.5 ms.
    assert_close(report["outcome"]["energy_joules"].as_f64().unwrap(), 0.04 + 0.05 + 0.5);
}

#[test]
fn a_front_has_no_plan_that_another_beats() {
    let folder = tempdir().unwrap();
    let arguments = ["plan", "placement", &example("exits.yaml"), "--strategy", "pareto"];
    let report = json(folder.path(), &arguments);
    let points = report["front"].as_array().unwrap();
    assert!(points.len() > 3, "{points:?}");
    // What is better when it is larger, larger.
    let figures = |point: &Value| {
        let figure = |name: &str| point["outcome"][name].as_f64().unwrap();
        [
            -figure("latency_seconds"),
            figure("throughput_per_second"),
            figure("accuracy"),
            -figure("energy_joules"),
        ]
    };
    for (number, one) in points.iter().enumerate() {
        assert_eq!(length(&one["plan"]["models"][0]["nodes"]), 4);
        for other in points[..number].iter().chain(&points[number + 1..]) {
            let pairs: Vec<(f64, f64)> = figures(one).into_iter().zip(figures(other)).collect();
            assert!(pairs.iter().any(|(one, other)| one > other), "{one} beaten by {other}");
        }
    }
    let out = succeed(folder.path(), &arguments);
    assert_eq!(out.lines().count(), points.len() + 2, "{out}");
}

#[test]
fn a_plan_is_kept_until_changing_it_pays() {
    let folder = tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let problem = example("placement.yaml");
    let first = json(folder.path(), &["plan", "placement", &problem]);
    // The whole output, and what is under `plan` alone.
    for previous in [&first, &first["plan"]] {
        fs::write(&plan, previous.to_string()).unwrap();
        let arguments = ["plan", "placement", &problem, "--previous", text(&plan)];
        let again = json(folder.path(), &arguments);
        assert_eq!(again["plan"], first["plan"]);
        assert_eq!((&again["kept"], &again["moving"]["layers"]), (&json!(true), &json!(0)));
        assert!(succeed(folder.path(), &arguments).contains("the previous plan stays"));
    }
    let cloud = json(folder.path(), &["plan", "placement", &problem, "--strategy", "cloud"]);
    fs::write(&plan, cloud.to_string()).unwrap();
    let moved = json(folder.path(), &["plan", "placement", &problem, "--previous", text(&plan)]);
    assert_eq!((&moved["kept"], &moved["moving"]["layers"]), (&json!(false), &json!(4)));
    // Four layers of 10 ms, and 10 MB at 10 kB a millisecond, for a thousand requests.
    assert_close(milliseconds(&moved["moving"], "seconds"), (4.0 * 10.0 + 1000.0) / 1000.0);
}

#[test]
fn a_plan_of_the_users_is_judged() {
    let folder = tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let problem = small(&folder);
    let judged = ["plan", "placement", &problem, "--plan", text(&plan)];
    fs::write(&plan, r#"{"nodes": ["device", "cloud", "cloud"]}"#).unwrap();
    let report = json(folder.path(), &judged);
    assert_close(milliseconds(&report, "latency_seconds"), 10.0 + 7.0 + 2.0);
    fs::write(&plan, r#"{"nodes": ["device", "device", "device"]}"#).unwrap();
    refuse(folder.path(), &judged, &["plan.json: device has 25 bytes of memory", "30"]);
    fs::write(&plan, r#"{"nodes": ["device", "cloud", "device"]}"#).unwrap();
    refuse(folder.path(), &judged, &["plan.json: layer 2 is on device", "constraint 6.4"]);
    fs::write(&plan, r#"{"nodes": ["device", "fog", "cloud"]}"#).unwrap();
    refuse(folder.path(), &judged, &["plan.json: nodes[1]: no node \"fog\""]);
    fs::write(&plan, r#"{"nodes": ["device"]}"#).unwrap();
    refuse(folder.path(), &judged, &["plan.json: nodes: 1, expected one for each of 3 layers"]);
    fs::write(&plan, r#"{"nodes": 3}"#).unwrap();
    refuse(folder.path(), &judged, &["plan.json: nodes: invalid type"]);
    let previous = ["plan", "placement", &problem, "--previous", "missing.json"];
    refuse(folder.path(), &previous, &["missing.json: No such file"]);
}

#[test]
fn every_picture_is_sound_and_names_what_it_shows() {
    let folder = tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    let cases = [
        ("placement.yaml", "exact", vec!["device (input)", "edge", "57.64 ms"]),
        ("tenants.yaml", "exact", vec!["birds", "cats", "70.00 MB of 70.00 MB"]),
        ("exits.yaml", "pareto", vec!["latency (ms)", "accuracy", "phone &gt; server"]),
        ("placement.yaml", "all", vec!["first-fit", "latency (ms)"]),
    ];
    for (file, strategy, words) in cases {
        let arguments = ["plan", "placement", &example(file), "--strategy", strategy];
        succeed(folder.path(), &[&arguments[..], &["--svg", text(&picture)]].concat());
        let drawn = fs::read_to_string(&picture).unwrap();
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        for word in words {
            assert!(drawn.contains(word), "{file} {strategy}: no {word} in {drawn}");
        }
    }
    let nowhere = ["plan", "placement", &example("placement.yaml"), "--svg", "no/such/folder.svg"];
    refuse(folder.path(), &nowhere, &["no/such/folder.svg"]);
}

#[test]
fn problems_that_make_no_sense_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    // What is replaced in the small problem by what, and what is said then.
    let device = "  - {name: device, input: true, flops_per_second: 1.0e9, memory_bytes: 25}\n";
    let cloud = "  - {name: cloud, tier: 1, flops_per_second: 1.0e10, memory_bytes: 100}\n";
    let cases = [
        (format!("nodes:\n{device}{cloud}"), "nodes: []\n", "nodes: none"),
        (" input: true,".into(), "", "nodes: none has input: true"),
        ("tier: 1,".into(), "input: true,", "nodes: device and cloud have input: true"),
        ("name: cloud".into(), "name: device", "nodes[1].name: \"device\" is there twice"),
        ("name: cloud".into(), "name: ''", "nodes[1].name: empty"),
        // Links.
        ("[[null, 8000]".into(), "[[null, null]", "throughput_bits_per_second[0][1]: missing"),
        ("[[null, 5]".into(), "[[null]", "latency_ms[0]: 1 figures, expected one for each of 2"),
        (", [5, null]]".into(), "]", "latency_ms: 1 rows, expected one for each of 2 nodes"),
        ("latency_ms: [[null, 5], [5, null]]\n".into(), "", "missing field `latency_ms`"),
        // Figures.
        ("flops: 1.0e7".into(), "flops: .nan", "layers[0].flops: NaN"),
        ("flops: 1.0e7".into(), "flops: .inf", "layers[0].flops: inf"),
        ("flops: 1.0e7".into(), "flops: -1", "layers[0].flops: -1"),
        ("flops: 1.0e7".into(), "flops: 1.0e300", "layers[0].flops: 1"),
        ("[8000, null]".into(), "[-8000, null]", "throughput_bits_per_second[1][0]: -8000"),
        ("[5, null]".into(), "[.nan, null]", "latency_ms[1][0]: NaN"),
        ("memory_bytes: 25".into(), "memory_bytes: -25", "nodes[0].memory_bytes: -25"),
        ("1.0e9".into(), "0", "nodes[0].flops_per_second: 0, expected a number above 0"),
        ("tier: 1".into(), "tier: -1", "nodes[1].tier: "),
        // Fields.
        ("memory_bytes: 25".into(), "memory: 25", "nodes[0]"),
        ("flops: 1.0e7".into(), "flops: lots", "layers[0].flops: "),
        ("flops_per_second: 1.0e9, ".into(), "", "nodes: device has neither flops_per_second"),
        (", input_bytes: 20".into(), "", "layers[0].input_bytes: missing"),
        (", input_bytes: 2}".into(), "}", "layers[1].input_bytes: missing"),
        ("layers:".into(), "moving: {requests: 0}\nlayers:", "moving.requests: 0"),
        ("layers:".into(), "models: []\nlevels:", "levels"),
        // Room.
        (
            "memory_bytes: 100".into(),
            "memory_bytes: 9",
            "layer 2 (three) needs 10 bytes of memory, which no node has left",
        ),
        (
            "memory_bytes: 10, input_bytes: 2}".into(),
            "memory_bytes: 1.0e6, input_bytes: 2}",
            "layer 1 (two) needs 1000000 bytes of memory, more than any node has: device 25, cloud 100",
        ),
        // No connection.
        ("[null, 8000]".into(), "[null, 0]", "layer 2 (three)"),
    ];
    let path = folder.path().join("problem.yaml");
    for (from, to, said) in cases {
        assert!(SMALL.contains(&from), "{from}");
        fs::write(&path, SMALL.replacen(&from, to, 1)).unwrap();
        let arguments = ["plan", "placement", "problem.yaml"];
        refuse(folder.path(), &arguments, &["problem.yaml: ", said]);
    }
}

#[test]
fn files_that_are_no_problems_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 9] = [
        ("empty.yaml", b"", "empty.yaml: empty"),
        ("blank.json", b" \n\n", "blank.json: empty"),
        ("text.yaml", b"Dear planner,\nplease place my layers.\n", "text.yaml: "),
        ("broken.yaml", b"nodes: [\n  {name: a", "broken.yaml: "),
        ("broken.json", b"{\"nodes\": [", "broken.json: "),
        ("list.json", b"[1, 2]", "list.json: "),
        ("number.yaml", b"3", "number.yaml: "),
        ("bytes.yaml", b"\xff\xfe\x00", "bytes.yaml: "),
        ("type.json", b"{\"nodes\": \"all\"}", "type.json: nodes: invalid type"),
    ];
    for (name, bytes, said) in cases {
        fs::write(folder.path().join(name), bytes).unwrap();
        refuse(folder.path(), &["plan", "placement", name], &[said]);
    }
    refuse(folder.path(), &["plan", "placement", "missing.yaml"], &["missing.yaml: No such file"]);
    refuse(folder.path(), &["plan", "placement", "."], &[".: "]);
    refuse(folder.path(), &["plan", "placement"], &["PROBLEM"]);
}

#[test]
fn options_that_make_no_sense_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let problem = small(&folder);
    let cases: [(&[&str], &str); 6] = [
        (&["--strategy", "best"], "--strategy \"best\", expected one of exact, genetic"),
        (&["--strategy", ""], "--strategy \"\""),
        (&["--time-limit", "0"], "above 0"),
        (&["--time-limit", "soon"], "seconds"),
        (&["--seed", "odd"], "--seed"),
        (&["--plan", "a.json", "--strategy", "exact"], "--strategy"),
    ];
    for (options, said) in cases {
        let arguments = [&["plan", "placement", &problem][..], options].concat();
        refuse(folder.path(), &arguments, &[said]);
    }
    // A program that is not asked for as one.
    program(&folder, "mine", "#!/bin/sh\n");
    let arguments = ["plan", "placement", &problem, "--strategy", "mine"];
    refuse(folder.path(), &arguments, &["for the program of that name: ./mine"]);
}

#[test]
fn the_example_of_a_plugin_is_a_strategy() {
    let folder = tempdir().unwrap();
    let plugin = example("plugin.py");
    for file in ["placement.yaml", "tenants.yaml", "exits.yaml"] {
        let arguments = ["plan", "placement", &example(file), "--strategy", &plugin];
        let report = json(folder.path(), &arguments);
        assert_eq!((&report["strategy"], &report["proved"]), (&json!(plugin), &json!(false)));
    }
    let report = json(
        &project(),
        &[
            "plan",
            "placement",
            "examples/plan/placement.yaml",
            "--strategy",
            "examples/plan/plugin.py",
        ],
    );
    let nodes = json!(["device", "device", "device", "device", "cloud", "cloud"]);
    assert_eq!(report["plan"]["nodes"], nodes);
    let lines = fs::read_to_string(&plugin).unwrap();
    let code = lines.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(code <= 30, "{code} lines are too many for an example");
}

#[test]
fn plugins_that_misbehave_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let problem = small(&folder);
    let cases = [
        ("crashes", "#!/bin/sh\nexit 3\n", "exit code 3"),
        (
            "complains",
            "#!/bin/sh\necho first >&2\necho out of ideas >&2\nexit 1\n",
            "exit code 1: out of ideas",
        ),
        ("dies", "#!/bin/sh\nkill -KILL $$\n", "ended by signal 9"),
        ("rubbish", "#!/bin/sh\necho to the cloud\n", "what it wrote is no plan: expected"),
        ("silent", "#!/bin/sh\ncat > /dev/null\n", "it wrote nothing, expected a plan"),
        (
            "full",
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"device\", \"device\"]}'\n",
            "device has 25 bytes of memory, its layers need 30 (constraint 6.1)",
        ),
        (
            "back",
            "#!/bin/sh\necho '{\"nodes\": [\"device\", \"cloud\", \"device\"]}'\n",
            "in a lower tier than cloud",
        ),
        (
            "lost",
            "#!/bin/sh\necho '{\"nodes\": [\"moon\", \"moon\", \"moon\"]}'\n",
            "no node \"moon\"",
        ),
        (
            "short",
            "#!/bin/sh\necho '{\"nodes\": [\"device\"]}'\n",
            "expected one for each of 3 layers",
        ),
    ];
    for (name, script, said) in cases {
        let path = program(&folder, name, script);
        let arguments = ["plan", "placement", &problem, "--strategy", &path];
        refuse(folder.path(), &arguments, &[&format!("tessera: {path}: "), said]);
    }
    fs::write(folder.path().join("plain"), "#!/bin/sh\n").unwrap();
    let not_executable = ["plan", "placement", &problem, "--strategy", "./plain"];
    refuse(folder.path(), &not_executable, &["./plain: can't be started: Permission denied"]);
    let missing = ["plan", "placement", &problem, "--strategy", "./missing"];
    refuse(folder.path(), &missing, &["./missing: can't be started: No such file"]);
}

#[test]
fn a_plugin_that_hangs_is_ended_in_time() {
    let folder = tempdir().unwrap();
    let problem = small(&folder);
    let path = program(&folder, "hangs", "#!/bin/sh\nsleep 1000\n");
    let start = Instant::now();
    let arguments = ["plan", "placement", &problem, "--strategy", &path, "--time-limit", "1"];
    refuse(folder.path(), &arguments, &["hangs: no plan within 1 s; it was ended"]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn the_tables_of_the_thesis_come_out_but_for_what_contradicts_itself() {
    let folder = tempdir().unwrap();
    for (file, agreeing) in [("blockflow-resnet50.yaml", 45), ("blockflow-resnet152.yaml", 43)] {
        let report = json(folder.path(), &["plan", "fusion", &example(file)]);
        let figures = (&report["published"], &report["agreeing"]);
        assert_eq!(figures, (&json!(56), &json!(agreeing)), "{file}");
    }
}

#[test]
fn ctrl_c_ends_a_plugin_with_its_children() {
    let folder = tempdir().unwrap();
    let problem = small(&folder);
    let path = program(&folder, "waits", "#!/bin/sh\nsleep 1000 &\necho $! > child\nwait\n");
    let arguments = ["plan", "placement", &problem, "--strategy", &path, "--time-limit", "600"];
    let stderr = Stdio::piped();
    let child = command(folder.path()).args(arguments).stderr(stderr).spawn().unwrap();
    let number = folder.path().join("child");
    let started = || fs::read_to_string(&number).is_ok_and(|text| text.ends_with('\n'));
    let start = Instant::now();
    while !started() {
        assert!(start.elapsed() < Duration::from_secs(30), "the plugin was not started");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sleeper = fs::read_to_string(&number).unwrap();
    let process = Path::new("/proc").join(sleeper.trim());
    assert!(process.exists());
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "tessera: interrupted\n");
    // Whoever inherited it may take a moment to bury it.
    while fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "what the plugin started is there still"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn section_7_2_is_repeated_with_figures_for_each_strategy() {
    let folder = tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let arguments = ["bench", "placement", "--nodes", "3..4", "--repetitions", "2", "--seed", "7"];
    let report = json(folder.path(), &[&arguments[..], &["--plot", text(&plot)]].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 4);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert!(row["plan_ms"]["min"].as_f64().unwrap() > 0.0);
        assert!(figure("latency_seconds") > 0.1 && figure("mean_loss") > -1e-9, "{row}");
        assert!(figure("worst_loss") >= figure("mean_loss") - 1e-12, "{row}");
        match row["strategy"].as_str().unwrap() {
            "exact" => assert_eq!((&row["proved"], figure("worst_loss")), (&json!(2), 0.0)),
            "cloud" => assert_eq!(figure("splits"), 0.0),
            _ => {}
        }
        if cfg!(target_os = "linux") {
            assert!(row["memory_bytes"].is_u64(), "{row}");
        }
    }
    let drawn = fs::read_to_string(&plot).unwrap();
    for word in ["Execution time", "Memory", "Predicted latency", "Loss", "Split points"] {
        assert!(drawn.contains(word), "no {word}");
    }
    // What is drawn depends on the seed alone.
    let other = ["bench", "placement", "--nodes", "3", "--repetitions", "2", "--seed", "8"];
    let again = json(folder.path(), &arguments);
    assert_eq!(again["rows"][0]["latency_seconds"], rows[0]["latency_seconds"]);
    let other = json(folder.path(), &other);
    assert_ne!(other["rows"][0]["latency_seconds"], rows[0]["latency_seconds"]);
    let csv = succeed(folder.path(), &[&arguments[..], &["--csv", "--model", "vgg13"]].concat());
    assert_eq!(csv.lines().count(), 1 + 2 * 4, "{csv}");
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    let table =
        succeed(folder.path(), &["bench", "placement", "--nodes", "3", "--repetitions", "1"]);
    assert!(table.contains("resnet152 variant 1 on iot-edge-cloud, 1 problems"), "{table}");
}

#[test]
fn instances_of_a_file_are_planned_one_by_one() {
    let folder = tempdir().unwrap();
    let node = |name: &str, input: bool, memory: u32| {
        json!({
            "name": name, "input": input, "tier": u8::from(!input), "flops_per_second": 1e9,
            "memory_bytes": memory, "storage_bytes": 1e9, "note": "what is not known is passed over",
        })
    };
    let instance = |memory: u32| {
        json!({
            "nodes": [node("device", true, memory), node("cloud", false, memory)],
            "throughput_bits_per_second": [[null, 8000], [8000, null]],
            "latency_ms": [[0, 5], [5, 0]],
        })
    };
    let layer = json!({"flops": 1e7, "memory_bytes": 10, "storage_bytes": 1, "input_bytes": 1, "execution_probability": 1.0});
    let mut file = json!({
        "layers": [layer, layer], "instances": [instance(20), instance(10), instance(9)],
    });
    file["instances"][0]["optimum_seconds"] = json!(0.01);
    let path = folder.path().join("instances.json");
    fs::write(&path, file.to_string()).unwrap();
    let arguments = ["bench", "placement", "--instances", text(&path), "--strategy", "exact"];
    let report = json(folder.path(), &arguments);
    let rows = report["instances"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert_close(milliseconds(&rows[0], "latency_seconds"), 20.0);
    assert_close(rows[0]["loss"].as_f64().unwrap(), 1.0);
    assert_close(milliseconds(&rows[1], "latency_seconds"), 26.0);
    assert_eq!((&rows[1]["loss"], &rows[1]["splits"]), (&json!(0.0), &json!(1)));
    assert_eq!((&rows[1]["proved"], &rows[1]["nodes"]), (&json!(true), &json!(2)));
    assert!(rows[1]["plan_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(rows[2]["latency_seconds"], Value::Null);
    assert!(rows[2]["error"].as_str().unwrap().contains("layer 0"), "{}", rows[2]);
    assert_eq!(report["summary"][0]["failed"], 1);
    assert_close(milliseconds(&report["summary"][0], "worst_difference_seconds"), 10.0);
    let table = succeed(folder.path(), &arguments);
    assert!(table.lines().last().unwrap().trim_start().starts_with("all  exact"), "{table}");
    assert_eq!(succeed(folder.path(), &[&arguments[..], &["--csv"]].concat()).lines().count(), 4);
    file["instances"][1]["nodes"][0]["input"] = json!(false);
    fs::write(&path, file.to_string()).unwrap();
    refuse(folder.path(), &arguments, &["instances.json: instances[1]: nodes: none has input"]);
}

#[test]
fn random_problems_of_a_size_are_proved_or_have_a_gap() {
    let folder = tempdir().unwrap();
    for kind in ["--tight", "--loose"] {
        let arguments = ["bench", "placement", kind, "12x6", "--repetitions", "5"];
        let report = json(folder.path(), &arguments);
        let row = &report[0];
        assert_eq!((&row["strategy"], &row["problems"]), (&json!("exact"), &json!(5)));
        assert_eq!(row["worst_gap"], 0.0, "{row}");
        assert_eq!((&row["layers"], &row["nodes"]), (&json!(12), &json!(6)));
        assert!(succeed(folder.path(), &arguments).lines().count() == 2);
    }
}

#[test]
fn benchmarks_of_what_makes_no_sense_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let cases: [(&[&str], &str); 11] = [
        (&["--nodes", "2"], "from 3 on"),
        (&["--nodes", "9..3"], "such as 3..20"),
        (&["--nodes", "many"], "such as 3..20"),
        (&["--repetitions", "0"], "--repetitions"),
        (&["--strategy", "exact,best"], "--strategy \"best\""),
        (&["--model", "alexnet"], "resnet152 or vgg13"),
        (&["--variant", "3"], "--variant"),
        (&["--scenario", "moon"], "iot-edge-cloud"),
        (&["--tight", "5"], "such as 56x20"),
        (&["--tight", "0x3"], "such as 56x20"),
        (&["--instances", "missing.json"], "missing.json: No such file"),
    ];
    for (options, said) in cases {
        let arguments = [&["bench", "placement"][..], options].concat();
        refuse(folder.path(), &arguments, &[said]);
    }
}

/// The commands beside placement, with an example of each.
const OTHERS: [(&str, &str); 5] = [
    ("overflow", "overflow.yaml"),
    ("residency", "residency.yaml"),
    ("eviction", "eviction.yaml"),
    ("fusion", "fusion.yaml"),
    ("queueing", "queueing.yaml"),
];

#[test]
fn every_other_planner_plans_its_example_and_refuses_what_is_no_problem() {
    let folder = tempdir().unwrap();
    for (planner, file) in OTHERS {
        let arguments = ["plan", planner, &example(file)];
        let out = succeed(folder.path(), &arguments);
        assert!(out.lines().count() > 2, "{out}");
        assert_eq!(out, succeed(folder.path(), &arguments), "{planner}");
        assert!(json(folder.path(), &arguments).is_object(), "{planner}");
        fs::write(folder.path().join("empty.yaml"), "").unwrap();
        refuse(folder.path(), &["plan", planner, "empty.yaml"], &["empty.yaml: empty"]);
        refuse(folder.path(), &["plan", planner, "missing.yaml"], &["missing.yaml: No such file"]);
        let strange = "nobody_knows_this: 1\n";
        fs::write(folder.path().join("strange.yaml"), strange).unwrap();
        refuse(folder.path(), &["plan", planner, "strange.yaml"], &["strange.yaml: "]);
        let yaml = fs::read_to_string(example(file)).unwrap() + "\nnobody_knows_this: 1\n";
        fs::write(folder.path().join("more.yaml"), yaml).unwrap();
        refuse(
            folder.path(),
            &["plan", planner, "more.yaml"],
            &["more.yaml: ", "nobody_knows_this"],
        );
    }
}

#[test]
fn every_planner_explains_itself() {
    let folder = tempdir().unwrap();
    let help = succeed(folder.path(), &["plan", "--help"]);
    for (planner, _) in OTHERS.into_iter().chain([("placement", "")]) {
        assert!(help.contains(planner), "{help}");
        let own = succeed(folder.path(), &["plan", planner, "--help"]);
        assert!(own.contains("--json"), "{own}");
    }
    let ran = tessera(folder.path(), &["plan", "world-peace"]);
    assert_eq!((ran.code, ran.err.lines().count()), (Some(1), 1), "{}", ran.err);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let folder = tempdir().unwrap();
    let mut command = command(folder.path());
    command.args(["plan", "placement", &example("placement.yaml"), "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
