//! Content that a unit needs and this node lacks, fetched.

use std::collections::BTreeSet;

use tessera_cluster::ControllerConnection;
use tessera_core::{ContentHash, Error, Result};
use tessera_deploy::Unit;
use tessera_repository::{ContentKind, ContentName, Repository};

use super::workload::NodeWorkload;

/// Fetches what a unit needs and the repository does not have.
pub(super) async fn fetch_unit(
    workload: &NodeWorkload,
    unit: &Unit,
    connection: Option<&ControllerConnection>,
) -> Result<()> {
    fetch_blocks(workload, unit, connection).await?;
    let repository = Repository::open(&workload.repository)?;
    for hash in distinct_blocks(unit) {
        for weight in repository.missing_weights(hash)? {
            fetch_missing(workload, &repository, weight, connection).await?;
        }
    }
    Ok(())
}

/// Fetches the blocks of a unit without their weights.
pub(super) async fn fetch_blocks(
    workload: &NodeWorkload,
    unit: &Unit,
    connection: Option<&ControllerConnection>,
) -> Result<()> {
    let repository = Repository::open(&workload.repository)?;
    for hash in distinct_blocks(unit) {
        let block = ContentName { kind: ContentKind::Block, hash };
        fetch_missing(workload, &repository, block, connection).await?;
    }
    Ok(())
}

/// Fetches some content unless it is there. Several may want the same: one at a time fetches, and
/// the next finds it.
async fn fetch_missing(
    workload: &NodeWorkload,
    repository: &Repository,
    name: ContentName,
    connection: Option<&ControllerConnection>,
) -> Result<()> {
    let _fetching = workload.fetching.lock().await;
    if repository.has_content(name) {
        return Ok(());
    }
    fetch_content(repository, name, connection).await
}

fn distinct_blocks(unit: &Unit) -> BTreeSet<ContentHash> {
    unit.block_hashes().collect()
}

/// Fetches some content, from where an earlier try stopped.
async fn fetch_content(
    repository: &Repository,
    name: ContentName,
    connection: Option<&ControllerConnection>,
) -> Result<()> {
    let (kind, hash) = (name.kind.display_name(), name.hash);
    let what = || format!("{kind} {}", hash.short_hex());
    let connection = connection.ok_or_else(|| {
        Error::lost(format!("{}: no controller is there to fetch it from", what()))
    })?;
    let mut import = repository.begin_import(name)?;
    let begun = import.len();
    let mut chunks = connection.fetch_content(kind, &hash.to_string(), begun).await?;
    let mut total = None;
    loop {
        let chunk = chunks.message().await;
        let chunk =
            chunk.map_err(|status| Error::lost(format!("{}: {}", what(), status.message())))?;
        let Some(chunk) = chunk else { break };
        total = Some(chunk.total);
        let bytes = chunk.bytes;
        // The disk is not waited for on a thread that serves connections.
        import = run_blocking(move || import.append(&bytes).map(|()| import)).await?;
    }
    if total.is_some_and(|total| import.len() < total) {
        return Err(Error::lost(format!("{}: it was cut off", what())));
    }
    let root = repository.root().to_path_buf();
    run_blocking(move || import.finish(&Repository::open(&root)?)).await?;
    tracing::debug!(kind, hash = %hash.short_hex(), from = begun, "fetched");
    Ok(())
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::lost(format!("writing content: {error}")))?
}
