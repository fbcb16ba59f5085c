//! Units that could run at a node: it finds out how long each takes, and has their weights at hand
//! where it is to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tessera_cluster::{CandidateUnit, UnitProfile};
use tessera_core::{ContentHash, Error, Result, lock};
use tessera_deploy::{Unit, UnitId};
use tessera_repository::Repository;
use tokio::sync::Notify;

use super::agent::available_storage;
use super::content_fetch::{fetch_blocks, fetch_unit};
use super::workload::NodeWorkload;
use crate::host_memory::available_memory_bytes;

/// How long to wait before content is asked for again that could not be fetched.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// What could run at a node.
#[derive(Default)]
pub(super) struct Candidates {
    state: Mutex<CandidateState>,
    changed: Notify,
}

#[derive(Default)]
struct CandidateState {
    wanted: Vec<CandidateUnit>,
    times: BTreeMap<UnitId, std::result::Result<Duration, String>>,
    /// Units that were tried once more when there was nothing else to do: what is fetched when a
    /// node is new takes some of the time of those that are tried meanwhile.
    tried_again: HashSet<UnitId>,
    /// Blocks whose weights are there.
    at_hand: HashSet<ContentHash>,
}

impl CandidateState {
    fn has_at_hand(&self, unit: &Unit) -> bool {
        unit.block_hashes().all(|hash| self.at_hand.contains(&hash))
    }
}

/// What is to be done next.
enum CandidateWork {
    Profile(Unit),
    Prefetch(Unit),
}

impl Candidates {
    /// What could run from now on, and nothing else.
    pub(super) fn set_wanted(&self, wanted: Vec<CandidateUnit>) {
        lock(&self.state).wanted = wanted;
        self.changed.notify_one();
    }

    /// These blocks are there with their weights.
    pub(super) fn note_blocks(&self, blocks: Vec<ContentHash>) {
        lock(&self.state).at_hand.extend(blocks);
    }

    /// The blocks that are there with their weights.
    pub(super) fn held_blocks(&self) -> BTreeSet<ContentHash> {
        lock(&self.state).at_hand.iter().copied().collect()
    }

    /// The weights of a unit are there.
    pub(super) fn note_at_hand(&self, unit: &Unit) {
        lock(&self.state).at_hand.extend(unit.block_hashes());
    }

    /// Forgets the blocks that are not there any more; whether there were any.
    pub(super) fn retain_at_hand(&self, is_there: impl Fn(ContentHash) -> bool) -> bool {
        let known: Vec<ContentHash> = lock(&self.state).at_hand.iter().copied().collect();
        let gone: Vec<ContentHash> = known.into_iter().filter(|hash| !is_there(*hash)).collect();
        let mut state = lock(&self.state);
        state.at_hand.retain(|hash| !gone.contains(hash));
        if !gone.is_empty() {
            self.changed.notify_one();
        }
        !gone.is_empty()
    }

    /// How long those take that were tried. What was found once is remembered.
    pub(super) fn profiles(&self) -> Vec<UnitProfile> {
        let state = lock(&self.state);
        let profile = |CandidateUnit { unit, .. }: &CandidateUnit| {
            Some(UnitProfile {
                unit: unit.id.clone(),
                time: state.times.get(&unit.id)?.clone(),
                at_hand: state.has_at_hand(unit),
            })
        };
        state.wanted.iter().filter_map(profile).collect()
    }

    /// How long a unit takes, or why it can't run: the shorter of two counts.
    fn note_time(&self, unit: &Unit, time: std::result::Result<Duration, String>) {
        let mut state = lock(&self.state);
        match (state.times.get(&unit.id).cloned(), time) {
            (None, time) => drop(state.times.insert(unit.id.clone(), time)),
            (Some(before), again) => {
                if let (Ok(before), Ok(again)) = (before, again) {
                    state.times.insert(unit.id.clone(), Ok(before.min(again)));
                }
                state.tried_again.insert(unit.id.clone());
            }
        }
    }

    /// Profiles come first: they decide where something runs.
    fn next_work(&self) -> Option<CandidateWork> {
        let state = lock(&self.state);
        let is_new = |candidate: &&CandidateUnit| !state.times.contains_key(&candidate.unit.id);
        if let Some(found) = state.wanted.iter().find(is_new) {
            return Some(CandidateWork::Profile(found.unit.clone()));
        }
        let is_missing =
            |candidate: &&CandidateUnit| candidate.prefetch && !state.has_at_hand(&candidate.unit);
        if let Some(found) = state.wanted.iter().find(is_missing) {
            return Some(CandidateWork::Prefetch(found.unit.clone()));
        }
        let is_due = |candidate: &&CandidateUnit| {
            let id = &candidate.unit.id;
            state.times.get(id).is_some_and(Result::is_ok) && !state.tried_again.contains(id)
        };
        let found = state.wanted.iter().find(is_due)?;
        Some(CandidateWork::Profile(found.unit.clone()))
    }
}

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
    if weight_bytes(workload, unit)?.saturating_mul(2) > available_storage(workload) {
        return Err(Error::full("weights are not fetched ahead: there is too little storage"));
    }
    Ok(())
}

/// Does it; an error where it is worth trying again.
async fn do_work(workload: &Arc<NodeWorkload>, work: &CandidateWork) -> Result<()> {
    match work {
        CandidateWork::Prefetch(unit) => {
            check_storage(workload, unit)?;
            fetch_unit(workload, unit).await?;
            workload.candidates.note_at_hand(unit);
            workload.report_due.notify_one();
        }
        CandidateWork::Profile(unit) => {
            fetch_blocks(workload, unit).await?;
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
