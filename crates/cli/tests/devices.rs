//! Devices: what there is is listed, and what is missing is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{has_onnxruntime, json, refuse, save, small, succeed};
use tempfile::tempdir;

/// Whether there is a GPU here: then its absence can't be tested, and is said to be skipped.
fn has_gpu() -> bool {
    let there = tessera_cuda::is_cuda_available();
    if there {
        eprintln!("SKIPPED: there is a GPU");
    }
    there
}

#[test]
fn the_cpu_is_listed_with_its_cores() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["devices"]);
    assert!(report["cpu"]["cores"].as_u64().unwrap() >= 1, "{report}");
    assert!(report["cpu"]["memory_bytes"].as_u64().unwrap() > 1_000_000_000, "{report}");
    let gpus = report["gpus"].as_array().unwrap();
    assert_eq!(gpus.is_empty(), !tessera_cuda::is_cuda_available(), "{report}");
    assert!(succeed(folder.path(), &["devices"]).contains("cpu"));
}

#[test]
fn a_gpu_that_is_not_there_is_refused_with_what_is_missing() {
    if has_gpu() || !has_onnxruntime() {
        return;
    }
    let folder = tempdir().unwrap();
    save(&folder.path().join("small.onnx"), &small());
    let missing = ["cuda:0", "NVIDIA driver"];
    for arguments in [
        &["verify", "small.onnx", "--device", "cuda:0"][..],
        &["run", "small.onnx", "--device", "cuda:0"],
        &["bench", "chain", "--model", "small.onnx", "--device", "cuda:0"],
    ] {
        refuse(folder.path(), arguments, &missing);
    }
}

#[test]
fn what_is_no_device_or_no_search_is_refused() {
    let folder = tempdir().unwrap();
    save(&folder.path().join("small.onnx"), &small());
    refuse(folder.path(), &["verify", "small.onnx", "--device", "gpu"], &["gpu", "cuda:N"]);
    let wrong = ["verify", "small.onnx", "--convolution-search", "all"];
    refuse(folder.path(), &wrong, &["all", "heuristic"]);
    let elsewhere = ["verify", "small.onnx", "--engine", "rten", "--device", "cuda:0"];
    refuse(folder.path(), &elsewhere, &["cuda:0"]);
}
