//! Every command, as a user would use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;

use common::{
    detector, f32_bytes, has_onnxruntime, json, length, listing, mobilenet, npy, resnet18,
    resnet18_with_exit, save_png, sibling, succeed, tessera, text,
};
use prost::Message;
use serde_json::{Value, json as json_of};
use tempfile::tempdir;
use tessera_core::{DType, Dim};
use tessera_graph::builder::{GraphBuilder, ints_attribute};

const ZOO: [&str; 14] = [
    "resnet18",
    "resnet50",
    "resnet101",
    "resnet152",
    "vgg13",
    "mobilenet-v2",
    "bert-base",
    "bert-large",
    "roberta-base",
    "roberta-large",
    "gpt2",
    "gpt2-medium",
    "split-resnet50",
    "detector",
];

fn sum(rows: &Value, field: &str) -> u64 {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row[field].as_u64().unwrap()).sum()
}

/// The elements of an output in JSON, as the f32 that they are.
fn values(output: &Value) -> Vec<f32> {
    let values = output["values"].as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Whether each block ran, in order.
fn ran(report: &Value) -> Vec<bool> {
    let blocks = report["blocks"].as_array().unwrap().iter();
    blocks.map(|block| !block["ms"].is_null()).collect()
}

#[test]
fn the_version_is_that_of_tessera() {
    let folder = tempdir().unwrap();
    let expected = format!("tessera {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(succeed(folder.path(), &["--version"]), expected);
}

#[test]
fn the_help_of_every_command_names_its_options() {
    const MODEL: [&str; 2] = ["--shape", "--exit"];
    const SPLIT: [&str; 3] = ["--blocks", "--at", "--every"];
    const ENGINE: [&str; 2] = ["--engine", "--threads"];
    const SERVER: [&str; 3] = ["--server", "--ca", "--bearer"];
    let cut = [&MODEL[..], &SPLIT].concat();
    let cut_and_run = [&cut[..], &ENGINE].concat();
    let more = |common: &[&'static str], own: &[&'static str]| [common, own, &["--json"]].concat();
    let cases: [(&[&str], Vec<&str>); 25] = [
        (
            &["zoo"],
            vec![
                "--list",
                "--output",
                "--seed",
                "--share-with",
                "--stages",
                "--exits",
                "--batch",
                "--batch-norm",
                "--sequence",
                "--json",
            ],
        ),
        (&["inspect"], more(&MODEL, &[])),
        (&["split"], more(&cut, &["--repo", "--name", "--dry-run"])),
        (&["share"], more(&[], &["--repo", "--dry-run"])),
        (
            &["run"],
            more(
                &cut_and_run,
                &["--input", "--range", "--seed", "--repo", "--no-exits", "--output"],
            ),
        ),
        (&["verify"], more(&cut_and_run, &["--range", "--inputs", "--seed", "--tolerance"])),
        (&["profile"], more(&cut_and_run, &["--range", "--runs", "--csv"])),
        (&["put"], more(&SERVER, &["--task", "--set", "--no-task", "--dry-run"])),
        (&["rm"], more(&SERVER, &["--model", "--dry-run"])),
        (&["tasks"], more(&SERVER, &[])),
        (&["status"], more(&SERVER, &[])),
        (&["events"], more(&SERVER, &["--count", "--kind"])),
        (&["top"], more(&SERVER, &["--count"])),
        (&["requests"], more(&SERVER, &["--task"])),
        (&["history"], more(&SERVER, &[])),
        (&["undo"], more(&SERVER, &[])),
        (&["repo", "list"], more(&[], &["--repo"])),
        (&["repo", "show"], more(&[], &["--repo"])),
        (&["repo", "remove"], more(&[], &["--repo"])),
        (&["repo", "verify"], more(&[], &["--repo"])),
        (&["repo", "gc"], more(&[], &["--repo", "--dry-run"])),
        (&["repo", "push"], more(&[], &["--repo", "--to"])),
        (&["repo", "pull"], more(&[], &["--repo", "--from"])),
        (&["bench", "chain"], more(&cut_and_run, &["--model", "--runs"])),
        (&["bench", "siblings"], more(&ENGINE, &["--model", "--count", "--stages"])),
    ];
    let folder = tempdir().unwrap();
    for (command, options) in cases {
        let help = succeed(folder.path(), &[command, &["--help"]].concat());
        for option in options {
            assert!(help.contains(option), "{command:?} has no {option}: {help}");
        }
    }
    let help = succeed(folder.path(), &["--help"]);
    for command in ["zoo", "inspect", "split", "share", "run", "verify", "profile", "repo"] {
        assert!(help.contains(command), "{help}");
    }
    assert_eq!(listing(folder.path()).len(), 0);
}

#[test]
fn zoo_lists_every_architecture() {
    let folder = tempdir().unwrap();
    let listed = succeed(folder.path(), &["zoo", "--list"]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), ZOO);
    assert_eq!(json(folder.path(), &["zoo", "--list"]), json_of!(ZOO));
}

#[test]
fn zoo_writes_a_file_of_the_architectures_name_and_says_what_is_in_it() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["zoo", "resnet18"]);
    let written = fs::metadata(folder.path().join("resnet18.onnx")).unwrap();
    assert_eq!(report["bytes"], written.len());
    // 11,689,512 with batch normalisation; 2 parameters per channel become 1 when it is folded.
    let parameters = report["parameters"].as_u64().unwrap();
    assert!((11_600_000..11_700_000).contains(&parameters), "{parameters}");
    assert_eq!(report["exits"], json_of!([]));
    assert_eq!(listing(folder.path()).len(), 1);
    let shown = succeed(folder.path(), &["zoo", "resnet18", "--seed", "3"]);
    assert!(shown.starts_with("resnet18.onnx: 11.6"), "{shown}");
}

