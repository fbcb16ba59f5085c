//! Whether plans agree with what somebody published about them.

use serde::{Deserialize, Serialize};

use super::plan::SharingMemory;
use super::problem::PublishedFigures;

/// Whether ours are the published figures, to the digits that are printed: whole megabytes, and
/// hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// The memory.
    pub bytes: bool,
    /// The saving; true where none was published.
    pub saving: bool,
}

impl PublishedFigures {
    /// Compares with `ours`, which saves against `traditional`.
    pub fn compare_with(&self, ours: &SharingMemory, traditional: &SharingMemory) -> Agreement {
        let is_near =
            |ours: f64, published: f64, digit: f64| (ours - published).abs() <= digit / 2.0;
        let saving = self.saving_percent.is_none_or(|published| {
            ours.saving_percent(traditional).is_some_and(|ours| is_near(ours, published, 0.01))
        });
        Agreement { bytes: is_near(ours.total_bytes, self.bytes, 1e6), saving }
    }
}
