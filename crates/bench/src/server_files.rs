//! Files and folders that a server and its units work with, and must not leave behind.

use std::path::{Path, PathBuf};

/// How folders are called in which a process works, before its number.
const WORKING_PREFIX: &str = "tessera-";

/// How far below a folder working folders are looked for.
const DEPTH: usize = 3;

/// Where shared memory has its files.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";

/// The working folders and unfinished files below these folders, sorted.
pub(crate) fn working_folders(places: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    places.iter().for_each(|place| collect_working(place, DEPTH, &mut found));
    found.sort();
    found
}

fn collect_working(place: &Path, depth: usize, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(WORKING_PREFIX) {
            found.push(path.display().to_string());
        } else if depth > 0 && path.is_dir() {
            collect_working(&path, depth - 1, found);
        }
    }
}

/// Files of shared memory whose names say that they are ours, sorted.
pub(crate) fn shared_memory_files() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(SHARED_MEMORY) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.path().display().to_string());
    let mut ours: Vec<String> = names.filter(|name| name.contains("tessera")).collect();
    ours.sort();
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_folders_are_found_wherever_they_are() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("cache/tessera-12-abc");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir(place.path().join("blocks")).unwrap();
        let found = working_folders(&[place.path().to_path_buf(), "no/such/folder".into()]);
        assert_eq!(found, [inside.display().to_string()]);
    }
}