#[test]
fn zoo_writes_the_same_bytes_every_time_and_others_for_another_seed() {
    let folder = tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        succeed(folder.path(), &["zoo", "mobilenet-v2", "--seed", seed, "-o", name]);
        fs::read(folder.path().join(name)).unwrap()
    };
    let first = make("first.onnx", "5");
    assert!(first == make("second.onnx", "5"), "two runs differ");
    assert!(first != make("third.onnx", "6"), "two seeds are the same");
}

#[test]
fn zoo_lists_exits_in_a_manifest_that_goes_when_the_exits_go() {
    let folder = tempdir().unwrap();
    let model = "mobilenet-v2.onnx";
    let manifest = folder.path().join("mobilenet-v2.exits.json");
    let report = json(folder.path(), &["zoo", "mobilenet-v2", "--exits"]);
    let text = fs::read_to_string(&manifest).unwrap();
    let listed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(listed["exits"], report["exits"]);
    assert_eq!(listed["exits"][0]["output"], "exit_stage4");
    let inspected = json(folder.path(), &["inspect", model]);
    assert_eq!(inspected["exits"], report["exits"]);
    assert_eq!(length(&inspected["outputs"]), 2);
    let shown = succeed(folder.path(), &["inspect", model]);
    assert!(shown.contains("exit        exit_stage4 at 0.5"), "{shown}");

    succeed(folder.path(), &["zoo", "mobilenet-v2"]);
    assert!(!manifest.exists());
}

