//! Ctrl-C: the usual exit code, and nothing half-written left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{command, has_onnxruntime, interrupt, mobilenet, text};
use tempfile::{TempDir, tempdir};

/// A process with a working folder and a temporary folder of its own.
struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempdir().unwrap();
        let (work, temporary) = (folder.path().join("work"), folder.path().join("temporary"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&temporary).unwrap();
        let child = command(&work)
            .args(arguments)
            .env("TMPDIR", &temporary)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn temporary(&self) -> PathBuf {
        self.folder.path().join("temporary")
    }

    /// Waits until `reached`, which must be before the process ends.
    fn wait_until(&mut self, reached: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !reached(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it was interrupted");
            assert!(start.elapsed() < Duration::from_secs(60), "it takes too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Interrupts it, and checks how it goes and what it leaves.
    fn interrupt(mut self) {
        interrupt(&self.child);
        let mark = format!("tessera-{}-", self.child.id());
        let mut stderr = self.child.stderr.take().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{said}");
        for folder in [self.work(), self.temporary()] {
            let left = names(&folder);
            let unfinished = left.iter().any(|name| name.starts_with(&mark));
            assert!(!unfinished, "{}: {left:?}: {said}", folder.display());
        }
        assert_eq!(said, "tessera: interrupted\n");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed leaves no process behind; one that passed has waited for it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The names in a folder; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn has_unfinished(folder: &Path) -> bool {
    names(folder).iter().any(|name| name.starts_with("tessera-"))
}

#[test]
fn a_file_that_is_being_written_is_removed() {
    let mut process = Process::start(&["zoo", "vgg13", "--output", "vgg13.onnx"]);
    process.wait_until(|process| has_unfinished(&process.work()));
    process.interrupt();
}

const SIBLINGS: [&str; 8] =
    ["bench", "siblings", "--model", "mobilenet-v2", "--count", "12", "--stages", "5"];

#[test]
fn a_benchmark_removes_its_folder_before_it_has_written_to_it() {
    let mut process = Process::start(&SIBLINGS);
    process.wait_until(|process| has_unfinished(&process.temporary()));
    process.interrupt();
}

#[test]
fn a_benchmark_removes_its_folder_while_it_writes_to_it() {
    let mut process = Process::start(&SIBLINGS);
    process.wait_until(|process| {
        let temporary = process.temporary();
        names(&temporary)
            .iter()
            .any(|folder| !names(&temporary.join(folder).join("repository/names")).is_empty())
    });
    process.interrupt();
}

#[test]
fn a_model_that_runs_is_stopped_without_a_word_of_the_engine() {
    if !has_onnxruntime() {
        return;
    }
    let model = mobilenet();
    let arguments =
        ["bench", "chain", "--model", text(&model), "--engine", "onnxruntime", "--runs", "1000000"];
    let process = Process::start(&arguments);
    // Nothing tells from outside that it measures; loading takes a fraction of this.
    std::thread::sleep(Duration::from_millis(1500));
    process.interrupt();
}

#[test]
fn a_process_that_nobody_reads_any_more_ends_all_the_same() {
    let arguments = ["plan", "overflow", "--random", "20000", "--blocks", "2000"];
    let folder = tempdir().unwrap();
    let mut child = command(folder.path())
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
    interrupt(&child);
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > Duration::from_secs(20) => {
                child.kill().unwrap();
                panic!("it hangs");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.code(), Some(130));
}
