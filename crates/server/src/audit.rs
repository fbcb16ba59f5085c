//! The audit trail: who changed what, and when.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tessera_core::{Error, Result, lock};

/// Name of the trail in the folder of a server's state.
const FILE_NAME: &str = "audit.jsonl";
/// From this size on the trail begins anew; the one before it is kept beside it.
const LARGEST_FILE: u64 = 16 << 20;

/// Writes down who changed what.
pub(crate) struct AuditTrail {
    path: PathBuf,
    file: Mutex<(File, u64)>,
}

/// A change that somebody asked for.
#[derive(Debug, Serialize)]
pub(crate) struct AuditEntry<'a> {
    /// Milliseconds since 1970.
    time_ms: u64,
    /// The holder of the token that came with it.
    who: Option<&'a str>,
    /// Where it came from.
    from: Option<SocketAddr>,
    /// What was asked for.
    method: &'a str,
    path: &'a str,
    /// How it was answered.
    status: u16,
}

impl<'a> AuditEntry<'a> {
    /// A change, asked for now.
    pub(crate) fn new(
        who: Option<&'a str>,
        from: Option<SocketAddr>,
        method: &'a str,
        path: &'a str,
        status: u16,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Self { time_ms, who, from, method, path, status }
    }
}

impl AuditTrail {
    /// Goes on with the trail in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let file = open_file(&path)?;
        Ok(Self { path, file: Mutex::new(file) })
    }

    /// Writes a change down. Where that fails it is logged, and the change stands.
    pub(crate) fn note_change(&self, entry: &AuditEntry<'_>) {
        tracing::info!(
            target: "audit",
            who = entry.who,
            from = entry.from.map(tracing::field::display),
            method = entry.method,
            path = entry.path,
            status = entry.status,
            "a change was asked for"
        );
        if let Err(error) = self.append_line(entry) {
            tracing::error!(%error, "the audit trail is not written");
        }
    }

    fn append_line(&self, entry: &AuditEntry<'_>) -> Result<()> {
        let fail = |error: &std::io::Error| Error::from_io(self.path.display().to_string(), error);
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        let mut file = lock(&self.file);
        if file.1 >= LARGEST_FILE {
            std::fs::rename(&self.path, self.path.with_extension("1.jsonl"))
                .map_err(|error| fail(&error))?;
            *file = open_file(&self.path)?;
        }
        file.0.write_all(&line).map_err(|error| fail(&error))?;
        file.1 += line.len() as u64;
        Ok(())
    }
}

fn open_file(path: &Path) -> Result<(File, u64)> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let opened = opened.and_then(|file| {
        let len = file.metadata()?.len();
        Ok((file, len))
    });
    opened.map_err(|error| Error::from_io(path.display().to_string(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_goes_on_where_it_was_and_begins_anew_when_it_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let note = |path: &str| {
            let trail = AuditTrail::open(folder.path()).unwrap();
            trail.note_change(&AuditEntry::new(Some("ops"), None, "PUT", path, 200));
            trail
        };
        note("/v1/tasks/a");
        let trail = note("/v1/tasks/b\n");
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(text.lines().count(), 2);
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&line["who"], &line["path"]), (&"ops".into(), &"/v1/tasks/b\n".into()));
        lock(&trail.file).1 = LARGEST_FILE;
        trail.note_change(&AuditEntry::new(None, None, "DELETE", "/v1/tasks/a", 401));
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(folder.path().join("audit.1.jsonl").exists());
    }
}
