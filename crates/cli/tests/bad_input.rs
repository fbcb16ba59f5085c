//! Bad input: exit code 1, one line that says what is wrong, and nothing left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::path::Path;

use common::{
    command, dense, f32_bytes, files, finish, mobilenet, npy, refuse, refuse_command, save,
    save_png, small, succeed, tessera, with_external_weight, with_weight_of,
};
use tempfile::{TempDir, tempdir};
use tessera_core::{DType, Dim};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::onnx::ModelProto;

/// Every command that reads a model, on `model`.
fn every_command(model: &str) -> [Vec<&str>; 8] {
    [
        vec!["inspect", model],
        vec!["inspect", model, "--json"],
        vec!["split", model, "--repo", "repository"],
        vec!["share", model, "--repo", "repository"],
        vec!["run", model, "--engine", "rten"],
        vec!["verify", model, "--engine", "rten"],
        vec!["profile", model, "--engine", "rten"],
        vec!["bench", "chain", "--engine", "rten", "--model", model],
    ]
}

/// Every command refuses `model`, with its name and `words` in the line.
fn all_refuse(folder: &Path, model: &str, words: &[&str]) {
    for arguments in every_command(model) {
        refuse(folder, &arguments, &[&[model][..], words].concat());
    }
}

/// A folder with `small.onnx` in it.
fn with_small() -> TempDir {
    let folder = tempdir().unwrap();
    save(&folder.path().join("small.onnx"), &small());
    folder
}

/// A model of nodes `(name, operator, inputs, output)`, from input `x` to output `y`.
fn wired(nodes: &[(&str, &str, &[&str], &str)]) -> ModelProto {
    let mut graph = GraphBuilder::new("wired");
    graph.add_input("x", DType::F32, [1, 4]);
    for (name, operator, inputs, output) in nodes {
        graph.add_node_into(name, operator, inputs, &[output], []);
    }
    graph.add_output("y");
    graph.build_model()
}

#[test]
fn a_file_that_is_no_model_is_refused_by_every_command() {
    let folder = tempdir().unwrap();
    let mut state = 0x9e37_79b9u32;
    let random: Vec<u8> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for (name, content, word) in [
        ("empty.onnx", Vec::new(), "empty"),
        ("random.onnx", random, "not an ONNX model"),
        ("zeros.onnx", vec![0; 100], "not an ONNX model"),
        ("text.onnx", b"Dear model,\n".to_vec(), "not an ONNX model"),
    ] {
        fs::write(folder.path().join(name), content).unwrap();
        all_refuse(folder.path(), name, &[word]);
    }
}

#[test]
fn a_file_that_was_cut_short_is_refused_wherever_it_ends() {
    let folder = tempdir().unwrap();
    let whole = fs::read(mobilenet()).unwrap();
    let path = folder.path().join("short.onnx");
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    all_refuse(folder.path(), "short.onnx", &[]);
    for length in [1, 10, 100, 10_000, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        refuse(folder.path(), &["inspect", "short.onnx"], &["short.onnx"]);
    }
}

#[test]
fn a_file_that_is_not_there_or_a_folder_is_refused_by_every_command() {
    let folder = tempdir().unwrap();
    all_refuse(folder.path(), "missing.onnx", &[]);
    all_refuse(folder.path(), "no/such/folder.onnx", &[]);
    fs::create_dir(folder.path().join("folder")).unwrap();
    all_refuse(folder.path(), "folder", &[]);
}

#[test]
fn a_graph_that_is_wired_wrongly_is_refused_with_the_node_and_the_tensor() {
    let folder = tempdir().unwrap();
    let cycle = wired(&[
        ("first", "Add", &["x", "b"], "a"),
        ("second", "Relu", &["a"], "b"),
        ("third", "Relu", &["a"], "y"),
    ]);
    let dangling = wired(&[("sum", "Add", &["x", "ghost"], "y")]);
    let twice = wired(&[("one", "Relu", &["x"], "y"), ("two", "Sigmoid", &["x"], "y")]);
    let no_output = wired(&[("one", "Relu", &["x"], "z")]);
    let unknown = wired(&[("odd", "Frobnicate", &["x"], "y")]);
    let cases: [(&str, ModelProto, &[&str]); 5] = [
        ("cycle.onnx", cycle, &["cycle", "\"first\"", "\"second\""]),
        ("dangling.onnx", dangling, &["\"sum\"", "\"ghost\""]),
        ("twice.onnx", twice, &["\"y\"", "\"one\"", "\"two\""]),
        ("no-output.onnx", no_output, &["\"y\""]),
        ("unknown.onnx", unknown, &["\"odd\"", "Frobnicate"]),
    ];
    for (name, model, words) in cases {
        save(&folder.path().join(name), &model);
        all_refuse(folder.path(), name, words);
    }
}

