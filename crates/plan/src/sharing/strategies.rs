//! The kinds of deployment. To add one: a variant with its description here; and where it groups
//! blocks in a new way, a rule of [`GroupingRule`] with the file that does so.
//!
//! A strategy is a value, not an object: plans, problems and reports name it in their files. So it
//! is known here by name alone; `planner.rs` makes a [`Planner`](crate::Planner) of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::{Strategy, StrategyRegistry};

/// A kind of deployment: which neighbouring blocks are one unit, and which units are one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingStrategy {
    /// A process per task, with the whole model.
    Traditional,
    /// A process per block; shared blocks are there once.
    PerBlock,
    /// A process per unit: shared neighbours that no task tells apart are fused.
    FusedShared,
    /// As fused-shared, and a task's own neighbours are fused too.
    Fused,
    /// The units of fused, in one process for all.
    OneProcess,
    /// A process per unit, and the units that cost least, even where that holds a block twice.
    Cheapest,
    /// One process for all, and the units that cost least in it.
    CheapestOneProcess,
}

impl SharingStrategy {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Traditional,
        Self::PerBlock,
        Self::FusedShared,
        Self::Fused,
        Self::OneProcess,
        Self::Cheapest,
        Self::CheapestOneProcess,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// What it does, in a line.
    pub fn one_line_summary(self) -> &'static str {
        self.description().summary
    }

    /// Whether all units are in one process.
    pub(super) fn is_one_process(self) -> bool {
        self.description().processes == ProcessRule::OneForAll
    }

    /// How it groups blocks.
    pub(super) fn grouping_rule(self) -> GroupingRule {
        self.description().grouping
    }

    fn description(self) -> SharingDescription {
        use GroupingRule::{Cheapest, Fused, FusedShared, SingleBlocks, WholeModels};
        use ProcessRule::{OneForAll, PerUnit};
        let (name, grouping, processes, summary) = match self {
            Self::Traditional => (
                "traditional",
                WholeModels,
                PerUnit,
                "a process per task, each with its whole model",
            ),
            Self::PerBlock => (
                "per-block",
                SingleBlocks,
                PerUnit,
                "a process per block; shared blocks are there once",
            ),
            Self::FusedShared => (
                "fused-shared",
                FusedShared,
                PerUnit,
                "a process per unit; shared neighbours that no task tells apart are one",
            ),
            Self::Fused => (
                "fused",
                Fused,
                PerUnit,
                "as fused-shared, and a task's own neighbours are one too",
            ),
            Self::OneProcess => {
                ("one-process", Fused, OneForAll, "the units of fused, all in one process")
            }
            Self::Cheapest => (
                "cheapest",
                Cheapest,
                PerUnit,
                "a process per unit; of all groupings the one that costs least",
            ),
            Self::CheapestOneProcess => (
                "cheapest-one-process",
                Cheapest,
                OneForAll,
                "all in one process; of all groupings the one that costs least",
            ),
        };
        SharingDescription { name, summary, grouping, processes }
    }
}

/// What makes a strategy.
struct SharingDescription {
    name: &'static str,
    summary: &'static str,
    grouping: GroupingRule,
    processes: ProcessRule,
}

/// Which neighbouring blocks are one unit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupingRule {
    /// All of a task, which nobody shares.
    WholeModels,
    /// None.
    SingleBlocks,
    /// Shared ones that no task tells apart.
    FusedShared,
    /// These, and a task's own.
    Fused,
    /// Those that cost least.
    Cheapest,
}

/// Which units are one process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessRule {
    PerUnit,
    OneForAll,
}

impl Strategy for SharingStrategy {
    fn name(&self) -> &str {
        (*self).name()
    }

    fn one_line_summary(&self) -> &str {
        (*self).one_line_summary()
    }
}

/// All strategies.
pub fn sharing_strategies() -> StrategyRegistry<SharingStrategy> {
    StrategyRegistry::new("strategy", &SharingStrategy::ALL)
}

impl fmt::Display for SharingStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((*self).name())
    }
}

impl FromStr for SharingStrategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        sharing_strategies().find_strategy(text)
    }
}
