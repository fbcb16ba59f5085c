//! What is no file where a model, or something beside it, should be: refused at once, never waited
//! for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use prost::Message;
use tempfile::tempdir;
use tessera_core::DType;
use tessera_graph::builder::{GraphBuilder, f32_tensor};
use tessera_graph::onnx::{StringStringEntryProto, tensor_proto};
use tessera_repository::ModelFile;

/// What reading a model says that can't be read; fails where it waits.
fn refusal(path: &Path) -> String {
    let (done, result) = mpsc::channel();
    let path = path.to_path_buf();
    thread::spawn(move || {
        let read = ModelFile::read_file(&path, &BTreeMap::new(), &[]);
        done.send(read.map(drop)).ok();
    });
    let read = result.recv_timeout(Duration::from_secs(20)).expect("it should not wait");
    read.expect_err("should be refused").to_string()
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A model whose weight is in the file "data" beside it.
fn write_model(path: &Path) {
    let mut builder = GraphBuilder::new("external");
    let x = builder.add_input("x", DType::F32, [4]);
    let mut weight = f32_tensor("w", &[4], &[]);
    weight.raw_data = None;
    weight.data_location = Some(tensor_proto::DataLocation::External as i32);
    let entry = ("location".to_owned(), "data".to_owned());
    weight.external_data =
        vec![StringStringEntryProto { key: Some(entry.0), value: Some(entry.1) }];
    let w = builder.add_initializer(weight);
    let sum = builder.add_node("Add", &[&x, &w], []);
    builder.add_output(&sum);
    fs::write(path, builder.build_model().encode_to_vec()).unwrap();
}

#[test]
fn a_model_that_is_no_file_is_refused_at_once() {
    let folder = tempdir().unwrap();
    let (pipe, socket) = (folder.path().join("pipe.onnx"), folder.path().join("socket.onnx"));
    make_pipe(&pipe);
    let _listener = UnixListener::bind(&socket).unwrap();
    let (link, device) = (folder.path().join("link.onnx"), folder.path().join("device.onnx"));
    symlink(&pipe, &link).unwrap();
    symlink("/dev/zero", &device).unwrap();
    for path in [&pipe, &socket, &link, &device, &folder.path().to_path_buf()] {
        assert!(refusal(path).ends_with(": not a file"), "{}", refusal(path));
    }
}

#[test]
fn external_data_that_is_no_file_is_refused_at_once() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    write_model(&model);
    make_pipe(&folder.path().join("data"));
    let message = refusal(&model);
    assert!(message.contains("tensor \"w\"") && message.contains("not a file"), "{message}");
    fs::remove_file(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data"), [0; 16]).unwrap();
    ModelFile::read_file(&model, &BTreeMap::new(), &[]).unwrap();
}

#[test]
fn a_manifest_that_is_no_file_is_refused_at_once() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    write_model(&model);
    fs::write(folder.path().join("data"), [0; 16]).unwrap();
    let manifest = folder.path().join("model.exits.json");
    make_pipe(&manifest);
    assert!(refusal(&model).contains("model.exits.json: not a file"), "{}", refusal(&model));
    fs::remove_file(&manifest).unwrap();
    symlink("/dev/zero", &manifest).unwrap();
    assert!(refusal(&model).contains("model.exits.json: not a file"), "{}", refusal(&model));
}