#[test]
fn a_weight_of_the_wrong_length_is_refused_with_both_lengths() {
    let folder = tempdir().unwrap();
    for bytes in [0, 12, 17] {
        save(&folder.path().join("weight.onnx"), &with_weight_of(bytes));
        let found = format!(" {bytes} ");
        let words = ["\"w\"", "f32[1,4]", &found, "16"];
        all_refuse(folder.path(), "weight.onnx", &words);
    }
}

#[test]
fn external_data_that_is_missing_or_too_short_is_refused() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("external.onnx");
    save(&model, &with_external_weight("gone.bin"));
    all_refuse(folder.path(), "external.onnx", &["\"w\"", "gone.bin"]);
    fs::write(folder.path().join("gone.bin"), [0u8; 15]).unwrap();
    all_refuse(folder.path(), "external.onnx", &["\"w\"", "gone.bin", "16"]);
    // And what is wrong with it is all that was wrong.
    fs::write(folder.path().join("gone.bin"), [0u8; 16]).unwrap();
    succeed(folder.path(), &["inspect", "external.onnx"]);
}

#[test]
fn external_data_outside_the_folder_is_refused_whichever_way_it_is_named() {
    let outer = tempdir().unwrap();
    let secret = outer.path().join("secret.bin");
    fs::write(&secret, [0u8; 16]).unwrap();
    let folder = outer.path().join("models");
    fs::create_dir_all(folder.join("inner")).unwrap();
    std::os::unix::fs::symlink(&secret, folder.join("link.bin")).unwrap();
    std::os::unix::fs::symlink(outer.path(), folder.join("way")).unwrap();
    for location in [
        "../secret.bin",
        "inner/../../secret.bin",
        secret.to_str().unwrap(),
        "link.bin",
        "way/secret.bin",
    ] {
        save(&folder.join("external.onnx"), &with_external_weight(location));
        let words = ["\"w\"", location, "outside"];
        all_refuse(&folder, "external.onnx", &words);
    }
}

#[test]
fn a_cut_where_there_is_no_cut_point_is_refused() {
    let folder = with_small();
    for (place, word) in [
        ("ghost", "\"ghost\""),
        ("x", "\"x\" is no cut point"),
        ("y", "\"y\" is no cut point"),
        ("middle,ghost", "\"ghost\""),
    ] {
        for command in ["split", "verify", "profile"] {
            let arguments = [command, "small.onnx", "--at", place];
            refuse(folder.path(), &arguments, &["small.onnx", word]);
        }
    }
    for (count, words) in [("0", ["0 blocks", "1 or more"]), ("9", ["9 blocks", "has 1"])] {
        let arguments = ["split", "small.onnx", "--blocks", count];
        refuse(folder.path(), &arguments, &[&["small.onnx"][..], &words].concat());
    }
}

#[test]
fn an_exit_that_is_no_branch_of_its_own_is_refused() {
    let folder = with_small();
    for (exit, words) in [
        ("ghost=0.5", ["\"ghost\"", "y"]),
        ("middle=0.5", ["\"middle\"", "no output"]),
        ("y=0.5", ["every output", "small.onnx"]),
        ("y=7", ["\"y\"", "0 to 1"]),
        ("y", ["--exit", "OUTPUT=THRESHOLD"]),
        ("y=half", ["--exit", "OUTPUT=THRESHOLD"]),
    ] {
        for command in ["inspect", "split", "verify"] {
            refuse(folder.path(), &[command, "small.onnx", "--exit", exit], &words);
        }
    }
}

#[test]
fn a_manifest_that_is_garbled_is_refused_by_its_name() {
    let folder = with_small();
    let manifest = folder.path().join("small.exits.json");
    for (content, word) in [
        ("", "small.exits.json"),
        ("{\"exits\": [", "small.exits.json"),
        ("\u{1}\u{2}", "small.exits.json"),
        ("[]", "small.exits.json"),
        ("{\"exits\": [{\"output\": \"y\"}]}", "threshold"),
        ("{\"exits\": [], \"more\": 1}", "more"),
        ("{\"exits\": [{\"output\": \"ghost\", \"threshold\": 0.5}]}", "\"ghost\""),
    ] {
        fs::write(&manifest, content).unwrap();
        all_refuse(folder.path(), "small.onnx", &[word]);
    }
}

