//! How much memory there is for this server: the host's, or less where a container gets less.

use std::path::{Path, PathBuf};

use tessera_core::{Error, Result, bytes_of_line};
use tessera_node::StartForecast;

/// What is taken where the system does not say.
const UNKNOWN: u64 = 4 << 30;

/// Bytes of memory that this process and its children may use together.
pub(crate) fn host_memory_bytes() -> u64 {
    let installed = meminfo_bytes("MemTotal");
    let limits = own_groups().into_iter().filter_map(|group| group.limit_bytes());
    installed.into_iter().chain(limits).min().unwrap_or(UNKNOWN)
}

/// Bytes of memory that are free, or can be had by dropping what was read from files.
pub(crate) fn available_memory_bytes() -> u64 {
    let of_host = meminfo_bytes("MemAvailable");
    let of_groups = own_groups().into_iter().filter_map(|group| group.available_bytes());
    of_host.into_iter().chain(of_groups).min().unwrap_or(UNKNOWN)
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    bytes_of_line(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// A control group that may limit memory, and what its files are called.
struct MemoryGroup {
    folder: PathBuf,
    files: &'static GroupFiles,
}

/// How a version of control groups calls its files and fields.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Fields of memory that holds what is on a disk, the coldest first.
    cached: [&'static str; 2],
}

const FIRST_VERSION: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};
const SECOND_VERSION: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    cached: ["inactive_file ", "active_file "],
};

impl MemoryGroup {
    fn limit_bytes(&self) -> Option<u64> {
        self.read_text(self.files.limit)?.trim().parse().ok()
    }

    /// What is left of the limit. Of what was read from files, all that is cold can go, and half of
    /// what is not.
    fn available_bytes(&self) -> Option<u64> {
        let limit = self.limit_bytes()?;
        let usage: u64 = self.read_text(self.files.usage)?.trim().parse().ok()?;
        let statistics = self.read_text("memory.stat").unwrap_or_default();
        let field = |name: &str| -> u64 {
            let value = statistics.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let [cold, warm] = self.files.cached.map(field);
        let used = usage.saturating_sub(cold).saturating_sub(warm / 2);
        Some(limit.saturating_sub(used))
    }

    fn read_text(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }
}

fn own_groups() -> Vec<MemoryGroup> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    memory_groups(&groups, Path::new("/sys/fs/cgroup"))
}

/// The groups that limit a process: of both versions of control groups, the group itself, those
/// above it and, as a container sees it, the root.
fn memory_groups(groups: &str, root: &Path) -> Vec<MemoryGroup> {
    let first = |folder: PathBuf| MemoryGroup { folder, files: &FIRST_VERSION };
    let second = |folder: PathBuf| MemoryGroup { folder, files: &SECOND_VERSION };
    let mut found = vec![second(root.to_owned()), first(root.join("memory"))];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        let within = path.ancestors().filter(|part| !part.as_os_str().is_empty());
        if controllers.is_empty() {
            found.extend(within.map(|part| second(root.join(part))));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            found.extend(within.map(|part| first(root.join("memory").join(part))));
        }
    }
    found
}

/// Refuses to start what there is no memory for.
pub(crate) fn check_memory(forecast: &StartForecast) -> Result<()> {
    let needed = forecast.total_bytes();
    let available = if needed == 0 { 0 } else { available_memory_bytes() };
    if needed <= available {
        return Ok(());
    }
    Err(Error::full(format!(
        "the change takes about {forecast}; {} MB are available",
        available / 1_000_000
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_looked_for_in_every_group() {
        let groups = memory_groups("4:memory:/a/b\n1:cpu:/\n0::/c\n", Path::new("/g"));
        let files: Vec<String> = groups
            .iter()
            .map(|group| group.folder.join(group.files.limit).display().to_string())
            .collect();
        assert_eq!(
            files,
            [
                "/g/memory.max",
                "/g/memory/memory.limit_in_bytes",
                "/g/memory/a/b/memory.limit_in_bytes",
                "/g/memory/a/memory.limit_in_bytes",
                "/g/c/memory.max"
            ]
        );
        assert!(host_memory_bytes() > 64 << 20);
        assert!(available_memory_bytes() <= host_memory_bytes());
    }

    #[test]
    fn what_files_hold_in_memory_is_available() {
        for files in [&FIRST_VERSION, &SECOND_VERSION] {
            let folder = tempfile::tempdir().unwrap();
            let [cold, warm] = files.cached;
            let group = MemoryGroup { folder: folder.path().to_owned(), files };
            assert_eq!(group.available_bytes(), None);
            let write = |name: &str, text: String| {
                std::fs::write(folder.path().join(name), text).unwrap();
            };
            write(files.limit, "1000\n".to_owned());
            write(files.usage, "900\n".to_owned());
            write("memory.stat", format!("cache 7\n{cold}300\n{warm}200\n"));
            assert_eq!(group.available_bytes(), Some(500));
        }
    }
}
