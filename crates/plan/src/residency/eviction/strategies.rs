//! The policies of eviction. To add one: a variant with its two lines here, and its rank in
//! [`choose_victims`](EvictionPolicy::choose_victims).
//!
//! A policy is no planner: it decides while requests come, from what is on the GPU at that moment,
//! and there is no plan before or after it.

use serde::Serialize;
use tessera_core::Result;

use crate::{Strategy, StrategyRegistry};

/// How an instance is chosen that has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionPolicy {
    /// The one that was used least recently.
    LeastRecentlyUsed,
    /// The one whose reloads will cost the least per byte, going by the requests so far.
    ReloadCost,
    /// The same by the time to the next request for each, which only a simulation knows: a
    /// reference, no bound. Mostly better, but not where an instance that is dear and rare should
    /// stay for good.
    Offline,
}

impl EvictionPolicy {
    const ALL: [Self; 3] = [Self::LeastRecentlyUsed, Self::ReloadCost, Self::Offline];

    /// All policies.
    pub fn all() -> [Self; 3] {
        Self::ALL
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Result<Self> {
        eviction_policies().find_strategy(name)
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
    pub fn one_line_summary(self) -> &'static str {
        match self {
            Self::LeastRecentlyUsed => "evict what was used least recently",
            Self::ReloadCost => "evict what costs the least to reload, by its rate and per byte",
            Self::Offline => {
                "reload-cost that knows when the next request for each comes; a reference, no bound"
            }
        }
    }
}

impl Strategy for EvictionPolicy {
    fn name(&self) -> &str {
        (*self).name()
    }

    fn one_line_summary(&self) -> &str {
        (*self).one_line_summary()
    }
}

/// All policies.
pub fn eviction_policies() -> StrategyRegistry<EvictionPolicy> {
    StrategyRegistry::new("policy", &EvictionPolicy::ALL)
}
