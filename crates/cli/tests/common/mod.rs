//! What the tests of the binary have in common: running it, and files to run it on.

#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use bytes::Bytes;
use prost::Message;
use serde_json::Value;
use tessera_core::DType;
use tessera_graph::builder::GraphBuilder;
use tessera_graph::onnx::{ModelProto, StringStringEntryProto, TensorProto, tensor_proto};

/// What came of running the binary.
pub(crate) struct Ran {
    /// `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The binary, to be run in `folder`, with ONNX Runtime where this machine has it.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env_remove("TESSERA_REPO")
        .env_remove("RUST_BACKTRACE");
    if let Some(library) = tessera_engine::find_library() {
        command.env("ORT_DYLIB_PATH", library);
    }
    command
}

/// Runs the binary to its end.
pub(crate) fn tessera(folder: &Path, arguments: &[&str]) -> Ran {
    finish(command(folder).args(arguments))
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the binary, which must succeed; returns what it printed.
pub(crate) fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let ran = tessera(folder, arguments);
    let shown = arguments.join(" ");
    assert_eq!(ran.code, Some(0), "tessera {shown}: {}", ran.err);
    ran.out
}

/// Runs the binary with `--json`, which must succeed; returns what it printed.
pub(crate) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let mut with_json = arguments.to_vec();
    with_json.push("--json");
    let out = succeed(folder, &with_json);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Runs the binary, which must fail as it should: with exit code 1 and one line that has all
/// `words` in it, and without leaving anything behind in `folder`.
pub(crate) fn refuse(folder: &Path, arguments: &[&str], words: &[&str]) {
    refuse_command(folder, command(folder).args(arguments), words);
}

/// The same for a command that was put together by the caller.
pub(crate) fn refuse_command(folder: &Path, command: &mut Command, words: &[&str]) {
    let before = listing(folder);
    let shown = format!("{command:?}");
    let ran = finish(command);
    let error = &ran.err;
    assert_eq!(ran.code, Some(1), "{shown}: {error}");
    assert!(!error.contains("panicked"), "{shown}: {error}");
    assert_eq!(error.lines().count(), 1, "{shown}: {error}");
    assert!(error.starts_with("tessera: "), "{shown}: {error}");
    assert_eq!(ran.out, "", "{shown}");
    for word in words {
        assert!(error.contains(word), "{shown}: no {word} in: {error}");
    }
    assert_eq!(listing(folder), before, "{shown} left something behind");
}

/// Every file, folder and link below `folder`, with its length.
pub(crate) fn listing(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                found.insert(path.clone(), 0);
                waiting.push(path);
            } else {
                found.insert(path, metadata.len());
            }
        }
    }
    found
}

/// The plain files below `folder`, in order.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    listing(folder).into_keys().filter(|path| path.is_file()).collect()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A model of the zoo, made once per test binary: `NAME.onnx`, from these arguments of `zoo`.
pub(crate) fn zoo(name: &str, arguments: &[&str]) -> PathBuf {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    let path = folder.join(format!("{name}.onnx"));
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if made.insert(path.clone()) {
        fs::create_dir_all(&folder).unwrap();
        let mut all = vec!["zoo"];
        all.extend(arguments);
        all.extend(["--output", text(&path)]);
        succeed(&folder, &all);
    }
    path
}

/// ResNet-18, 47 MB.
pub(crate) fn resnet18() -> PathBuf {
    zoo("resnet18", &["resnet18"])
}

/// ResNet-18 with a side exit after its second stage.
pub(crate) fn resnet18_with_exit() -> PathBuf {
    zoo("resnet18-exit", &["resnet18", "--exits"])
}

/// MobileNetV2, 14 MB.
pub(crate) fn mobilenet() -> PathBuf {
    zoo("mobilenet-v2", &["mobilenet-v2"])
}

/// The detector, 12 MB, with two outputs.
pub(crate) fn detector() -> PathBuf {
    zoo("detector", &["detector"])
}

/// A MobileNetV2 that has its first five stages in common with the others.
pub(crate) fn sibling(seed: u32) -> PathBuf {
    let seed = seed.to_string();
    let arguments = ["mobilenet-v2", "--seed", &seed, "--share-with", "0", "--stages", "5"];
    zoo(&format!("sibling-{seed}"), &arguments)
}