#[test]
fn inspect_shows_inputs_types_and_cut_points() {
    let folder = tempdir().unwrap();
    let model = resnet18();
    let report = json(folder.path(), &["inspect", text(&model)]);
    assert_eq!(report["inputs"], json_of!([{ "name": "input", "type": "f32[1,3,224,224]" }]));
    assert_eq!(report["outputs"], json_of!([{ "name": "output", "type": "f32[1,1000]" }]));
    assert_eq!(report["exact"], true);
    assert_eq!(report["nodes"], 49);
    // After the first convolution, its ReLU and the pooling; after the sum and the ReLU of each of
    // the 8 residual blocks; after the last pooling and the flattening.
    let cuts = report["cut_points"].as_array().unwrap();
    assert_eq!(cuts.len(), 3 + 8 * 2 + 2);
    assert_eq!(cuts[0]["tensor"], "/conv1/Conv_output_0");
    assert_eq!(cuts[0]["type"], "f32[1,64,112,112]");
    assert_eq!(cuts[0]["bytes"], 64 * 112 * 112 * 4);
    for pair in cuts.windows(2) {
        for field in ["nodes", "flops", "weight_bytes"] {
            assert!(pair[0][field].as_u64() <= pair[1][field].as_u64(), "{field}");
        }
    }
    let shown = succeed(folder.path(), &["inspect", text(&model)]);
    for expected in [
        "inputs      input f32[1,3,224,224]",
        "outputs     output f32[1,1000]",
        "cut points  21",
        "/layer3/layer3.0/Add_output_0",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn inspect_shows_open_dimensions_and_fixes_them_on_demand() {
    let folder = tempdir().unwrap();
    succeed(folder.path(), &["zoo", "mobilenet-v2", "--batch", "dynamic", "-o", "m.onnx"]);
    let open = json(folder.path(), &["inspect", "m.onnx"]);
    assert_eq!(open["inputs"][0]["type"], "f32[batch,3,224,224]");
    assert_eq!(open["outputs"][0]["type"], "f32[batch,1000]");
    let shape = ["inspect", "m.onnx", "--shape", "input=2,3,224,224"];
    let fixed = json(folder.path(), &shape);
    assert_eq!(fixed["outputs"][0]["type"], "f32[2,1000]");
    assert_eq!(fixed["exact"], true);

    let run = ["run", "m.onnx", "--shape", "input=2,3,224,224"];
    let result = json(folder.path(), &run);
    assert_eq!(result["outputs"][0]["type"], "f32[2,1000]");
    assert_eq!(length(&result["outputs"][0]["top"]), 2);
}

#[test]
fn split_cuts_where_it_is_asked_to() {
    let folder = tempdir().unwrap();
    let model = resnet18();
    let split = |options: &[&str]| {
        let arguments = [&["split", text(&model), "--dry-run"][..], options].concat();
        json(folder.path(), &arguments)
    };
    assert_eq!(length(&split(&[])["blocks"]), 4);
    assert_eq!(length(&split(&["--blocks", "3"])["blocks"]), 3);
    assert_eq!(length(&split(&["--blocks", "1"])["blocks"]), 1);
    assert_eq!(length(&split(&["--every"])["blocks"]), 22);

    let places = "/maxpool/MaxPool_output_0,/Flatten_output_0";
    let cut = split(&["--at", places]);
    assert_eq!(length(&cut["blocks"]), 3);
    assert_eq!(cut["blocks"][0]["inputs"], json_of!(["input"]));
    assert_eq!(cut["blocks"][1]["inputs"], json_of!(["/maxpool/MaxPool_output_0"]));
    assert_eq!(cut["blocks"][2]["inputs"], json_of!(["/Flatten_output_0"]));
    assert_eq!(cut["blocks"][2]["outputs"], json_of!(["output f32[1,1000]"]));
    assert_eq!(sum(&cut["blocks"], "weight_bytes"), cut["weight_bytes"]);
    assert_eq!(cut["model"], Value::Null);
    assert_eq!(listing(folder.path()).len(), 0, "a dry run stores nothing");
}

#[test]
fn split_keeps_the_model_under_its_name() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let arguments = ["split", text(&model), "--repo", "kept", "--blocks", "2"];
    let report = json(folder.path(), &arguments);
    assert_eq!(report["name"], "mobilenet-v2");
    assert_eq!(report["repository"], "kept");
    let named = [&arguments[..], &["--name", "other"]].concat();
    let shown = succeed(folder.path(), &named);
    assert!(shown.contains("other stored in kept"), "{shown}");

    let listed = json(folder.path(), &["repo", "list", "--repo", "kept"]);
    let entry = |name: &str| json_of!({ "name": name, "hash": report["model"] });
    assert_eq!(listed["models"], json_of!([entry("mobilenet-v2"), entry("other")]));
    assert_eq!(listed["usage"]["blocks"], 2);
}

#[test]
fn the_head_of_an_exit_is_a_block_of_its_own() {
    let folder = tempdir().unwrap();
    let model = resnet18_with_exit();
    let arguments = ["split", text(&model), "--dry-run", "--blocks", "2"];
    let report = json(folder.path(), &arguments);
    assert_eq!(length(&report["blocks"]), 3);
    assert_eq!(report["exits"][0]["output"], "exit_stage2");
    let head = report["exits"][0]["head"].as_u64().unwrap() as usize;
    assert_eq!(report["blocks"][head]["exit"], "exit_stage2 at 0.5");
    assert_eq!(report["blocks"][head]["outputs"], json_of!(["exit_stage2 f32[1,1000]"]));
}

#[test]
fn share_keeps_what_two_siblings_have_in_common_once() {
    let folder = tempdir().unwrap();
    let (first, second) = (sibling(1), sibling(2));
    let arguments = ["share", text(&first), text(&second), "--repo", "kept"];
    let report = json(folder.path(), &arguments);
    assert!(report["percent_saved"].as_f64().unwrap() > 0.0);
    let saved = report["bytes_saved"].as_u64().unwrap();
    let apart = report["bytes_apart"].as_u64().unwrap();
    assert_eq!(report["bytes_shared"], apart - saved);

    let blocks = report["blocks"].as_array().unwrap();
    let both = json_of!(["sibling-1", "sibling-2"]);
    let common: Vec<&Value> = blocks.iter().filter(|block| block["models"] == both).collect();
    assert!(!common.is_empty(), "{report:#}");
    let kept_once: u64 = common.iter().map(|block| block["weight_bytes"].as_u64().unwrap()).sum();
    assert_eq!(kept_once, saved);
    let paths = [&report["models"][0]["path"], &report["models"][1]["path"]];
    assert_eq!(paths[0][0], paths[1][0], "the first block is common");
    assert_ne!(paths[0].as_array().unwrap().last(), paths[1].as_array().unwrap().last());

    let listed = json(folder.path(), &["repo", "list", "--repo", "kept"]);
    let usage = &listed["usage"];
    assert_eq!(usage["blocks"], blocks.len());
    assert_eq!(usage["weight_bytes"], report["bytes_shared"]);

    let shown = succeed(folder.path(), &arguments);
    let path: Vec<&str> =
        paths[0].as_array().unwrap().iter().map(|hash| &hash.as_str().unwrap()[..12]).collect();
    assert!(shown.contains(&path.join(" → ")), "{shown}");
    assert!(shown.contains("saved"), "{shown}");
}

#[test]
fn a_shared_model_computes_what_its_file_computes() {
    let folder = tempdir().unwrap();
    let (first, second) = (sibling(1), sibling(2));
    let arguments = ["share", text(&first), text(&second), "--repo", "kept"];
    succeed(folder.path(), &arguments);
    let whole = json(folder.path(), &["run", text(&second), "--blocks", "1"]);
    let shared = json(folder.path(), &["run", "sibling-2", "--repo", "kept"]);
    let (whole, shared) = (values(&whole["outputs"][0]), values(&shared["outputs"][0]));
    let largest = whole.iter().fold(0f32, |most, value| most.max(value.abs()));
    for (a, b) in whole.iter().zip(&shared) {
        assert!((a - b).abs() <= 1e-5 * largest, "{a} and {b}");
    }
}

#[test]
fn share_stores_nothing_in_a_dry_run() {
    let folder = tempdir().unwrap();
    let (first, second) = (sibling(1), sibling(2));
    let shown = succeed(folder.path(), &["share", text(&first), text(&second), "--dry-run"]);
    assert!(shown.contains("nothing stored"), "{shown}");
    assert_eq!(listing(folder.path()).len(), 0);
}

#[test]
fn run_prints_the_top_five_classes_and_the_time_of_each_block() {
    let folder = tempdir().unwrap();
    let model = resnet18();
    let arguments = ["run", text(&model), "--blocks", "3"];
    let shown = succeed(folder.path(), &arguments);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "output f32[1,1000]");
    let classes = lines[2..7].iter().map(|line| line.split_whitespace());
    let classes: Vec<usize> =
        classes.map(|mut words| words.next().unwrap().parse().unwrap()).collect();

    let report = json(folder.path(), &arguments);
    let top = report["outputs"][0]["top"][0].as_array().unwrap();
    assert_eq!(top.len(), 5);
    for (class, row) in classes.iter().zip(top) {
        assert_eq!(row["class"], *class);
    }
    for pair in top.windows(2) {
        assert!(pair[0]["score"].as_f64() >= pair[1]["score"].as_f64());
    }
    assert_eq!(ran(&report), [true; 3]);
    assert_eq!(length(&report["outputs"][0]["values"]), 1000);
    assert_eq!(listing(folder.path()).len(), 0, "nothing is written");
}

