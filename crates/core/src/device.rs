//! Devices: what a unit runs on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A CPU or one GPU of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU, by its number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| ()),
            _ => Err(()),
        }
        .map_err(|()| Error::usage(format!("unknown device \"{text}\", expected cpu or cuda:N")))
    }
}
