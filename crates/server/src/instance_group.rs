//! A control group for the processes of instances, with less memory than there is: where they want
//! more, the kernel ends one of them, and neither the server nor others of the host.
//!
//! It is made where this user may make one: as root, or where the system's service manager lets a
//! service have groups of its own. Elsewhere a process has the limits that it sets itself.

use std::fs;
use std::path::{Path, PathBuf};

/// What is left to the server and others: one part of so many of all memory.
const PARTS: u64 = 20;
/// How folders of groups begin; the process of their server follows.
const FOLDER_PREFIX: &str = "tessera-instances-";

/// A control group that is there until this is dropped.
#[derive(Debug)]
pub(crate) struct InstanceGroup {
    folder: PathBuf,
}

impl InstanceGroup {
    /// A group whose processes may have most of this memory together; none where it can't be made.
    pub(crate) fn create(memory_bytes: u64) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = memory_bytes - memory_bytes / PARTS;
        let made = create_below(&groups, Path::new("/sys/fs/cgroup"), limit);
        match &made {
            Some(group) => tracing::debug!(folder = %group.folder.display(), limit, "instances"),
            None => tracing::debug!("instances have no control group: it can't be made here"),
        }
        made
    }

    /// Where processes that join it write their number.
    pub(crate) fn processes_file(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for InstanceGroup {
    fn drop(&mut self) {
        // Where a process has not ended yet, the next server's start removes it.
        fs::remove_dir(&self.folder).ok();
    }
}

/// Makes a group beside or below those of a process, of whichever version can be had.
fn create_below(groups: &str, root: &Path, limit: u64) -> Option<InstanceGroup> {
    let lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?.trim_start_matches('/')))
    });
    for (controllers, path) in lines {
        let made = if controllers.is_empty() {
            create_second(root, path, limit)
        } else if controllers.split(',').any(|controller| controller == "memory") {
            create_first(&root.join("memory"), path, limit)
        } else {
            None
        };
        if made.is_some() {
            return made;
        }
    }
    None
}

/// Of the first version: below the group of this process, which a container sees as the root.
fn create_first(root: &Path, path: &str, limit: u64) -> Option<InstanceGroup> {
    let own = root.join(path);
    let parent = if own.is_dir() { own } else { root.to_owned() };
    create_folder(&parent, "memory.limit_in_bytes", limit)
}

/// Of the second version: beside the group of this process, as groups with processes have no
/// limited groups below them.
fn create_second(root: &Path, path: &str, limit: u64) -> Option<InstanceGroup> {
    let parent = root.join(path).parent()?.to_owned();
    if path.is_empty() || !parent.starts_with(root) {
        return None;
    }
    let given = parent.join("cgroup.subtree_control");
    let has_memory = || {
        let given = fs::read_to_string(&given).unwrap_or_default();
        given.split_whitespace().any(|controller| controller == "memory")
    };
    if !has_memory() {
        fs::write(&given, "+memory").ok()?;
    }
    create_folder(&parent, "memory.max", limit)
}

fn create_folder(parent: &Path, limit_file: &str, limit: u64) -> Option<InstanceGroup> {
    remove_abandoned(parent);
    let folder = parent.join(format!("{FOLDER_PREFIX}{}", std::process::id()));
    fs::create_dir(&folder).ok()?;
    let group = InstanceGroup { folder };
    // The system makes the file with the folder: where it is not there, it limits nothing.
    let file = group.folder.join(limit_file);
    (file.exists() && fs::write(file, limit.to_string()).is_ok()).then_some(group)
}

/// Removes groups of servers that are gone.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX));
        let is_gone = process.is_some_and(|process| !Path::new("/proc").join(process).exists());
        if is_gone {
            fs::remove_dir(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_group_can_be_made_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // Ordinary folders have no files of the system.
        fs::create_dir_all(root.join("memory/own")).unwrap();
        fs::create_dir_all(root.join("service/server")).unwrap();
        for groups in ["4:memory:/own\n", "0::/service/server\n", "0::/\n", "1:cpu:/\n", ""] {
            assert!(create_below(groups, root, 1000).is_none(), "{groups}");
        }
        assert_eq!(fs::read_dir(root.join("memory/own")).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_wants_more_than_the_group_has_is_ended() {
        let Some(group) = InstanceGroup::create(100 << 20) else {
            eprintln!("SKIPPED: no control group can be made here");
            return;
        };
        // It joins before it takes 300 MB.
        let script = format!(
            "echo $$ > {} && exec head -c 300m /dev/zero | tail",
            group.processes_file().display()
        );
        let ended = std::process::Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert!(ended.stdout.is_empty(), "it had all of the memory that it wanted");
        let folder = group.folder.clone();
        drop(group);
        assert!(!folder.exists());
    }
}
