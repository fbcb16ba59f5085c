//! Requests in one batch: whether a task wants that, and whether tensors have a dimension for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{Dim, TensorType};

/// Requests that are at the same unit go into one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batching {
    /// Most rows of a batch.
    pub max_rows: usize,
    /// How long a request waits for others, as far as its deadline allows.
    pub max_wait: Duration,
}

/// Whether requests are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchingChoice {
    /// Where calibration shows that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always.
    On(Batching),
}

/// The open first dimension that all of these have in common.
pub(crate) fn batch_symbol<'a>(types: impl Iterator<Item = &'a TensorType>) -> Option<&'a str> {
    let mut symbol = None;
    for known in types {
        match known.dims.as_ref()?.first()? {
            Dim::Symbol(name) if symbol.is_none_or(|seen| seen == name) => {
                symbol = Some(name.as_str());
            }
            _ => return None,
        }
    }
    symbol
}
