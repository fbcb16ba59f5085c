//! Finds out how long the units take that could run at a node, and has their weights at hand where
//! it is to.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_deploy::Unit;
use tessera_repository::Repository;

use super::candidates::CandidateWork;
use super::content_fetch::{fetch_blocks, fetch_unit};
use super::workload::NodeWorkload;
use crate::host_memory::available_memory_bytes;

/// How long to wait before content is asked for again that could not be fetched.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Tries and fetches candidates whenever there are new ones, for as long as there is a workload.
pub(super) fn keep_candidates(workload: &Arc<NodeWorkload>) {
    let weak = Arc::downgrade(workload);
    tokio::spawn(async move {
        while let Some(workload) = weak.upgrade() {
            match workload.candidates.next_work() {
                Some(work) => {
                    if let Err(error) = do_work(&workload, &work).await {
                        tracing::debug!(%error, "a candidate is not at hand yet");
                        drop(workload);
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
                None => {
                    drop(workload);
                    wait_for_change(&weak).await;
                }
            }
        }
    });
}

async fn wait_for_change(weak: &Weak<NodeWorkload>) {
    if let Some(workload) = weak.upgrade() {
        workload.candidates.changed.notified().await;
    }
}

/// Weights that are made up, what the engine makes of them, and some room for others.
const MEMORY_FACTOR: u64 = 3;

fn weight_bytes(workload: &NodeWorkload, unit: &Unit) -> Result<u64> {
    let repository = Repository::open(&workload.repository)?;
    let weights = unit.block_hashes().map(|hash| Ok(repository.read_block(hash)?.weight_bytes()));
    Ok(weights.sum::<Result<usize>>()? as u64)
}

/// Refuses what would not fit beside what runs here.
fn check_memory(workload: &NodeWorkload, unit: &Unit) -> Result<()> {
    let weights = weight_bytes(workload, unit)?;
    let available = available_memory_bytes();
    if weights.saturating_mul(MEMORY_FACTOR) > available {
        return Err(Error::full(format!(
            "its weights are {} MB, and {} MB of memory are there",
            weights / 1_000_000,
            available / 1_000_000
        )));
    }
    Ok(())
}

/// Leaves half of the storage that is there to others.
fn check_storage(workload: &NodeWorkload, unit: &Unit) -> Result<()> {
    if weight_bytes(workload, unit)?.saturating_mul(2) > workload.available_storage() {
        return Err(Error::full("weights are not fetched ahead: there is too little storage"));
    }
    Ok(())
}

/// Does it; an error where it is worth trying again.
async fn do_work(workload: &Arc<NodeWorkload>, work: &CandidateWork) -> Result<()> {
    match work {
        CandidateWork::Prefetch(unit) => {
            check_storage(workload, unit)?;
            fetch_unit(&workload.content, unit).await?;
            workload.candidates.note_at_hand(unit);
            workload.report_due.notify_one();
        }
        CandidateWork::Profile(unit) => {
            fetch_blocks(&workload.content, unit).await?;
            let (profiling, tried) = (Arc::clone(workload), unit.clone());
            let tried = move || {
                check_memory(&profiling, &tried)?;
                profiling.node.supervisor.profile_unit(&tried)
            };
            let found = tokio::task::spawn_blocking(tried).await;
            let found = found.map_err(|error| Error::lost(format!("a profile: {error}")))?;
            let time = found.map(|calibration| calibration.time);
            if let Err(error) = &time {
                tracing::warn!(unit = %unit.id, %error, "a unit can't run here");
            }
            let time = time.map_err(|error| error.to_string());
            let repository = Repository::open(&workload.repository)?;
            let mut blocks = unit.block_hashes();
            if blocks.all(|hash| repository.missing_weights(hash).is_ok_and(|lack| lack.is_empty()))
            {
                workload.candidates.note_at_hand(unit);
            }
            workload.candidates.note_time(unit, time);
            workload.report_due.notify_one();
        }
    }
    Ok(())
}
