//! Units that could run at a node: how long each takes, as far as that was tried, and which have
//! their weights at hand.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use tessera_cluster::{CandidateUnit, UnitProfile};
use tessera_core::{ContentHash, lock};
use tessera_deploy::{Unit, UnitId};
use tokio::sync::Notify;

/// What could run at a node.
#[derive(Default)]
pub(super) struct Candidates {
    state: Mutex<CandidateState>,
    /// Notified when there may be something to be done.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct CandidateState {
    wanted: Vec<CandidateUnit>,
    times: BTreeMap<UnitId, Result<Duration, String>>,
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
pub(super) enum CandidateWork {
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
    pub(super) fn note_time(&self, unit: &Unit, time: Result<Duration, String>) {
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

    /// What is to be done next. Profiles come first: they decide where something runs.
    pub(super) fn next_work(&self) -> Option<CandidateWork> {
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
