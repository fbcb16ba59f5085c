//! The benchmarks of the transport: what they report, what they refuse, and that none of their
//! processes outlives them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use common::{command, finish, interrupt, json, length, listing, refuse, succeed, text};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

const TRANSPORTS: &[&str] = if cfg!(feature = "zeromq") {
    &["thread", "shm", "tcp", "zmq-ipc", "zmq-tcp"]
} else {
    &["thread", "shm", "tcp"]
};

/// `bench kill` counts the sockets of the whole machine, so it must be the only benchmark.
static BENCHMARKS: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    BENCHMARKS.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn among_others() -> RwLockReadGuard<'static, ()> {
    BENCHMARKS.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The processes that have `folder` as their temporary folder. A benchmark's processes have it from
/// the benchmark, so this finds them when they were started a moment ago and when it is gone.
fn processes(folder: &Path) -> Vec<u32> {
    let setting = format!("TMPDIR={}", text(folder));
    let entries = fs::read_dir("/proc").unwrap();
    let has_setting = |id: &u32| {
        // One that has ended has none, even if nobody has asked how it ended.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == setting.as_bytes())
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(has_setting).collect()
}

/// Waits until `reached`; tells whether it was in time.
fn within(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !reached() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// A benchmark that runs, with a temporary folder and a process group of its own.
struct Running {
    child: Child,
    folder: TempDir,
}

impl Running {
    /// Starts it, and waits until it is at work with this many other processes.
    fn start(arguments: &[&str], others: usize) -> Self {
        let folder = tempdir().unwrap();
        fs::create_dir(folder.path().join("temporary")).unwrap();
        let child = command(folder.path())
            .args(arguments)
            .env("TMPDIR", folder.path().join("temporary"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut running = Self { child, folder };
        let are_there = within(Duration::from_secs(30), || {
            let ended = running.child.try_wait().unwrap();
            assert!(ended.is_none(), "{arguments:?} ended by itself: {}", running.said());
            running.others().len() >= others
        });
        assert!(are_there, "{arguments:?} does not start {others} others");
        // Nothing tells from outside that tensors are under way; that takes a fraction of this.
        std::thread::sleep(Duration::from_millis(300));
        running
    }

    fn temporary(&self) -> PathBuf {
        self.folder.path().join("temporary")
    }

    /// The processes that it started, and that are there still.
    fn others(&self) -> Vec<u32> {
        let mut ids = processes(&self.temporary());
        ids.retain(|id| *id != self.child.id());
        ids
    }

    /// What it and its processes have written to stderr; to be asked when they are gone.
    fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    /// Waits for the end of it and of all that it started; returns how it ended and what it said.
    fn end(mut self) -> (ExitStatus, String) {
        let limit = Duration::from_secs(5);
        let mut status = None;
        let ended = within(limit, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "it does not end");
        let gone = within(limit, || self.others().is_empty());
        assert!(gone, "it leaves processes behind: {:?}", self.others());
        let said = self.said();
        assert!(!said.contains("panicked"), "{said}");
        let left = listing(&self.temporary());
        assert!(left.is_empty(), "{left:?}");
        (status.unwrap(), said)
    }

    /// The same for one that was interrupted.
    fn end_interrupted(self) {
        let (status, said) = self.end();
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(said.contains("tessera: interrupted\n"), "{said}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed leaves no process behind; one that passed has waited for it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts benchmarks that go on for long.
const LONG: [fn() -> Running; 6] = [
    || long_relay("shm"),
    || long_relay("tcp"),
    || long_hop("shm"),
    || long_hop("tcp"),
    || long_kill("shm"),
    || long_kill("tcp"),
];

fn long_relay(transport: &str) -> Running {
    let arguments = ["bench", "relay", "--processes", "2", "--seconds", "60"];
    Running::start(&[&arguments[..], &["--transport", transport]].concat(), 2)
}

fn long_hop(transport: &str) -> Running {
    let arguments = ["bench", "hop", "--count", "10000000"];
    Running::start(&[&arguments[..], &["--transport", transport]].concat(), 1)
}

fn long_kill(transport: &str) -> Running {
    let arguments = ["bench", "kill", "--count", "100000"];
    Running::start(&[&arguments[..], &["--transport", transport]].concat(), 2)
}

#[test]
fn a_hop_over_every_transport_is_measured_as_often_as_asked_for() {
    let _others = among_others();
    let folder = tempdir().unwrap();
    for &transport in TRANSPORTS {
        let arguments =
            ["bench", "hop", "--transport", transport, "--bytes", "4096", "--count", "50"];
        let report = json(folder.path(), &arguments);
        assert_eq!(report["transport"], transport);
        assert_eq!(report["bytes"], 4096, "{report}");
        assert_eq!(report["count"], 50, "{report}");
        let median = report["median_us"].as_f64().unwrap();
        assert!(median > 0.0, "{report}");
        assert!(report["p99_us"].as_f64().unwrap() >= median, "{report}");

        let shown = succeed(folder.path(), &arguments);
        let rows: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 2, "{shown}");
        assert!(rows[0].starts_with(&["transport", "bytes", "count", "median"]), "{shown}");
        assert!(rows[1].starts_with(&[transport, "4096", "50"]), "{shown}");
    }
    assert!(listing(folder.path()).is_empty());
}

#[test]
fn a_relay_hands_over_without_a_copy_and_does_not_grow() {
    let _others = among_others();
    let folder = tempdir().unwrap();
    for transport in ["shm", "tcp"] {
        // Memory is compared with that after the first second, so one second would show nothing.
        let report = json(
            folder.path(),
            &[
                "bench",
                "relay",
                "--transport",
                transport,
                "--processes",
                "2",
                "--seconds",
                "2",
                "--bytes",
                "100000",
            ],
        );
        assert_eq!(report["transport"], transport);
        assert_eq!(report["processes"], 2, "{report}");
        let hops = report["hops"].as_u64().unwrap();
        assert!(hops > 0, "{report}");
        // To either process and back.
        assert_eq!(hops, report["rounds"].as_u64().unwrap() * 3, "{report}");
        assert_eq!(report["copied_bytes"], 0, "{report}");
        assert!(report["memory_growth_bytes"].as_i64().unwrap() < 50_000_000, "{report}");
    }
    assert!(listing(folder.path()).is_empty());
}

/// Kills processes, and checks that the others learnt it and nothing is left.
fn kill(transport: &str, count: u64, seed: &str) {
    let _alone = alone();
    let folder = tempdir().unwrap();
    let ran = finish(
        command(folder.path())
            .args(["bench", "kill", "--transport", transport, "--count", &count.to_string()])
            .args(["--seed", seed, "--json"])
            .env("TMPDIR", folder.path()),
    );
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["transport"], transport);
    assert!(report["kills"].as_u64().unwrap() >= count, "{report}");
    assert!(report["learnt"].as_u64().unwrap() > 0, "{report}");
    for field in ["late", "hung", "buffers_missing"] {
        assert_eq!(report[field], 0, "{report}");
    }
    assert_eq!(length(&report["left_over"]), 0, "{report}");
    let left = processes(folder.path());
    assert!(left.is_empty(), "{left:?}");
    assert!(listing(folder.path()).is_empty());
}

// With the default seed and so few kills, hardly anybody is left to learn of one.

#[test]
fn kills_over_shared_memory_leave_nothing_behind() {
    kill("shm", 12, "3");
}

#[test]
fn kills_over_tcp_leave_nothing_behind() {
    // A seed where they have met before the first is killed: connecting to one that is gone takes
    // 90 ms to fail, and those who learn it after 100 ms are late.
    kill("tcp", 6, "2017");
}

#[test]
fn a_transport_that_does_not_exist_is_refused_with_those_that_do() {
    let folder = tempdir().unwrap();
    let words = [&["\"pigeon\""][..], TRANSPORTS].concat();
    for benchmark in ["hop", "relay", "kill"] {
        refuse(folder.path(), &["bench", benchmark, "--transport", "pigeon"], &words);
    }
}

#[test]
fn a_benchmark_of_nothing_is_refused() {
    let folder = tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 6] = [
        (&["hop", "--count", "0"], &["bench hop", "count", "at least 1"]),
        (&["hop", "--bytes", "4"], &["bench hop", "8 bytes"]),
        (&["relay", "--processes", "0"], &["bench relay", "process"]),
        (&["relay", "--window", "0"], &["bench relay", "one tensor"]),
        // Threads are in one process, and a relay is between processes.
        (&["relay", "--transport", "thread"], &["bench relay", "process"]),
        (&["peer", "nonsense"], &["nonsense"]),
    ];
    for (arguments, words) in cases {
        refuse(folder.path(), &[&["bench"], arguments].concat(), words);
    }
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_no_process_behind() {
    let _others = among_others();
    for start in LONG {
        let running = start();
        interrupt(&running.child);
        running.end_interrupted();
    }
}

#[test]
fn ctrl_c_in_a_terminal_leaves_no_process_of_a_benchmark_behind() {
    let _others = among_others();
    for start in LONG {
        let running = start();
        // A terminal tells the whole group.
        let order = format!("kill -s INT -- -{}", running.child.id());
        let status = Command::new("sh").args(["-c", &order]).status().unwrap();
        assert!(status.success(), "{order}");
        // 130, or 1 where the others were quicker and it found them gone.
        let (status, said) = running.end();
        assert!(!status.success(), "{said}");
    }
}

#[test]
fn a_benchmark_that_is_killed_leaves_no_process_behind() {
    let _others = among_others();
    for start in LONG {
        let mut running = start();
        running.child.kill().unwrap();
        let (status, said) = running.end();
        assert_eq!(status.signal(), Some(9), "{said}");
    }
}

#[test]
fn the_program_for_python_that_hops_are_compared_with_is_valid() {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/src/transport/pickled_zmq.py");
    let check = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match Command::new("python3").args(["-c", check, program]).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("SKIPPED: no python3 found"),
        Err(error) => panic!("python3: {error}"),
    }
}
