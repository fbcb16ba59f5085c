//! Folders that a process works in for a moment, and what is left of them where it was killed.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tessera_core::{Error, Result};

/// How the folders are called, before the process that they are of.
const PREFIX: &str = "tessera-";

/// What the names of this process' unfinished files and folders begin with.
pub fn unfinished_prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// Folders that changed since are left alone: in another container the same number may be that of
/// a process which runs.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// A folder of this process in `place`, which is gone when this is dropped.
pub(crate) fn working_folder_in(place: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(&unfinished_prefix()).tempdir_in(place);
    made.map_err(|error| Error::from_io(place.display(), &error))
}

/// Removes the working folders of a process that is gone, in the temporary directory and in
/// `cache`: one that is killed has no chance to.
pub fn remove_folders_of(process: u32, cache: Option<&Path>) {
    remove_folders(cache, |owner, _| owner == process);
}

/// The same for all processes that have been gone for a while.
pub fn remove_abandoned_folders(cache: Option<&Path>) {
    let now = SystemTime::now();
    remove_folders(cache, |owner, changed| {
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        !is_alive(owner) && age.is_some_and(|age| age >= ABANDONED_AFTER)
    });
}

fn remove_folders(cache: Option<&Path>, is_left: impl Fn(u32, Option<SystemTime>) -> bool) {
    let temporary = std::env::temp_dir();
    for place in [Some(temporary.as_path()), cache].into_iter().flatten() {
        // What can't be read or removed stays; it is tried again.
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        for entry in entries.flatten() {
            let changed = || entry.metadata().and_then(|found| found.modified()).ok();
            let owner = entry.file_name().to_str().and_then(process_of);
            if owner.is_some_and(|owner| is_left(owner, changed())) {
                std::fs::remove_dir_all(entry.path()).ok();
            }
        }
    }
}

/// The process that a folder of this name is of.
fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn is_alive(process: u32) -> bool {
    // Where there is no such folder at all, every process may be there.
    !Path::new("/proc/self").exists() || Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_are_gone_are_removed_and_no_others() {
        let place = tempfile::tempdir().unwrap();
        let own = working_folder_in(place.path()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = place.path().join(format!("{PREFIX}{}-abc", child.id()));
        let other = place.path().join("tessera-of-somebody-else");
        std::fs::create_dir_all(gone.join("inside")).unwrap();
        std::fs::create_dir(&other).unwrap();
        remove_abandoned_folders(Some(place.path()));
        assert!(gone.exists(), "it may be of another container");
        remove_folders_of(child.id(), Some(place.path()));
        assert!(own.path().exists() && other.exists());
        assert!(!gone.exists());
        std::fs::create_dir(&gone).unwrap();
        let long_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        std::fs::File::open(&gone).unwrap().set_modified(long_ago).unwrap();
        remove_abandoned_folders(Some(place.path()));
        assert!(own.path().exists() && other.exists() && !gone.exists());
    }
}
