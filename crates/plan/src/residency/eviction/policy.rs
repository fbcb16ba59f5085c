//! The policies, and what they decide by.

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::residency::problem::exceeds;

/// How an instance is chosen that has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The one that was used least recently.
    LeastRecentlyUsed,
    /// The one whose reloads will cost the least per byte, going by the requests so far.
    ReloadCost,
    /// The same by the time to the next request for each, which only a replay knows: a reference, no bound.
    /// Mostly better, but not where an instance that is dear and rare should stay for good.
    Offline,
}

/// An instance that is on the GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// Bytes that it takes.
    pub bytes: f64,
    /// Time that the next request loses when it has to be loaded again.
    pub reload_ms: f64,
    /// How often it is asked for; any unit, as long as it is the same for all.
    pub rate: f64,
    /// When it was used last.
    pub last_used_ms: f64,
    /// Whether it has to stay: it is in use, or somebody said so.
    pub pinned: bool,
}

impl Resident {
    /// What is lost per unit of time without it.
    fn loss(&self) -> f64 {
        self.rate * self.reload_ms
    }
}

impl Policy {
    /// All policies.
    pub fn all() -> [Self; 3] {
        [Self::LeastRecentlyUsed, Self::ReloadCost, Self::Offline]
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Result<Self> {
        Self::all().into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::all().iter().map(|policy| policy.name()).collect();
            Error::usage(format!("policy \"{name}\": expected one of {}", known.join(", ")))
        })
    }

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeastRecentlyUsed => "least-recently-used",
            Self::ReloadCost => "reload-cost",
            Self::Offline => "offline",
        }
    }

    /// What it does, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::LeastRecentlyUsed => "evict what was used least recently",
            Self::ReloadCost => "evict what costs the least to reload, by its rate and per byte",
            Self::Offline => {
                "reload-cost that knows when the next request for each comes; a reference, no bound"
            }
        }
    }

    /// Which to evict so that `needed_bytes` become free, in the order in which to do so; none where that
    /// can't be done because too many are pinned.
    pub fn evict(self, resident: &[Resident], needed_bytes: f64) -> Option<Vec<usize>> {
        let mut order: Vec<usize> =
            (0..resident.len()).filter(|&one| !resident[one].pinned).collect();
        let free = order.iter().map(|&one| resident[one].bytes).sum();
        if exceeds(needed_bytes, free) {
            return None;
        }
        let rank = |one: usize| match self {
            Self::LeastRecentlyUsed => resident[one].last_used_ms,
            Self::ReloadCost | Self::Offline => resident[one].loss() / resident[one].bytes.max(1.0),
        };
        // Alike ones go by age.
        order.sort_by(|&one, &other| {
            let by_age = resident[one].last_used_ms.total_cmp(&resident[other].last_used_ms);
            rank(one).total_cmp(&rank(other)).then(by_age)
        });
        let mut freed = 0.0;
        order.retain(|&one| {
            let is_needed = exceeds(needed_bytes, freed);
            if is_needed {
                freed += resident[one].bytes;
            }
            is_needed
        });
        if self != Self::LeastRecentlyUsed {
            spare(resident, needed_bytes, freed, &mut order);
        }
        Some(order)
    }
}

/// Keeps what need not go: of those chosen, the ones that the others make room enough without; or all, where
/// one other instance makes enough room and costs less.
fn spare(resident: &[Resident], needed_bytes: f64, mut freed: f64, chosen: &mut Vec<usize>) {
    for position in (0..chosen.len()).rev() {
        let bytes = resident[chosen[position]].bytes;
        if !exceeds(needed_bytes, freed - bytes) {
            freed -= bytes;
            chosen.remove(position);
        }
    }
    let loss: f64 = chosen.iter().map(|&one| resident[one].loss()).sum();
    let suits = |&one: &usize| {
        let it = &resident[one];
        !it.pinned && !exceeds(needed_bytes, it.bytes) && it.loss() < loss
    };
    let single = (0..resident.len()).filter(suits);
    if let Some(one) =
        single.min_by(|&one, &other| resident[one].loss().total_cmp(&resident[other].loss()))
    {
        *chosen = vec![one];
    }
}