#[test]
fn run_takes_a_model_from_the_repository_by_name() {
    let folder = tempdir().unwrap();
    let model = resnet18();
    succeed(folder.path(), &["split", text(&model)]);
    let stored = json(folder.path(), &["run", "resnet18"]);
    let from_file = json(folder.path(), &["run", text(&model)]);
    assert_eq!(stored["outputs"], from_file["outputs"]);
    assert_eq!(ran(&stored), [true; 4]);
}

#[test]
fn run_reads_npy_and_raw_inputs_alike() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let data: Vec<f32> =
        (0..3 * 224 * 224).map(|index| ((index % 251) as f32 - 125.0) / 60.0).collect();
    let file = npy("<f4", "(1, 3, 224, 224)", &f32_bytes(&data));
    fs::write(folder.path().join("x.npy"), file).unwrap();
    fs::write(folder.path().join("x.raw"), f32_bytes(&data)).unwrap();
    let run = |input: &str| json(folder.path(), &["run", text(&model), "--input", input]);
    let from_npy = run("x.npy");
    assert_eq!(from_npy["outputs"], run("input=x.npy")["outputs"]);
    assert_eq!(from_npy["outputs"], run("x.raw")["outputs"]);
    let random = json(folder.path(), &["run", text(&model)]);
    assert_ne!(from_npy["outputs"], random["outputs"]);
}

