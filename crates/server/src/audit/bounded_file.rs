//! A file of lines that several processes append to, and that never grows beyond a bound.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};

/// From this size on the file begins anew; the one before it is kept beside it.
const LARGEST_FILE: u64 = 16 << 20;

/// How long another process may hold the file: it writes a line.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// A file of lines, `NAME.jsonl`, with the one before it, `NAME.1.jsonl`.
///
/// Whoever writes holds the lock of a third file meanwhile, and opens the file by its name: another
/// process may have begun it anew.
pub(super) struct BoundedFile {
    path: PathBuf,
    previous: PathBuf,
    largest: u64,
    lock: Mutex<File>,
}

impl BoundedFile {
    /// Goes on with a file of a folder.
    pub(super) fn open(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!("{name}.jsonl"));
        let lock_path = folder.join("audit.lock");
        let lock = OpenOptions::new().create(true).append(true).open(&lock_path);
        let lock = lock.map_err(|error| Error::from_io(lock_path.display(), &error))?;
        // What can't be written is told at the start.
        open_file(&path)?;
        let previous = folder.join(format!("{name}.1.jsonl"));
        Ok(Self { path, previous, largest: LARGEST_FILE, lock: Mutex::new(lock) })
    }

    /// Appends a line.
    pub(super) fn append(&self, line: &[u8]) -> Result<()> {
        let held = lock(&self.lock);
        lock_file(&held).map_err(|error| self.fail(&error))?;
        let appended = self.append_locked(line).map_err(|error| self.fail(&error));
        held.unlock().map_err(|error| self.fail(&error))?;
        appended
    }

    fn append_locked(&self, line: &[u8]) -> std::io::Result<()> {
        let mut file = open_plainly(&self.path)?;
        if file.metadata()?.len() >= self.largest {
            std::fs::rename(&self.path, &self.previous)?;
            file = open_plainly(&self.path)?;
        }
        file.write_all(line)
    }

    fn fail(&self, error: &std::io::Error) -> Error {
        Error::from_io(self.path.display(), error)
    }
}

/// Waits for the lock, but not for a process that was stopped amid a line.
fn lock_file(file: &File) -> std::io::Result<()> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if start.elapsed() > LOCK_PATIENCE => {
                let message = "another server holds the lock of the audit trail (audit.lock)";
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn open_file(path: &Path) -> Result<File> {
    open_plainly(path).map_err(|error| Error::from_io(path.display(), &error))
}

fn open_plainly(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_that_share_a_file_lose_no_line_and_hold_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let (writers, lines) = (4, 200);
        std::thread::scope(|scope| {
            for writer in 0..writers {
                let folder = folder.path();
                scope.spawn(move || {
                    let mut file = BoundedFile::open(folder, "audit").unwrap();
                    file.largest = 40_000;
                    for line in 0..lines {
                        let line = format!("{writer} {line} {}\n", "x".repeat(80));
                        file.append(line.as_bytes()).unwrap();
                    }
                });
            }
        });
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let (now, before) = (read("audit.jsonl"), read("audit.1.jsonl"));
        // It was begun anew once, by one of them.
        let all: Vec<&str> = before.lines().chain(now.lines()).collect();
        assert_eq!(all.len(), writers * lines);
        assert!(all.iter().all(|line| line.ends_with("xx")), "a line is torn");
        assert!(before.len() < 40_200 && !now.is_empty());
    }
}
