//! The parts in which weights come to a device.

use std::ops::Range;

/// The parts of a file of weights: each begins where the one before it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WeightParts {
    ends: Vec<usize>,
    /// Bytes behind them: of tables, which are no part.
    table_bytes: usize,
}

impl WeightParts {
    /// Parts that end there, and so many bytes of tables behind them.
    pub(crate) fn new(ends: Vec<usize>, table_bytes: usize) -> Self {
        Self { ends, table_bytes }
    }

    /// A file of so many bytes as one part.
    pub(crate) fn whole(len: usize) -> Self {
        Self { ends: vec![len], table_bytes: 0 }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Where a part is in the file.
    pub(crate) fn range(&self, part: usize) -> Range<usize> {
        let end = |part: usize| self.ends.get(part).copied().unwrap_or_default();
        let start = part.checked_sub(1).map_or(0, end);
        start..end(part).max(start)
    }

    /// Where tables are in the file.
    pub(crate) fn tables(&self) -> Range<usize> {
        let start = self.ends.last().copied().unwrap_or_default();
        start..start + self.table_bytes
    }
}