#[test]
fn run_normalises_an_image_as_imagenet_models_expect() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let colour = [200u8, 100, 30];
    save_png(&folder.path().join("plain.png"), 90, 60, colour);
    let normal = [(0.485f32, 0.229f32), (0.456, 0.224), (0.406, 0.225)];
    let data: Vec<f32> = colour
        .iter()
        .zip(normal)
        .map(|(&value, (mean, deviation))| (f32::from(value) / 255.0 - mean) / deviation)
        .flat_map(|value| std::iter::repeat_n(value, 224 * 224))
        .collect();
    let file = npy("<f4", "(1, 3, 224, 224)", &f32_bytes(&data));
    fs::write(folder.path().join("plain.npy"), file).unwrap();
    let run = |input: &str| json(folder.path(), &["run", text(&model), "--input", input]);
    let (image, array) = (run("plain.png"), run("plain.npy"));
    assert_eq!(image["outputs"], array["outputs"]);
    let shown = succeed(folder.path(), &["run", text(&model), "-i", "plain.png"]);
    assert!(shown.contains("class"), "{shown}");
}

#[test]
fn run_writes_outputs_as_npy_files_that_hold_what_json_shows() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let arguments = ["run", text(&model), "--output", "results", "--seed", "9"];
    let report = json(folder.path(), &arguments);
    let file = fs::read(folder.path().join("results/output.npy")).unwrap();
    assert!(file.starts_with(b"\x93NUMPY\x01\x00"));
    let header = usize::from(u16::from_le_bytes([file[8], file[9]]));
    let described = std::str::from_utf8(&file[10..10 + header]).unwrap();
    assert!(described.contains("'descr': '<f4'"), "{described}");
    assert!(described.contains("'shape': (1,1000,)"), "{described}");
    assert_eq!((10 + header) % 64, 0);
    let data: Vec<f32> = file[10 + header..]
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(data, values(&report["outputs"][0]));
    let names: Vec<_> = common::files(&folder.path().join("results"));
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn run_leaves_at_an_exit_that_is_certain_enough_and_runs_nothing_after_it() {
    let folder = tempdir().unwrap();
    let model = resnet18_with_exit();
    let run = |options: &[&str]| {
        let arguments = [&["run", text(&model), "--blocks", "3"][..], options].concat();
        json(folder.path(), &arguments)
    };
    // Entropy is at most 1, so a threshold of 1 is always met; it is 0 for no real output.
    let taken = run(&["--exit", "exit_stage2=1.0"]);
    assert_eq!(taken["exit"]["output"], "exit_stage2");
    assert_eq!(taken["outputs"][0]["name"], "exit_stage2");
    assert_eq!(length(&taken["outputs"]), 1);
    let blocks = ran(&taken);
    assert_eq!((blocks[0], blocks.last()), (true, Some(&false)), "{blocks:?}");

    let passed = run(&["--exit", "exit_stage2=0"]);
    assert_eq!(passed["exit"], Value::Null);
    assert_eq!(passed["outputs"][0]["name"], "output");
    assert!(ran(&passed).iter().all(|&ran| ran));

    let never = run(&["--exit", "exit_stage2=1.0", "--no-exits"]);
    assert_eq!(never["exit"], Value::Null);
    assert_eq!(never["outputs"], passed["outputs"]);
    assert_eq!(ran(&never).iter().filter(|&&ran| !ran).count(), 1);

    let arguments = ["run", text(&model), "--blocks", "3", "--exit", "exit_stage2=1"];
    let shown = succeed(folder.path(), &arguments);
    assert!(shown.contains("left at exit exit_stage2"), "{shown}");
    assert!(shown.contains("not run"), "{shown}");
}

