//! The audit trail: who changed what, and when.
//!
//! Changes that somebody may ask for are in one file, what was refused to those who could be anybody
//! in another: there can be any number of the latter, and they would write the former over.

mod bounded_file;
mod change_summary;
mod noted_body;
mod refusal_limit;
mod shown_json;
mod wire_fields;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tessera_core::Result;

use bounded_file::BoundedFile;
pub(crate) use change_summary::{ChangeNames, describe_change};
pub(crate) use noted_body::{BodyNotes, NotedBody};
use refusal_limit::RefusalLimit;

/// Writes down who changed what.
pub(crate) struct AuditTrail {
    changes: BoundedFile,
    refusals: BoundedFile,
    limit: RefusalLimit,
}

/// Somebody who asked for a change.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AuditedClient {
    /// The holder of the token that came with it, or else the name of the certificate.
    pub(crate) who: Option<String>,
    /// Which of the two.
    pub(crate) by: Option<&'static str>,
    /// Where it came from.
    pub(crate) from: Option<SocketAddr>,
}

/// A change that somebody asked for.
#[derive(Debug, Serialize)]
pub(crate) struct AuditEntry {
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// Which server wrote this: several may use one repository.
    pub(crate) process: u32,
    #[serde(flatten)]
    pub(crate) client: AuditedClient,
    /// What was asked for.
    pub(crate) method: String,
    pub(crate) path: String,
    /// The tasks, models, units or nodes that it is about.
    #[serde(flatten)]
    pub(crate) change: ChangeNames,
    /// What came with it.
    pub(crate) body: Option<AuditedBody>,
    /// How it was answered; none where the client left before.
    pub(crate) status: Option<u16>,
    /// Refusals before this one that are not written down.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) missed: u64,
}

/// What came with a change, as far as it was read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditedBody {
    bytes: u64,
    /// The hash of these bytes, as they were sent.
    blake3: String,
    /// Whether that is all.
    whole: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl AuditEntry {
    /// A change, asked for now.
    pub(crate) fn new(client: AuditedClient, method: &str, path: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            process: std::process::id(),
            client,
            method: method.to_owned(),
            path: path.to_owned(),
            change: ChangeNames::default(),
            body: None,
            status: None,
            missed: 0,
        }
    }
}

impl AuditTrail {
    /// Goes on with the trail in a folder, which other servers may write, too.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            changes: BoundedFile::open(folder, "audit")?,
            refusals: BoundedFile::open(folder, "refused")?,
            limit: RefusalLimit::default(),
        })
    }

    /// Writes a change down. Where that fails it is logged, and the change stands.
    pub(crate) fn note_change(&self, entry: &AuditEntry) {
        let AuditedClient { who, from, .. } = &entry.client;
        tracing::info!(
            target: "audit",
            who = who.as_deref(),
            from = from.map(tracing::field::display),
            method = entry.method,
            path = entry.path,
            names = ?entry.change.names,
            status = entry.status,
            "a change was asked for"
        );
        append_entry(&self.changes, entry);
    }

    /// Writes down what was refused to somebody who could be anybody; so many a second at most.
    pub(crate) fn note_refusal(&self, mut entry: AuditEntry) {
        let Some(missed) = self.limit.take_place() else { return };
        entry.missed = missed;
        append_entry(&self.refusals, &entry);
    }

    /// The same where no time may be lost, on a thread that may wait for the disk.
    pub(crate) fn note_apart(self: &Arc<Self>, note: impl FnOnce(&Self) + Send + 'static) {
        let trail = Arc::clone(self);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || note(&trail))),
            Err(_) => note(&trail),
        }
    }
}

fn append_entry(file: &BoundedFile, entry: &AuditEntry) {
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    if let Err(error) = file.append(&line) {
        tracing::error!(%error, "the audit trail is not written");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn entry(who: &str, path: &str) -> AuditEntry {
        let client = AuditedClient { who: Some(who.to_owned()), ..AuditedClient::default() };
        AuditEntry::new(client, "PUT", path)
    }

    fn lines(folder: &Path, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_trail_goes_on_where_it_was_and_a_line_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["/v1/tasks/a", "/v1/tasks/b\n"] {
            AuditTrail::open(folder.path()).unwrap().note_change(&entry("ops", path));
        }
        let lines = lines(folder.path(), "audit.jsonl");
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[1]["who"], &lines[1]["path"]), (&"ops".into(), &"/v1/tasks/b\n".into()));
        assert_eq!(lines[1]["process"], std::process::id());
    }

    #[test]
    fn refusals_without_end_take_little_and_nothing_from_the_changes() {
        let folder = tempfile::tempdir().unwrap();
        let trail = AuditTrail::open(folder.path()).unwrap();
        trail.note_change(&entry("ops", "/v1/tasks/a"));
        for _ in 0..10_000 {
            trail.note_refusal(entry("", "/v1/system"));
        }
        assert_eq!(lines(folder.path(), "audit.jsonl").len(), 1);
        // It may have taken more than a second.
        let refused = lines(folder.path(), "refused.jsonl");
        assert!((10..=100).contains(&refused.len()), "{}", refused.len());
        std::thread::sleep(std::time::Duration::from_millis(1100));
        trail.note_refusal(entry("", "/v1/system"));
        let last = lines(folder.path(), "refused.jsonl").pop().unwrap();
        assert!(last["missed"].as_u64().unwrap() > 0, "{last}");
    }
}
