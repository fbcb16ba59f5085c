//! A copy of the intent beside its store, as the document that can be put again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::lock;

use super::intent_store::{IntentChange, StoredIntent};

/// Changes that come within this time are copied together.
const COPY_INTERVAL: Duration = Duration::from_secs(1);

/// A copy of the intent beside its store.
pub(crate) struct IntentCopy {
    path: PathBuf,
    shared: Arc<Mutex<CopiedIntent>>,
}

#[derive(Default)]
struct CopiedIntent {
    stored: StoredIntent,
    /// Whether somebody is about to write it.
    is_due: bool,
}

impl IntentCopy {
    /// The copy of the store at `path`: the same name with `.json`.
    pub(crate) fn beside(path: &Path) -> Self {
        Self { path: path.with_extension("json"), shared: Arc::default() }
    }

    /// What is kept, when it was read.
    pub(crate) fn set_intent(&self, stored: StoredIntent) {
        lock(&self.shared).stored = stored;
        self.write_soon();
    }

    /// What is kept has changed.
    pub(crate) fn apply_change(&self, change: &IntentChange) {
        lock(&self.shared).stored.apply_change(change.clone());
        self.write_soon();
    }

    /// What to do where the store is damaged.
    pub(crate) fn advice(&self) -> String {
        if self.path.exists() {
            let path = self.path.display();
            format!("move it away, start again and put {path}, its last copy, to /v1/system")
        } else {
            "move it away, and put what is to be served again".to_owned()
        }
    }

    fn write_soon(&self) {
        if std::mem::replace(&mut lock(&self.shared).is_due, true) {
            return;
        }
        let (shared, path) = (Arc::clone(&self.shared), self.path.clone());
        let writing = std::thread::Builder::new().name("intent-copy".to_owned()).spawn(move || {
            std::thread::sleep(COPY_INTERVAL);
            write_copy(&shared, &path);
        });
        if let Err(error) = writing {
            tracing::warn!(%error, "no copy of what is served is written");
        }
    }
}

impl Drop for IntentCopy {
    fn drop(&mut self) {
        if lock(&self.shared).is_due {
            write_copy(&self.shared, &self.path);
        }
    }
}

/// Writes it as a whole, or not at all.
fn write_copy(shared: &Mutex<CopiedIntent>, path: &Path) {
    let written = {
        let mut copied = lock(shared);
        if !std::mem::take(&mut copied.is_due) {
            return;
        }
        serde_json::to_vec_pretty(&copied.stored.system)
    };
    let unfinished = path.with_extension("json.new");
    let written = written.map_err(std::io::Error::other).and_then(|bytes| {
        std::fs::write(&unfinished, bytes)?;
        std::fs::rename(&unfinished, path)
    });
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "a copy of what is served can't be written");
    }
}
