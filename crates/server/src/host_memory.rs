//! How much memory there is for this server: the host's, or less where a container gets less.

use std::path::{Path, PathBuf};

/// What is taken where the system does not say.
const UNKNOWN: u64 = 4 << 30;

/// Bytes of memory that this process and its children may use together.
pub(crate) fn host_memory_bytes() -> u64 {
    let installed = std::fs::read_to_string("/proc/meminfo").ok();
    let installed = installed.as_deref().and_then(total_of_meminfo);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups, Path::new("/sys/fs/cgroup"));
    let limits =
        limits.iter().filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    installed.into_iter().chain(limits).min().unwrap_or(UNKNOWN)
}

fn total_of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The files that may say how much memory the groups of a process get: of both versions of control
/// groups, of the group itself and, as a container sees it, of the root.
fn limit_files(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = vec![root.join("memory.max"), root.join("memory/memory.limit_in_bytes")];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        // Each group is within those above it.
        let within = |base: PathBuf, file: &str| -> Vec<PathBuf> {
            let parts = Path::new(path).ancestors().filter(|part| !part.as_os_str().is_empty());
            parts.map(|part| base.join(part).join(file)).collect()
        };
        if controllers.is_empty() {
            files.extend(within(root.to_owned(), "memory.max"));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            files.extend(within(root.join("memory"), "memory.limit_in_bytes"));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_looked_for_in_every_group() {
        assert_eq!(
            total_of_meminfo("MemTotal:       24689764 kB\nMemFree: 1 kB"),
            Some(25_282_318_336)
        );
        let files = limit_files("4:memory:/a/b\n1:cpu:/\n0::/c\n", Path::new("/g"));
        let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
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
    }
}
