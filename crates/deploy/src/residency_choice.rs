//! Where a task wants the weights of its units to be.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_core::Error;

/// Where the weights of a unit are to be while nobody uses them. Of several wishes for one unit the
/// greatest holds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ResidencyChoice {
    /// On disk: they leave memory soon after they were used, and are the first to leave.
    OnDemand,
    /// In the host's memory, also while they are used: a GPU reads them there, over the bus.
    Direct,
    /// In memory for as long as there is room.
    #[default]
    Auto,
    /// In memory, whatever others need.
    Pinned,
}

impl ResidencyChoice {
    const ALL: [Self; 4] = [Self::OnDemand, Self::Direct, Self::Auto, Self::Pinned];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Direct => "direct",
            Self::Auto => "auto",
            Self::Pinned => "pinned",
        }
    }
}

impl fmt::Display for ResidencyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ResidencyChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|choice| choice.name() == text);
        known.ok_or_else(|| {
            Error::usage(format!(
                "residency \"{text}\", expected auto, pinned, on-demand or direct"
            ))
        })
    }
}