#[test]
fn a_stored_model_keeps_its_exits_and_run_may_move_their_thresholds() {
    let folder = tempdir().unwrap();
    let model = resnet18_with_exit();
    succeed(folder.path(), &["split", text(&model), "--name", "early"]);
    let shown = json(folder.path(), &["repo", "show", "early"]);
    assert_eq!(shown["exits"][0]["output"], "exit_stage2");
    let run = |threshold: &str| json(folder.path(), &["run", "early", "--exit", threshold]);
    assert_eq!(run("exit_stage2=1")["exit"]["output"], "exit_stage2");
    assert_eq!(run("exit_stage2=0")["exit"], Value::Null);
}

fn verify_every_cut(engine: &str) {
    let folder = tempdir().unwrap();
    for model in [resnet18(), mobilenet(), detector(), resnet18_with_exit()] {
        let arguments = ["verify", text(&model), "--every", "--engine", engine];
        let report = json(folder.path(), &arguments);
        let apart = report["max_relative_difference"].as_f64().unwrap();
        assert!(apart <= 1e-5, "{report:#}");
        assert_eq!(report["same_top"], true, "{report:#}");
        assert_eq!(report["finite"], true, "{report:#}");
        let used = report["engine"].as_str().unwrap();
        assert!(used.starts_with(engine), "{used}");
        let inspected = json(folder.path(), &["inspect", text(&model)]);
        let cuts = length(&inspected["cut_points"]);
        assert_eq!(report["cut_points"], cuts);
        assert_eq!(report["blocks"], cuts + 1 + length(&inspected["exits"]));
        assert_eq!(
            length(&report["outputs"]),
            length(&inspected["outputs"]),
            "every output is compared, those of exits too"
        );
    }
}

#[test]
fn every_cut_gives_what_the_uncut_model_gives_on_onnx_runtime() {
    if has_onnxruntime() {
        verify_every_cut("onnxruntime");
    }
}

#[test]
fn every_cut_gives_what_the_uncut_model_gives_on_rten() {
    verify_every_cut("rten");
}

#[test]
fn verify_fails_where_the_difference_is_above_the_tolerance() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let shown = succeed(folder.path(), &["verify", text(&model), "--inputs", "2"]);
    assert!(shown.contains("largest relative difference"), "{shown}");
    // No difference is below zero: this must fail, and still print the report.
    let arguments = ["verify", text(&model), "--tolerance=-1", "--json"];
    let ran = tessera(folder.path(), &arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains("mobilenet-v2.onnx"), "{}", ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(report["max_relative_difference"].is_number());
    assert!(ran.err.contains("--bisect"), "{}", ran.err);
    let arguments = ["verify", text(&model), "--tolerance=-1", "--bisect"];
    let ran = tessera(folder.path(), &arguments);
    assert!(ran.out.contains("the difference begins in block 0 (Conv"), "{}", ran.out);
}

