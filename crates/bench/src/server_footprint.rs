//! What a server and the processes of its units take: memory, descriptors, threads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tessera_core::{ProcessStat, Result};

use super::process_memory::ProcessMemory;

/// What a server and its child processes take together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ServerFootprint {
    /// Memory, with what several share counted once; files in each that has them mapped.
    pub(crate) memory_bytes: u64,
    /// What of it are pages of files, such as of the program and of libraries.
    pub(crate) file_bytes: u64,
    /// Open files and sockets.
    pub(crate) descriptors: usize,
    /// Threads.
    pub(crate) threads: usize,
    /// Processes, the server itself among them.
    pub(crate) processes: usize,
    /// How many descriptors there are of each kind, and threads of each name.
    #[serde(skip)]
    kinds: BTreeMap<String, usize>,
}

impl ServerFootprint {
    /// Measures the server with this process; an error where it has ended.
    pub(crate) fn measure(server: u32) -> Result<Self> {
        let mut footprint = Self::default();
        footprint.add_process(server, ProcessMemory::measure(server)?);
        for child in child_processes(server) {
            // One that has just ended takes nothing.
            footprint.add_process(child, ProcessMemory::measure(child).unwrap_or_default());
        }
        Ok(footprint)
    }

    fn add_process(&mut self, process: u32, memory: ProcessMemory) {
        self.memory_bytes += memory.own_bytes + memory.file_bytes;
        self.file_bytes += memory.file_bytes;
        for kind in descriptor_kinds(process) {
            self.descriptors += 1;
            *self.kinds.entry(kind).or_default() += 1;
        }
        for name in thread_names(process) {
            self.threads += 1;
            *self.kinds.entry(format!("thread {name}")).or_default() += 1;
        }
        self.processes += 1;
    }

    /// Of which kinds there are more or fewer descriptors and threads than before.
    pub(crate) fn differences(&self, before: &Self) -> String {
        let count = |of: &Self, kind: &String| of.kinds.get(kind).copied().unwrap_or_default();
        let all: std::collections::BTreeSet<_> =
            self.kinds.keys().chain(before.kinds.keys()).collect();
        let differing = all.into_iter().filter_map(|kind| {
            let (now, then) = (count(self, kind), count(before, kind));
            (now != then).then(|| format!("{kind} {then} → {now}"))
        });
        differing.collect::<Vec<_>>().join(", ")
    }

    /// Its memory over that of another.
    pub(crate) fn memory_ratio(&self, calm: &Self) -> f64 {
        self.memory_bytes as f64 / calm.memory_bytes.max(1) as f64
    }
}

/// What each descriptor of a process is: `socket`, `eventfd`, `memfd:…`, or the name of a file.
fn descriptor_kinds(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd"));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| describe_target(&entry.path())).collect()
}

fn describe_target(descriptor: &Path) -> String {
    // One that was closed meanwhile is of no kind.
    let target = std::fs::read_link(descriptor).unwrap_or_default();
    let target = target.to_string_lossy().into_owned();
    let target = target.strip_prefix("anon_inode:").unwrap_or(&target);
    let target = target.rsplit('/').next().unwrap_or_default();
    let target = target.strip_suffix(" (deleted)").unwrap_or(target);
    target.chars().filter(|letter| !matches!(letter, '0'..='9' | '[' | ']')).collect()
}

fn thread_names(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task"));
    let name = |folder: &Path| std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
    let names = entries.into_iter().flatten().flatten().map(|entry| name(&entry.path()));
    // Those of a kind differ by their numbers.
    names
        .map(|name| name.trim().trim_end_matches(|c: char| c.is_ascii_digit()).to_owned())
        .collect()
}

/// The processes that this one has started and that have not ended.
pub(crate) fn child_processes(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&process| is_child(process, parent)).collect()
}

/// Whether a process runs and has this parent.
fn is_child(process: u32, parent: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    let stat = ProcessStat::parse_line(&String::from_utf8_lossy(&stat));
    stat.is_some_and(|stat| !stat.has_ended() && stat.parent == parent)
}

/// Whether a process of this number is there.
pub(crate) fn is_process_there(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_until_it_has_ended() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(child_processes(own).contains(&child.id()));
        let footprint = ServerFootprint::measure(own).unwrap();
        assert!(footprint.processes >= 2 && footprint.threads >= 2, "{footprint:?}");
        assert!(footprint.memory_bytes > 0 && footprint.descriptors > 0, "{footprint:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!child_processes(own).contains(&child.id()));
        assert!(!is_process_there(child.id()));
    }
}