#[test]
fn an_input_of_the_wrong_type_is_refused_with_both_types() {
    let folder = with_small();
    let i64_bytes: Vec<u8> = (0..4i64).flat_map(i64::to_le_bytes).collect();
    for (file, found) in [
        (npy("<i8", "(1, 4)", &i64_bytes), "i64[1,4]"),
        (npy("<f4", "(4,)", &f32_bytes(&[0.0; 4])), "f32[4]"),
        (npy("<f4", "()", &f32_bytes(&[0.0])), "f32[]"),
        (npy("<f4", "(1, 3)", &f32_bytes(&[0.0; 3])), "f32[1,3]"),
        (npy("<f4", "(2, 4)", &f32_bytes(&[0.0; 8])), "f32[2,4]"),
    ] {
        fs::write(folder.path().join("x.npy"), file).unwrap();
        let arguments = ["run", "small.onnx", "--engine", "rten", "--input", "x.npy"];
        let words = ["small.onnx", "\"x\"", "f32[1,4]", found];
        refuse(folder.path(), &arguments, &words);
    }
}

#[test]
fn an_input_file_that_cannot_be_read_is_refused_by_its_name() {
    let folder = with_small();
    let sound = npy("<f4", "(1, 4)", &f32_bytes(&[0.0; 4]));
    let image = b"\x89PNG\r\n\x1a\n and then nothing".to_vec();
    for (name, content) in [
        ("garbage.npy", b"no array at all".to_vec()),
        ("empty.npy", Vec::new()),
        ("short.npy", sound[..sound.len() - 1].to_vec()),
        ("header.npy", sound[..20].to_vec()),
        ("big-endian.npy", npy(">f4", "(1, 4)", &[0; 16])),
        ("object.npy", npy("|O", "(1, 4)", &[0; 16])),
        ("vast.npy", npy("<f4", "(99999999999, 99999999999)", &[0; 16])),
        ("short.raw", vec![0; 15]),
        ("long.raw", vec![0; 17]),
        ("picture.png", image),
    ] {
        fs::write(folder.path().join(name), content).unwrap();
        let arguments = ["run", "small.onnx", "--engine", "rten", "--input", name];
        refuse(folder.path(), &arguments, &[name]);
    }
    for name in ["missing.npy", "missing.raw", "missing.png"] {
        let arguments = ["run", "small.onnx", "--engine", "rten", "--input", name];
        refuse(folder.path(), &arguments, &[name]);
    }
}

#[test]
fn an_image_is_refused_where_the_input_is_no_image_or_the_file_none() {
    let folder = with_small();
    let path = folder.path().join("sound.png");
    save_png(&path, 8, 8, [1, 2, 3]);
    let arguments = ["run", "small.onnx", "--engine", "rten", "--input", "sound.png"];
    refuse(folder.path(), &arguments, &["sound.png", "f32[1,4]"]);

    let mut graph = GraphBuilder::new("picture");
    let x = graph.add_input("x", DType::F32, [1, 3, 8, 8]);
    graph.add_node_into("relu", "Relu", &[&x], &["y"], []);
    graph.add_output("y");
    save(&folder.path().join("picture.onnx"), &graph.build_model());
    let run = ["run", "picture.onnx", "--engine", "rten", "--input"];
    succeed(folder.path(), &[&run[..], &["sound.png"]].concat());
    let sound = fs::read(&path).unwrap();
    fs::write(folder.path().join("cut.png"), &sound[..sound.len() / 2]).unwrap();
    refuse(folder.path(), &[&run[..], &["cut.png"]].concat(), &["cut.png"]);
}

#[test]
fn an_input_that_no_memory_could_hold_is_refused() {
    let folder = tempdir().unwrap();
    let mut graph = GraphBuilder::new("vast");
    let x = graph.add_input("x", DType::F32, [16_999_999_999]);
    graph.add_node_into("relu", "Relu", &[&x], &["y"], []);
    graph.add_output("y");
    save(&folder.path().join("vast.onnx"), &graph.build_model());
    fs::write(folder.path().join("x.raw"), [0u8; 16]).unwrap();
    let run = ["run", "vast.onnx", "--engine", "rten"];
    refuse(folder.path(), &run, &["\"x\"", "f32[16999999999]"]);
    let given = [&run[..], &["--input", "x.raw"]].concat();
    refuse(folder.path(), &given, &["x.raw", "f32[16999999999]"]);
}