#[test]
fn verify_finds_sizes_for_open_dimensions_and_says_which_it_tried() {
    let folder = tempdir().unwrap();
    let mut builder = GraphBuilder::new("wide");
    let open = |name: &str| Dim::Symbol(name.to_owned());
    let dims = [open("n"), Dim::Fixed(1), open("h"), open("w")];
    let x = builder.add_input("x", DType::F32, dims);
    let kernel = builder.add_weight("kernel", &[1, 1, 9, 9], vec![0.1; 81]);
    let mut attributes = ["dilations", "strides"].map(|n| ints_attribute(n, &[1, 1])).to_vec();
    attributes.push(ints_attribute("pads", &[0; 4]));
    let y = builder.add_node("Conv", &[&x, &kernel], attributes);
    let y = builder.add_node("Relu", &[&y], []);
    builder.add_output(&y);
    let model = folder.path().join("wide.onnx");
    fs::write(&model, builder.build_model().encode_to_vec()).unwrap();
    let report = json(folder.path(), &["verify", text(&model), "--engine", "rten"]);
    assert_eq!(report["shapes"]["x"], json_of!([1, 1, 16, 16]), "{report:#}");
    assert_eq!(report["same"], true);
    let arguments = ["verify", text(&model), "--engine", "rten", "--shape", "x=1,1,4,4"];
    let ran = tessera(folder.path(), &arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(!ran.err.contains("tried"), "a given shape is the one that is run: {}", ran.err);
}

#[test]
fn profile_counts_the_same_for_layers_and_for_blocks() {
    let folder = tempdir().unwrap();
    let model = resnet18();
    let arguments = ["profile", text(&model), "--runs", "2"];
    let report = json(folder.path(), &arguments);
    assert_eq!(length(&report["blocks"]), 4);
    for field in ["flops", "parameters", "weight_bytes", "nodes"] {
        let layers = sum(&report["layers"], field);
        assert_eq!(layers, sum(&report["blocks"], field), "{field}");
        assert_eq!(report["total"][field], layers, "{field}");
    }
    let inspected = json(folder.path(), &["inspect", text(&model)]);
    for field in ["flops", "parameters", "weight_bytes"] {
        assert_eq!(report["total"][field], inspected[field], "{field}");
    }
    assert_eq!(length(&report["layers"]), length(&inspected["cut_points"]) + 1);
    for kind in ["layers", "blocks"] {
        for row in report[kind].as_array().unwrap() {
            assert!(row["median_ms"].as_f64().unwrap() > 0.0, "{row:#}");
            assert!(row["memory_bytes"].as_u64() >= row["output_bytes"].as_u64());
        }
    }
}

#[test]
fn profile_prints_a_table_and_csv() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let counted = ["profile", text(&model), "--runs", "0"];
    let shown = succeed(folder.path(), &counted);
    for expected in ["Layers", "Blocks", "FLOPs", "total"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let csv = succeed(folder.path(), &[&counted[..], &["--csv"]].concat());
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][0], "kind");
    for row in &rows {
        assert_eq!(row.len(), rows[0].len(), "{row:?}");
    }
    let report = json(folder.path(), &counted);
    let count = |kind: &str| rows.iter().filter(|row| row[0] == kind).count();
    assert_eq!(count("layer"), length(&report["layers"]));
    assert_eq!(count("block"), length(&report["blocks"]));
    assert_eq!(report["engine"], Value::Null, "nothing was measured");
    let flops = rows[0].iter().position(|&head| head == "flops").unwrap();
    let layers = rows.iter().filter(|row| row[0] == "layer");
    let total: u64 = layers.map(|row| row[flops].parse::<u64>().unwrap()).sum();
    assert_eq!(report["total"]["flops"], total);
}

