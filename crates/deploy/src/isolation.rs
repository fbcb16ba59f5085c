//! What keeps units apart: a task asks for it, and each of its units has it.

use std::fmt;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

/// What keeps a unit apart from others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing: it runs on threads of the server.
    #[default]
    Thread,
    /// It has a process of its own.
    Process,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Process => "process",
        })
    }
}

impl std::str::FromStr for Isolation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "thread" => Ok(Self::Thread),
            "process" => Ok(Self::Process),
            _ => Err(Error::usage(format!("isolation \"{text}\", expected thread or process"))),
        }
    }
}
