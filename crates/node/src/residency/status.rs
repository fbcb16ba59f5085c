//! What is known of where weights are.

use std::time::Duration;

use serde::Serialize;
use tessera_deploy::ResidencyChoice;

/// Where the weights of an instance are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightPlace {
    /// On disk alone.
    #[default]
    Disk,
    /// On disk; they wait for room in memory.
    Waiting,
    /// On their way to memory.
    Loading,
    /// In memory.
    Memory,
    /// In memory until the runs under way are over.
    Leaving,
}

impl WeightPlace {
    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Waiting => "waiting",
            Self::Loading => "loading",
            Self::Memory => "memory",
            Self::Leaving => "leaving",
        }
    }

    /// Whether they take memory, or will in a moment.
    pub(super) fn takes_memory(self) -> bool {
        matches!(self, Self::Loading | Self::Memory | Self::Leaving)
    }
}

/// Where the weights of an instance are, and how often they came and went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WeightStatus {
    /// The instance.
    pub instance: String,
    /// Where they are.
    pub place: WeightPlace,
    /// Where they are wanted to be.
    pub choice: ResidencyChoice,
    /// How large they are.
    pub bytes: u64,
    /// How often they were used.
    pub uses: u64,
    /// How often they were loaded.
    pub loads: u64,
    /// How often they had to leave.
    pub evictions: u64,
    /// Bytes that were loaded.
    pub loaded_bytes: u64,
    /// How long that took.
    pub load_time: Duration,
}

/// What the weights of all instances may take, and do take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightUse {
    /// Bytes that they may take.
    pub budget: u64,
    /// Bytes that they take.
    pub used: u64,
    /// Each instance's.
    pub instances: Vec<WeightStatus>,
}