#[test]
fn a_repository_lists_shows_checks_forgets_and_collects() {
    let folder = tempdir().unwrap();
    let (first, second) = (sibling(1), sibling(2));
    succeed(folder.path(), &["share", text(&first), text(&second)]);

    let listed = succeed(folder.path(), &["repo", "list"]);
    assert!(listed.contains("sibling-1"), "{listed}");
    assert!(listed.contains("sibling-2"), "{listed}");
    let shown = json(folder.path(), &["repo", "show", "sibling-1"]);
    assert_eq!(shown["inputs"][0]["name"], "input");
    let path = length(&shown["blocks"]);
    let table = succeed(folder.path(), &["repo", "show", "sibling-1"]);
    assert_eq!(table.lines().count(), 1 + path, "{table}");

    let sound = succeed(folder.path(), &["repo", "verify"]);
    assert!(sound.contains("are sound"), "{sound}");
    let checked = json(folder.path(), &["repo", "verify"]);
    assert_eq!(checked["problems"], json_of!([]));
    let before = checked["usage"]["total_bytes"].as_u64().unwrap();

    let collect = ["repo", "gc"];
    assert_eq!(json(folder.path(), &collect)["bytes"], 0);
    succeed(folder.path(), &["repo", "remove", "sibling-1"]);
    let pretended = json(folder.path(), &["repo", "gc", "--dry-run"]);
    let untouched = json(folder.path(), &["repo", "list"]);
    assert_eq!(untouched["usage"]["total_bytes"], before);
    let collected = json(folder.path(), &collect);
    assert_eq!(pretended, collected);
    assert_eq!(collected["models"], 1);
    assert!(collected["weights"].as_u64().unwrap() > 0);
    let left = json(folder.path(), &["repo", "list"]);
    let freed = collected["bytes"].as_u64().unwrap();
    assert_eq!(left["usage"]["total_bytes"], before - freed);
    assert_eq!(length(&left["models"]), 1);
    succeed(folder.path(), &["repo", "verify"]);
    succeed(folder.path(), &["run", "sibling-2"]);
}

#[test]
fn the_repository_may_be_named_by_the_environment() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let mut command = common::command(folder.path());
    command.args(["split", text(&model)]).env("TESSERA_REPO", folder.path().join("mine"));
    let ran = common::finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(folder.path().join("mine/names/mobilenet-v2").is_file());
}

#[test]
fn bench_chain_compares_within_one_run() {
    let folder = tempdir().unwrap();
    let model = mobilenet();
    let arguments = ["bench", "chain", "--model", text(&model), "--blocks", "2", "--runs", "3"];
    let report = json(folder.path(), &arguments);
    assert_eq!(report["blocks"], 2);
    assert_eq!(report["runs"], 3);
    let median = |of: &str| report[of]["median_ms"].as_f64().unwrap();
    let ratio = report["ratio"].as_f64().unwrap();
    assert!((ratio - median("chain") / median("whole")).abs() < 1e-6);
    let shown = succeed(folder.path(), &arguments);
    assert!(shown.contains("ratio"), "{shown}");
}

#[test]
fn bench_siblings_reports_what_sharing_saves() {
    let folder = tempdir().unwrap();
    let arguments =
        ["bench", "siblings", "--model", "mobilenet-v2", "--count", "3", "--stages", "5"];
    let report = json(folder.path(), &arguments);
    assert_eq!(report["models"], 3);
    let number = |field: &str| report[field].as_f64().unwrap();
    assert!(number("percent_saved") > 0.0);
    assert!(number("distinct_weight_bytes") < number("bytes_apart"));
    assert!(number("repository_bytes") >= number("distinct_weight_bytes"));
    assert!(number("resident_ran_bytes") <= number("resident_limit_bytes"), "{report:#}");
    assert_eq!(listing(folder.path()).len(), 0);
}

#[test]
fn running_a_model_leaves_nothing_in_the_home_and_temporary_folders() {
    if !has_onnxruntime() {
        return;
    }
    let folder = tempdir().unwrap();
    let (home, temporary) = (folder.path().join("home"), folder.path().join("temporary"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&temporary).unwrap();
    let model = folder.path().join("dense.onnx");
    common::save(&model, &common::dense());
    let mut command = common::command(folder.path());
    command
        .args(["run", "dense.onnx", "--engine", "onnxruntime"])
        .env("HOME", &home)
        .env("TMPDIR", &temporary)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME")
        .env_remove("ORT_DISABLE_TELEMETRY");
    let ran = common::finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // ONNX Runtime's telemetry would leave an identifier of this machine and a database there.
    let mut left = listing(&home);
    left.extend(listing(&temporary));
    assert!(left.is_empty(), "{left:?}");
}