#[test]
fn names_of_inputs_that_the_model_lacks_are_refused_with_those_it_has() {
    let folder = with_small();
    let mut graph = GraphBuilder::new("two");
    let rows = Dim::Symbol("rows".to_owned());
    let a = graph.add_input("a", DType::F32, [rows.clone(), Dim::Fixed(4)]);
    let b = graph.add_input("b", DType::F32, [rows, Dim::Fixed(4)]);
    graph.add_node_into("sum", "Add", &[&a, &b], &["y"], []);
    graph.add_output("y");
    save(&folder.path().join("two.onnx"), &graph.build_model());
    let file = npy("<f4", "(1, 4)", &f32_bytes(&[0.0; 4]));
    fs::write(folder.path().join("x.npy"), file).unwrap();
    let run = ["run", "two.onnx", "--engine", "rten"];
    let known = ["\"a\"", "\"b\""];
    let named = |option: &[&'static str], word: &'static str| {
        let words = [&[word][..], &known].concat();
        refuse(folder.path(), &[&run[..], option].concat(), &words);
    };
    named(&["--input", "ghost=x.npy"], "\"ghost\"");
    named(&["--input", "x.npy"], "--input");
    named(&["--range", "ghost=0,9"], "\"ghost\"");
    named(&["--shape", "ghost=1,4"], "\"ghost\"");
}

#[test]
fn a_shape_that_does_not_fit_is_refused() {
    let folder = with_small();
    for (shape, words) in [
        ("x=2,4", ["\"x\"", "f32[1,4]"]),
        ("x=1,4,1", ["\"x\"", "f32[1,4]"]),
        ("ghost=1,4", ["\"ghost\"", "\"x\""]),
        ("x=1,four", ["--shape", "NAME=d,d"]),
        ("x", ["--shape", "NAME=d,d"]),
        ("x=-1,4", ["--shape", "NAME=d,d"]),
    ] {
        for command in ["inspect", "split", "verify", "profile"] {
            refuse(folder.path(), &[command, "small.onnx", "--shape", shape], &words);
        }
    }
}

#[test]
fn a_range_that_makes_no_sense_is_refused() {
    let folder = with_small();
    for range in ["x=3,3", "x=9,1", "x=1", "x", "x=a,b", "ghost=0,1"] {
        for command in ["run", "verify", "profile"] {
            let arguments = [command, "small.onnx", "--engine", "rten", "--range", range];
            refuse(folder.path(), &arguments, &["--range"]);
        }
    }
}

#[test]
fn parts_of_weights_are_measured_on_a_gpu_alone() {
    let folder = with_small();
    let command = ["profile", "small.onnx", "--engine", "rten", "--residency"];
    refuse(folder.path(), &command, &["--residency needs a GPU"]);
    refuse(folder.path(), &[&command[..], &["--csv"]].concat(), &["--residency", "--csv"]);
}

#[test]
fn what_the_zoo_does_not_have_is_refused() {
    let folder = tempdir().unwrap();
    for (arguments, words) in [
        (&["resnet51"][..], ["resnet51", "resnet50"]),
        (&["gpt2", "--exits"], ["gpt2", "exits"]),
        (&["resnet18", "--share-with", "1", "--stages", "9"], ["resnet18", "4 stages"]),
        (&["resnet18", "--batch", "0"], ["batch", "1 or more"]),
        (&["resnet18", "--batch", "many"], ["--batch", "many"]),
    ] {
        refuse(folder.path(), &[&["zoo"][..], arguments].concat(), &words);
    }
    fs::create_dir(folder.path().join("taken")).unwrap();
    for output in ["taken", "no/such/folder.onnx"] {
        let arguments = ["zoo", "mobilenet-v2", "--output", output];
        refuse(folder.path(), &arguments, &[output]);
    }
    refuse(folder.path(), &["bench", "siblings", "--model", "resnet51"], &["resnet51", "resnet50"]);
}

#[test]
fn a_model_that_the_repository_lacks_is_refused_with_those_it_has() {
    let folder = with_small();
    succeed(folder.path(), &["split", "small.onnx", "--repo", "repository"]);
    for arguments in [
        &["run", "ghost", "--engine", "rten"][..],
        &["repo", "show", "ghost"],
        &["repo", "remove", "ghost"],
    ] {
        let arguments = [arguments, &["--repo", "repository"]].concat();
        refuse(folder.path(), &arguments, &["\"ghost\"", "small"]);
    }
    let exit = ["run", "small", "--engine", "rten", "--repo", "repository", "--exit", "ghost=1"];
    refuse(folder.path(), &exit, &["\"small\"", "\"ghost\""]);
}

#[test]
fn a_folder_that_is_no_repository_is_refused_and_left_as_it_is() {
    let folder = with_small();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter.txt"), "dear").unwrap();
    fs::write(folder.path().join("file"), "dear").unwrap();
    let newer = folder.path().join("newer");
    fs::create_dir(&newer).unwrap();
    fs::write(newer.join("format"), "tessera repository 9\n").unwrap();
    for repository in ["other", "file", "newer"] {
        for arguments in [
            &["split", "small.onnx"][..],
            &["share", "small.onnx"],
            &["repo", "list"],
            &["repo", "verify"],
            &["repo", "gc"],
            &["repo", "show", "small"],
            &["repo", "remove", "small"],
            &["run", "small", "--engine", "rten"],
        ] {
            let arguments = [arguments, &["--repo", repository]].concat();
            refuse(folder.path(), &arguments, &[repository]);
        }
    }
    for command in ["list", "verify", "gc"] {
        refuse(folder.path(), &["repo", command, "--repo", "none"], &["none"]);
    }
}

#[test]
fn a_name_that_is_no_file_name_is_refused_before_anything_is_made() {
    let folder = with_small();
    for name in ["../outside", "", ".hidden", "a/b", "a\nb"] {
        let arguments = ["split", "small.onnx", "--repo", "repository", "--name", name];
        refuse(folder.path(), &arguments, &["name"]);
    }
}

#[test]
fn two_models_of_one_name_are_not_shared() {
    let folder = with_small();
    let arguments = ["share", "x=small.onnx", "x=small.onnx", "--repo", "repository"];
    refuse(folder.path(), &arguments, &["\"x\"", "NAME=FILE"]);
    let arguments = ["share", "small.onnx", "small.onnx", "--shape", "y:x=1,2", "--dry-run"];
    refuse(folder.path(), &arguments, &["both be called"]);
    let arguments = ["share", "a=small.onnx", "b=small.onnx", "--shape", "c:x=1,2", "--dry-run"];
    refuse(folder.path(), &arguments, &["--shape c:x=…", "no model has such an input"]);
}

#[test]
fn a_damaged_weight_is_found_and_never_run() {
    let folder = tempdir().unwrap();
    save(&folder.path().join("dense.onnx"), &dense());
    succeed(folder.path(), &["split", "dense.onnx", "--repo", "repository"]);
    let weights = files(&folder.path().join("repository/weights"));
    assert_eq!(weights.len(), 1);
    let mut bytes = fs::read(&weights[0]).unwrap();
    bytes[100] ^= 1;
    // The file itself is read-only; whoever may write the folder may still replace it.
    fs::remove_file(&weights[0]).unwrap();
    fs::write(&weights[0], bytes).unwrap();
    let hash = weights[0].file_name().unwrap().to_str().unwrap();
    let run = ["run", "dense", "--repo", "repository", "--engine", "rten"];
    refuse(folder.path(), &run, &["weight", &hash[..12]]);

    let ran = tessera(folder.path(), &["repo", "verify", "--repo", "repository"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains(&hash[..12]), "{}", ran.err);

    succeed(folder.path(), &["split", "dense.onnx", "--repo", "repository"]);
    succeed(folder.path(), &["repo", "verify", "--repo", "repository"]);
    succeed(folder.path(), &run);
}

#[test]
fn a_library_that_the_user_names_and_is_none_is_refused() {
    let folder = with_small();
    let library = folder.path().join("libonnxruntime.so");
    fs::write(&library, "no library at all\n").unwrap();
    let with_library = |engine: &str| {
        let mut command = command(folder.path());
        command
            .args(["run", "small.onnx", "--json", "--engine", engine])
            .env("ORT_DYLIB_PATH", &library);
        command
    };
    for engine in ["onnxruntime", "auto"] {
        refuse_command(folder.path(), &mut with_library(engine), &["libonnxruntime.so"]);
    }
    let ran = finish(&mut with_library("rten"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_in_one_line() {
    let folder = tempdir().unwrap();
    for arguments in [
        &["inspect", "x.onnx", "--frobnicate"][..],
        &["frobnicate"],
        &["run", "x.onnx", "--engine", "steam"],
        &["split", "x.onnx", "--every", "--blocks", "2"],
    ] {
        let ran = tessera(folder.path(), arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.err.starts_with("tessera: "), "{}", ran.err);
    }
}
