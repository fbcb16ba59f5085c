//! Content that a unit needs and this node lacks, fetched apart from the threads that serve
//! connections.

use std::sync::Arc;

use tessera_core::{Error, Result};
use tessera_deploy::Unit;

use super::content_supply::ContentSupply;

/// Fetches what a unit needs and the repository does not have.
pub(super) async fn fetch_unit(supply: &Arc<ContentSupply>, unit: &Unit) -> Result<()> {
    run_apart(supply, unit, ContentSupply::fetch_unit).await
}

/// Fetches the blocks of a unit without their weights.
pub(super) async fn fetch_blocks(supply: &Arc<ContentSupply>, unit: &Unit) -> Result<()> {
    run_apart(supply, unit, ContentSupply::fetch_blocks).await
}

async fn run_apart(
    supply: &Arc<ContentSupply>,
    unit: &Unit,
    fetch: fn(&ContentSupply, &Unit) -> Result<()>,
) -> Result<()> {
    let (supply, unit) = (Arc::clone(supply), unit.clone());
    let fetched = tokio::task::spawn_blocking(move || fetch(&supply, &unit)).await;
    fetched.map_err(|error| Error::lost(format!("fetching content: {error}")))?
}
