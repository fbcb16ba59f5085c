//! How weights come to a GPU.

use std::fmt;
use std::str::FromStr;

use tessera_core::{Error, Result};

/// How weights come to a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightLoading {
    /// Once: they stay.
    #[default]
    Once,
    /// Whenever they are needed, before the run that needs them. The host's memory keeps what they
    /// come from.
    LoadThenRun,
    /// The same in parts, while the run that needs them is under way.
    Pipeline,
    /// The same; tables of which runs look few rows up stay in the host's memory, where they are
    /// read over the bus.
    DirectHostAccess,
}

impl FromStr for WeightLoading {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "once" => Ok(Self::Once),
            "load-then-run" => Ok(Self::LoadThenRun),
            "pipeline" => Ok(Self::Pipeline),
            "direct-host-access" => Ok(Self::DirectHostAccess),
            other => Err(Error::usage(format!(
                "no way to load weights is called {other:?}; expected load-then-run, pipeline or \
                 direct-host-access"
            ))),
        }
    }
}

impl fmt::Display for WeightLoading {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Once => "once",
            Self::LoadThenRun => "load-then-run",
            Self::Pipeline => "pipeline",
            Self::DirectHostAccess => "direct-host-access",
        })
    }
}