/// Whether there is ONNX Runtime to test with; CI must have it.
pub(crate) fn has_onnxruntime() -> bool {
    if tessera_engine::find_library().is_some() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "CI must have ONNX Runtime, and no libonnxruntime was found"
    );
    eprintln!("SKIPPED: no libonnxruntime found");
    false
}

/// Writes a model to a file.
pub(crate) fn save(path: &Path, model: &ModelProto) {
    fs::write(path, model.encode_to_vec()).unwrap();
}

/// `y = relu(relu(x))` with `x` of f32[1,4]; the tensor between the two is `middle`.
pub(crate) fn small() -> ModelProto {
    let mut graph = GraphBuilder::new("small");
    let x = graph.add_input("x", DType::F32, [1, 4]);
    graph.add_node_into("first", "Relu", &[&x], &["middle"], []);
    graph.add_node_into("second", "Relu", &["middle"], &["y"], []);
    graph.add_output("y");
    graph.build_model()
}

/// `y = x · w`, with `w` large enough to be a weight of its own.
pub(crate) fn dense() -> ModelProto {
    let mut graph = GraphBuilder::new("dense");
    let x = graph.add_input("x", DType::F32, [1, 64]);
    let weights = (0..64 * 64).map(|index| (index % 13) as f32 / 13.0);
    let w = graph.add_weight("w", &[64, 64], weights.collect());
    graph.add_node_into("product", "MatMul", &[&x, &w], &["y"], []);
    graph.add_output("y");
    graph.build_model()
}

/// `y = x + w` where `w`, of f32[1,4], is in the file at `location`.
pub(crate) fn with_external_weight(location: &str) -> ModelProto {
    let mut graph = GraphBuilder::new("external");
    let x = graph.add_input("x", DType::F32, [1, 4]);
    let w = graph.add_initializer(TensorProto {
        name: Some("w".to_owned()),
        dims: vec![1, 4],
        data_type: Some(DType::F32.to_onnx()),
        external_data: vec![StringStringEntryProto {
            key: Some("location".to_owned()),
            value: Some(location.to_owned()),
        }],
        data_location: Some(tensor_proto::DataLocation::External as i32),
        ..TensorProto::default()
    });
    graph.add_node_into("sum", "Add", &[&x, &w], &["y"], []);
    graph.add_output("y");
    graph.build_model()
}

/// `y = x + w` where `w`, of f32[1,4], has this many bytes.
pub(crate) fn with_weight_of(bytes: usize) -> ModelProto {
    let mut graph = GraphBuilder::new("weight");
    let x = graph.add_input("x", DType::F32, [1, 4]);
    let data = Bytes::from(vec![0u8; bytes]);
    let w = graph.add_raw_weight("w", DType::F32.to_onnx(), &[1, 4], data);
    graph.add_node_into("sum", "Add", &[&x, &w], &["y"], []);
    graph.add_output("y");
    graph.build_model()
}

/// A `.npy` file as NumPy writes it: `description` such as `<f4`, `shape` such as `(1, 4)`.
pub(crate) fn npy(description: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header =
        format!("{{'descr': '{description}', 'fortran_order': False, 'shape': {shape}, }}");
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header = format!("{header:<width$}\n", width = length - 1);
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    file.extend(header.into_bytes());
    file.extend_from_slice(data);
    file
}

/// The bytes of f32 elements.
pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The length of an array in JSON.
pub(crate) fn length(array: &Value) -> usize {
    array.as_array().unwrap().len()
}

/// Sends SIGINT to a process that we started.
pub(crate) fn interrupt(child: &std::process::Child) {
    let order = format!("kill -INT {}", child.id());
    let status = Command::new("sh").args(["-c", &order]).status().unwrap();
    assert!(status.success(), "{order}");
}

/// Writes an image of one colour.
pub(crate) fn save_png(path: &Path, width: u32, height: u32, colour: [u8; 3]) {
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels = colour.repeat((width * height) as usize);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
}
