//! Several processes write to one repository, and some of them die.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{command, json, length, sibling, succeed, text};
use tempfile::tempdir;

fn start_split(folder: &Path, model: &Path) -> Child {
    command(folder)
        .args(["split", text(model), "--every", "--repo", "repository"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn siblings() -> Vec<PathBuf> {
    (1..=4).map(sibling).collect()
}

#[test]
fn four_processes_fill_one_repository_that_none_of_them_found() {
    let models = siblings();
    for _ in 0..3 {
        let folder = tempdir().unwrap();
        let writers: Vec<Child> =
            models.iter().map(|model| start_split(folder.path(), model)).collect();
        for writer in writers {
            let output = writer.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
        let repository = ["--repo", "repository"];
        let verify = [&["repo", "verify"][..], &repository].concat();
        assert_eq!(length(&json(folder.path(), &verify)["problems"]), 0);
        let list = [&["repo", "list"][..], &repository].concat();
        let listed = json(folder.path(), &list);
        assert_eq!(length(&listed["models"]), 4);
        // What they have in common is there once: all four again add nothing.
        for model in &models {
            let again = ["split", text(model), "--every", "--repo", "repository"];
            succeed(folder.path(), &again);
        }
        assert_eq!(json(folder.path(), &list), listed);
        let gc = [&["repo", "gc"][..], &repository].concat();
        assert_eq!(json(folder.path(), &gc)["bytes"], 0);
    }
}

#[test]
fn a_writer_that_is_killed_harms_no_model_and_gc_removes_what_it_left() {
    let models = siblings();
    let folder = tempdir().unwrap();
    let repository = ["--repo", "repository"];
    succeed(folder.path(), &[&["split", text(&models[0])][..], &repository].concat());
    let verify = [&["repo", "verify"][..], &repository].concat();
    for (round, delay) in [0, 2, 4, 8, 12, 16, 24, 32, 48, 64].into_iter().enumerate() {
        let model = &models[1 + round % 3];
        let mut killed = start_split(folder.path(), model);
        let mut other = start_split(folder.path(), &models[0]);
        std::thread::sleep(Duration::from_millis(delay));
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(other.wait().unwrap().success());
        assert_eq!(length(&json(folder.path(), &verify)["problems"]), 0);
    }
    // And one that left a file for certain.
    let left = folder.path().join("repository/tmp/tessera-1-left");
    fs::write(&left, "half").unwrap();
    let gc = [&["repo", "gc"][..], &repository].concat();
    let report = json(folder.path(), &gc);
    assert!(report["unfinished"].as_u64().unwrap() >= 1);
    let temporary = fs::read_dir(folder.path().join("repository/tmp")).unwrap();
    assert_eq!(temporary.count(), 0);
    assert_eq!(length(&json(folder.path(), &verify)["problems"]), 0);
    // Whoever was killed may try again.
    for model in &models {
        let again = [&["split", text(model), "--every"][..], &repository].concat();
        succeed(folder.path(), &again);
    }
    assert_eq!(length(&json(folder.path(), &verify)["problems"]), 0);
    let run = ["run", "sibling-4", "--repo", "repository", "--engine", "rten"];
    succeed(folder.path(), &run);
}

#[test]
fn a_repository_whose_maker_was_killed_can_still_be_made() {
    let folder = tempdir().unwrap();
    let model = sibling(1);
    // As it looks after the folders were made and before the format was written.
    for name in ["blocks", "weights", "tmp"] {
        fs::create_dir_all(folder.path().join("repository").join(name)).unwrap();
    }
    succeed(folder.path(), &["split", text(&model), "--repo", "repository"]);
    succeed(folder.path(), &["repo", "verify", "--repo", "repository"]);
}
