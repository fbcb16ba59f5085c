//! What a run takes for the parts of a block's weights.

use std::time::Duration;

/// What a run takes for a part of a block's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTimes {
    /// The weight that it begins with, by the block's name for it.
    pub first_weight: String,
    /// Bytes of it.
    pub bytes: usize,
    /// From the host's memory to the GPU's.
    pub load: Duration,
    /// What runs from where it is needed first to where the next one is, with it in the GPU's memory.
    pub in_memory: Duration,
    /// The same with it in the host's memory.
    pub direct: Duration,
}
