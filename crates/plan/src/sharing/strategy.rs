//! The kinds of deployment.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

/// A kind of deployment: which neighbouring blocks are one unit, and which units are one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
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

impl Strategy {
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
        match self {
            Self::Traditional => "traditional",
            Self::PerBlock => "per-block",
            Self::FusedShared => "fused-shared",
            Self::Fused => "fused",
            Self::OneProcess => "one-process",
            Self::Cheapest => "cheapest",
            Self::CheapestOneProcess => "cheapest-one-process",
        }
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Traditional => "a process per task, each with its whole model",
            Self::PerBlock => "a process per block; shared blocks are there once",
            Self::FusedShared => {
                "a process per unit; shared neighbours that no task tells apart are one"
            }
            Self::Fused => "as fused-shared, and a task's own neighbours are one too",
            Self::OneProcess => "the units of fused, all in one process",
            Self::Cheapest => "a process per unit; of all groupings the one that costs least",
            Self::CheapestOneProcess => {
                "all in one process; of all groupings the one that costs least"
            }
        }
    }

    pub(super) fn is_one_process(self) -> bool {
        matches!(self, Self::OneProcess | Self::CheapestOneProcess)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == text).ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            Error::usage(format!("there is no strategy \"{text}\", expected {}", all.join(", ")))
        })
    }
}
