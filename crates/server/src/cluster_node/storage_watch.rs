//! Looks at a node's storage, and has what nobody has needed for a while removed when it runs low.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_repository::EvictedContent;

use super::workload::NodeWorkload;

/// How often storage is looked at.
const STORAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Makes room whenever storage is low, for as long as there is a workload.
pub(super) fn keep_room(workload: &Arc<NodeWorkload>) {
    let weak = Arc::downgrade(workload);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(STORAGE_INTERVAL).await;
            let Some(workload) = weak.upgrade() else { return };
            let made = tokio::task::spawn_blocking(move || make_room(&workload)).await;
            let made = made.map_err(|error| Error::lost(error.to_string()));
            if let Err(error) = made.and_then(|made| made) {
                tracing::error!(%error, "no room is made in the repository");
            }
        }
    });
}

fn make_room(workload: &NodeWorkload) -> Result<()> {
    let keeper = &workload.content_keeper;
    let EvictedContent { blocks, bytes } =
        keeper.make_room(|| available_share(&workload.repository))?;
    if !blocks.is_empty() {
        let (count, megabytes) = (blocks.len(), bytes / 1_000_000);
        tracing::warn!(blocks = count, megabytes, "storage is low: unneeded blocks are removed");
    }
    // Somebody else may have removed some, too.
    if workload.candidates.retain_at_hand(|hash| keeper.has_block(hash)) {
        workload.report_due.notify_one();
    }
    Ok(())
}

/// How much of the storage of a folder is available; all of it where that can't be known.
fn available_share(folder: &Path) -> f64 {
    let found = rustix::fs::statvfs(folder);
    found.map_or(1.0, |found| found.f_bavail as f64 / found.f_blocks.max(1) as f64)
}
